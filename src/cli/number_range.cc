// SPDX-License-Identifier: Apache-2.0
#include "cli/number_range.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace kvik::cli {

CLI::Validator Between(double low, double high) {
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
