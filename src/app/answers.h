// SPDX-License-Identifier: Apache-2.0
// app/answers.h: answers of an engine compared bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sha256.h"
#include "engine/request.h"

namespace kvik::app {

using Answer = std::vector<engine::TokenOutput>;

struct Differences {
  int64_t tokens = 0;    // positions with another token, or a token in one answer only
  int64_t logprobs = 0;  // of those both have: positions where the token's or a top one differs
};

Differences CompareAnswers(const Answer& expected, const Answer& got);

// Tokens and their log-probabilities, as bits.
void AddToHash(const Answer& answer, Sha256& hash);

// The first 16 hexadecimal digits, for a line that people compare.
std::string ShortDigest(Sha256& hash);

}  // namespace kvik::app
