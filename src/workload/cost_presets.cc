// SPDX-License-Identifier: Apache-2.0
// How the presets come about. A token's linear layers take 2 operations a parameter (without the
// embedding tables), its attention 4 x hidden x layers operations for every position before it
// (half for QK, half for PV). Peaks are the vendors' dense bf16 numbers.
//
//   h20-8b    measured shape: Llama-3.1-8B, 7.5e9 parameters, 32 layers of 4096, on one H20 (148
//             TFLOPS): 111 us a token is 91 % of the peak, 5.8e-3 us a token and position 61 %
//   h100-8b   the same model, 989 TFLOPS: linear layers at 70 % (the faster machine waits more
//             for its memory) 15.0e9 / 692e12 = 21.7 us; attention at 61 %: 524288 / 603e12
//   h20x4-70b Llama-3.1-70B, 68.5e9 parameters, 80 layers of 8192, on four H20 with tensor
//             parallelism: 137e9 / (4 x 148e12 x 0.91) = 254 us, and two all-reduces a layer of
//             16 KB, each moving 2 x 3/4 of that through a link of 450 GB/s: 160 x 24.6 KB / 450
//             GB/s = 9 us; attention 2.62e6 / (592e12 x 0.61)
#include "workload/cost_presets.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <string>

namespace kvik::workload {
namespace {

struct Preset {
  std::string_view name;
  double a_us;
  double c_us;
};

constexpr std::array kPresets = {
    Preset{"h20-8b", 111.0, 5.8e-3},
    Preset{"h100-8b", 21.7, 8.7e-4},
    Preset{"h20x4-70b", 263.0, 7.26e-3},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kPresets.size()> names;
  for (size_t i = 0; i < names.size(); ++i) {
    names[i] = kPresets[i].name;
  }
  return names;
}();

kv::CostModel Model(double a_us, double c_us) {
  return kv::CostModel{.token_us = a_us, .square_us = c_us / 2};
}

}  // namespace

std::span<const std::string_view> CostPresetNames() { return kNames; }

Result<kv::CostModel> ParseCost(std::string_view text) {
  for (const Preset& preset : kPresets) {
    if (preset.name == text) {
      return Model(preset.a_us, preset.c_us);
    }
  }
  const std::string copy(text);
  char* end = nullptr;
  const double a_us = std::strtod(copy.c_str(), &end);
  if (end != copy.c_str() && *end == ',') {
    const char* second = end + 1;
    const double c_us = std::strtod(second, &end);
    if (end != second && *end == '\0' && std::isfinite(a_us) && std::isfinite(c_us) && a_us >= 0 &&
        c_us >= 0 && a_us + c_us > 0 && a_us <= 1e9 && c_us <= 1e9) {
      return Model(a_us, c_us);
    }
  }
  std::string known;
  for (const std::string_view name : kNames) {
    known += std::string(name) + ", ";
  }
  return Err(ErrorCode::kInvalidInput,
             "cost \"%s\": give one of %sor A,C in microseconds (111,0.0058)", copy.c_str(),
             known.c_str());
}

}  // namespace kvik::workload
