// SPDX-License-Identifier: Apache-2.0
// cli/number_range.h: what a flag with a fraction may be.
#pragma once

namespace CLI {
class Validator;
}

namespace kvik::cli {

// A number from `low` to `high`. CLI::Range alone lets "nan" pass, which is neither below nor above
// anything.
[[nodiscard]] CLI::Validator Between(double low, double high);

}  // namespace kvik::cli
