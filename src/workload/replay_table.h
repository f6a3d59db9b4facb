// SPDX-License-Identifier: Apache-2.0
// workload/replay_table.h: results of replays for people and for machines.
#pragma once

#include <span>
#include <string>

#include "workload/replay.h"

namespace kvik::workload {

// Aligned columns, one line a cell, each ended; a line of names first.
std::string FormatCells(std::span<const ReplayCell> cells);
// One JSON object on one line, ended.
std::string CellJson(const ReplayCell& cell);

}  // namespace kvik::workload
