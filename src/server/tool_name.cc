// SPDX-License-Identifier: Apache-2.0
#include "server/tool_name.h"

#include <algorithm>
#include <string>

#include "base/fnv.h"

namespace kvik::server {
namespace {

constexpr std::string_view kWhite = " \t\r\n";

std::string_view SkipAny(std::string_view text, std::string_view characters) {
  return text.substr(std::min(text.find_first_not_of(characters), text.size()));
}

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

}  // namespace

std::string_view ToolName(std::string_view call) {
  constexpr std::string_view kKey = "\"name\"";
  if (const size_t key = call.find(kKey); key != std::string_view::npos) {
    std::string_view rest = SkipAny(call.substr(key + kKey.size()), kWhite);
    if (!rest.starts_with(':')) {
      return {};
    }
    rest = SkipAny(rest.substr(1), kWhite);
    const size_t end = rest.find('"', 1);
    return rest.starts_with('"') && end != std::string_view::npos ? rest.substr(1, end - 1)
                                                                  : std::string_view();
  }
  // What is left of a marker whose end is no token of its own comes first.
  const std::string_view rest = SkipAny(call, " \t\r\n>]");
  const auto* end = std::find_if_not(rest.begin(), rest.end(), IsNameCharacter);
  return end == rest.end() ? std::string_view()
                           : rest.substr(0, static_cast<size_t>(end - rest.begin()));
}

uint64_t ToolDigest(const text::Tokenizer& tokenizer, std::span<const TokenId> call) {
  std::string text;
  for (const TokenId token : call) {
    if (!tokenizer.IsControl(token)) {
      text += tokenizer.Piece(token);
    }
  }
  const std::string_view name = ToolName(text);
  return name.empty() ? 0 : std::max<uint64_t>(Fnv1a(name), 1);
}

}  // namespace kvik::server
