// SPDX-License-Identifier: Apache-2.0
#include "base/json_parse.h"

#include <algorithm>
#include <vector>

namespace kvik {

// Brackets and commas outside strings tell nesting and members, whatever else the text is.
std::optional<std::string> JsonExcess(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return "has " + std::to_string(text.size()) + " bytes, more than " +
           std::to_string(limits.max_bytes);
  }
  struct Level {
    bool object;
    size_t commas;
  };
  std::vector<Level> open;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (open.size() >= static_cast<size_t>(limits.max_nesting)) {
        return "nests deeper than " + std::to_string(limits.max_nesting) + " levels";
      }
      open.push_back({.object = c == '{', .commas = 0});
    } else if ((c == '}' || c == ']') && !open.empty()) {
      open.pop_back();
    } else if (c == ',' && !open.empty() && open.back().object &&
               ++open.back().commas >= limits.max_members) {
      return "has an object of more than " + std::to_string(limits.max_members) + " members";
    }
  }
  return std::nullopt;
}

// "[json.exception.parse_error.101] parse error at line 1, ..."
std::string JsonExceptionText(std::string_view what) {
  constexpr size_t kMaxBytes = 200;
  const size_t end = what.find("] ");
  if (what.starts_with("[json.") && end != std::string_view::npos) {
    what.remove_prefix(end + 2);
  }
  std::string text(what.substr(0, kMaxBytes));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7E; }, '?');
  return what.size() > kMaxBytes ? text + "..." : text;
}

}  // namespace kvik
