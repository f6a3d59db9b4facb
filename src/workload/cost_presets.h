// SPDX-License-Identifier: Apache-2.0
// workload/cost_presets.h: what prefill costs on machines that are not here.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "kv/cost_model.h"

namespace kvik::workload {

// "h20-8b", ..., for --help.
std::span<const std::string_view> CostPresetNames();

// A preset by name, or "A,C": a in microseconds a token and c in microseconds a token and position
// (see kv/cost_model.h). kInvalidInput lists the names.
Result<kv::CostModel> ParseCost(std::string_view text);

}  // namespace kvik::workload
