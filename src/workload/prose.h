// SPDX-License-Identifier: Apache-2.0
// workload/prose.h: made-up English for loads. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/rng.h"

namespace kvik::workload {

// A noun.
std::string Word(Rng& rng);

// Sentences of five words until there are `words`; a word is a little more than a token.
std::string Prose(Rng& rng, int32_t words);

// One after the other. Unlike operands of +, parts in braces are made from left to right, so that
// random ones are the same with every compiler.
std::string Concat(std::initializer_list<std::string> parts);

}  // namespace kvik::workload
