// SPDX-License-Identifier: Apache-2.0
#include "workload/prose.h"

#include <iterator>

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

}  // namespace

std::string Word(Rng& rng) { return kWords[rng.Below(std::size(kWords))]; }

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

std::string Concat(std::initializer_list<std::string> parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += part;
  }
  return text;
}

}  // namespace kvik::workload
