// SPDX-License-Identifier: Apache-2.0
#include "workload/load_plan.h"

#include "base/check.h"
#include "base/rng.h"

namespace kvik::workload {

void AppendTokens(const TokenRun& run, std::span<const TokenId> alphabet,
                  std::vector<TokenId>& tokens) {
  KVIK_CHECK(!alphabet.empty());
  Rng rng(run.content, /*stream=*/0x746F6B656E73);
  for (int32_t i = 0; i < run.tokens; ++i) {
    tokens.push_back(alphabet[rng.Below(alphabet.size())]);
  }
}

uint64_t ContentOf(uint64_t seed, uint64_t kind, uint64_t a, uint64_t b) {
  return Rng(Rng(Rng(seed, kind).Next(), a).Next(), b).Next();
}

size_t LoadPlan::calls() const {
  size_t calls = 0;
  for (const PlannedSession& session : sessions) {
    calls += session.calls.size();
  }
  return calls;
}

}  // namespace kvik::workload
