// SPDX-License-Identifier: Apache-2.0
#include "app/answers.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

namespace kvik::app {
namespace {

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

bool SameLogprobs(const engine::TokenOutput& a, const engine::TokenOutput& b) {
  return SameBits(a.logprob, b.logprob) &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(),
                    [](const engine::TokenLogprob& x, const engine::TokenLogprob& y) {
                      return x.token == y.token && SameBits(x.logprob, y.logprob);
                    });
}

}  // namespace

Differences CompareAnswers(const Answer& expected, const Answer& got) {
  const size_t common = std::min(expected.size(), got.size());
  Differences differences;
  differences.tokens = static_cast<int64_t>(std::max(expected.size(), got.size()) - common);
  for (size_t i = 0; i < common; ++i) {
    differences.tokens += expected[i].token != got[i].token ? 1 : 0;
    differences.logprobs += SameLogprobs(expected[i], got[i]) ? 0 : 1;
  }
  return differences;
}

void AddToHash(const Answer& answer, Sha256& hash) {
  const auto add = [&](uint32_t value) { hash.Update(std::as_bytes(std::span(&value, 1))); };
  for (const engine::TokenOutput& token : answer) {
    add(static_cast<uint32_t>(token.token));
    add(std::bit_cast<uint32_t>(token.logprob));
  }
}

std::string ShortDigest(Sha256& hash) { return ToHex(hash.Finish()).substr(0, 16); }

}  // namespace kvik::app
