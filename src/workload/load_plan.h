// SPDX-License-Identifier: Apache-2.0
// workload/load_plan.h: what a load generator will send: sessions of calls, their content and the
// pauses between them. Pure data: no server, no clock, no vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/types.h"

namespace kvik::workload {

// `tokens` tokens that are a pure function of `content`; the first n of a longer run are those of
// a run of n. Different contents differ (but for chance, in runs of a few tokens).
struct TokenRun {
  uint64_t content = 0;
  int32_t tokens = 0;
};
// Appends them, drawn from `alphabet`. REQUIRES: alphabet not empty.
void AppendTokens(const TokenRun& run, std::span<const TokenId> alphabet,
                  std::vector<TokenId>& tokens);
// A name for the content `kind`, `a`, `b` of a load with this seed.
uint64_t ContentOf(uint64_t seed, uint64_t kind, uint64_t a = 0, uint64_t b = 0);

struct PlannedMessage {
  std::string role;
  std::string content;
};

// Messages are added to what was said before in the session, answers included; a text or runs of
// tokens are the whole prompt.
using PlannedPrompt = std::variant<std::vector<PlannedMessage>, std::vector<TokenRun>, std::string>;
// What the server is made to answer, where it can be made to.
using PlannedOutput = std::variant<std::monostate, TokenRun, std::string>;

struct PlannedCall {
  double gap_s = 0;         // from the end of the answer before; of the first call ignored
  double not_before_s = 0;  // from the start of the session
  PlannedPrompt prompt;
  int32_t max_tokens = 1;  // about the length of `output` when that is a text
  PlannedOutput output;
  bool calls_tool = false;  // the planned answer ends in a call of a tool
  uint64_t tool = 0;        // digest of its name
};

struct PlannedSession {
  double start_s = 0;              // as recorded or made up; other starts may be chosen
  std::vector<PlannedCall> calls;  // not empty
};

struct LoadPlan {
  std::vector<PlannedSession> sessions;  // ascending by start_s
  bool has_starts = false;               // start_s means something
  int32_t left_out = 0;                  // calls that were too long

  [[nodiscard]] size_t calls() const;
};

}  // namespace kvik::workload
