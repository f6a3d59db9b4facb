// SPDX-License-Identifier: Apache-2.0
#include "workload/multi_turn.h"

#include "base/rng.h"
#include "workload/prose.h"

namespace kvik::workload {

std::vector<Conversation> MakeMultiTurn(const MultiTurnOptions& options) {
  Rng shared(options.seed, 0);
  const std::string system = options.system_words > 0 ? "You answer in one sentence. " +
                                                            Prose(shared, options.system_words)
                                                      : "";
  std::vector<Conversation> conversations;
  for (int32_t session = 0; session < options.sessions; ++session) {
    Rng rng(options.seed, static_cast<uint64_t>(session) + 1);
    Conversation conversation;
    conversation.system = system;
    for (int32_t turn = 0; turn < options.turns; ++turn) {
      conversation.turns.push_back(
          Concat({Prose(rng, options.turn_words), " What does the ", Word(rng), " do?"}));
    }
    conversations.push_back(std::move(conversation));
  }
  return conversations;
}

LoadPlan PlanMultiTurn(const MultiTurnOptions& options, int32_t max_tokens) {
  LoadPlan plan;
  for (Conversation& conversation : MakeMultiTurn(options)) {
    PlannedSession session;
    for (std::string& turn : conversation.turns) {
      std::vector<PlannedMessage> messages;
      if (session.calls.empty() && !conversation.system.empty()) {
        messages.push_back({"system", std::move(conversation.system)});
      }
      messages.push_back({"user", std::move(turn)});
      PlannedCall call;
      call.prompt = std::move(messages);
      call.max_tokens = max_tokens;
      session.calls.push_back(std::move(call));
    }
    plan.sessions.push_back(std::move(session));
  }
  return plan;
}

}  // namespace kvik::workload
