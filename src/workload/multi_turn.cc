// SPDX-License-Identifier: Apache-2.0
#include "workload/multi_turn.h"

#include <iterator>

#include "base/rng.h"

namespace kvik::workload {
namespace {

constexpr const char* kWords[] = {
    "river",   "stone",  "garden", "engine",  "letter", "market",  "winter",   "copper", "signal",
    "harbour", "paper",  "field",  "window",  "bridge", "forest",  "music",    "number", "island",
    "silver",  "table",  "cloud",  "station", "valley", "lamp",    "road",     "glass",  "summer",
    "village", "ocean",  "clock",  "school",  "iron",   "bread",   "mountain", "horse",  "theory",
    "square",  "colour", "tower",  "machine", "book",   "morning", "planet",   "rope",   "leaf"};
constexpr const char* kVerbs[] = {"moves",  "holds",   "follows", "breaks", "carries",
                                  "covers", "reaches", "turns",   "leaves", "opens"};

// Sentences of five words until there are `words`.
std::string Prose(Rng& rng, int32_t words) {
  std::string text;
  for (int32_t i = 0; i < words; ++i) {
    switch (i % 5) {
      case 0:
        text += text.empty() ? "The " : " The ";
        break;
      case 2:
        text += std::string(" ") + kVerbs[rng.Below(std::size(kVerbs))];
        break;
      case 3:
        text += " the";
        break;
      default:
        text += i % 5 == 4 ? " " : "";
        text += kWords[rng.Below(std::size(kWords))];
        text += i % 5 == 4 ? "." : "";
    }
  }
  return text;
}

}  // namespace

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
      conversation.turns.push_back(Prose(rng, options.turn_words) + " What does the " +
                                   kWords[rng.Below(std::size(kWords))] + " do?");
    }
    conversations.push_back(std::move(conversation));
  }
  return conversations;
}

}  // namespace kvik::workload
