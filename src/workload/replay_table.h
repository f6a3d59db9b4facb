// SPDX-License-Identifier: Apache-2.0
// workload/replay_table.h: results of replays for people and for machines.
#pragma once

#include <span>
#include <string>

#include "workload/reference.h"
#include "workload/replay.h"

namespace kvik::workload {

// Aligned columns, one line a cell, each ended; a line of names first. With a reference two columns
// more: its miss cost and how much more ours is, and a line that sums them up. Another names the
// offline policies.
std::string FormatCells(std::span<const ReplayCell> cells, const Reference* reference);
// One JSON object on one line, ended.
std::string CellJson(const ReplayCell& cell);

}  // namespace kvik::workload
