// SPDX-License-Identifier: Apache-2.0
// cli/number_range.h: what a flag with a fraction may be.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace kvik::cli {

// A number from `low` to `high`. CLI::Range alone lets "nan" pass, which is neither below nor above
// anything.
[[nodiscard]] inline CLI::Validator Between(double low, double high) {
  return CLI::Range(low, high) & CLI::Validator(
                                     [](const std::string& text) {
                                       double value = 0;
                                       return CLI::detail::lexical_cast(text, value) &&
                                                      std::isnan(value)
                                                  ? "'" + text + "' is not a number"
                                                  : std::string();
                                     },
                                     "");
}

}  // namespace kvik::cli
