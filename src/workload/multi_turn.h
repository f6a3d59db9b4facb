// SPDX-License-Identifier: Apache-2.0
// workload/multi_turn.h: made-up conversations: the load whose every turn repeats all before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workload/load_plan.h"

namespace kvik::workload {

struct MultiTurnOptions {
  int32_t sessions = 8;
  int32_t turns = 4;
  int32_t system_words = 60;  // shared by all sessions; 0 = no system message
  int32_t turn_words = 100;   // of each user message; a word is a little more than a token
  uint64_t seed = 0;
};

struct Conversation {
  std::string system;              // maybe empty
  std::vector<std::string> turns;  // what the user says; the answers are the server's
};

// Equal options give equal text.
std::vector<Conversation> MakeMultiTurn(const MultiTurnOptions& options);

// The same as a plan without pauses, every answer of at most `max_tokens`.
LoadPlan PlanMultiTurn(const MultiTurnOptions& options, int32_t max_tokens);

}  // namespace kvik::workload
