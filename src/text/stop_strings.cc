// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace kvik::text {

StopStrings::StopStrings(std::vector<std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string& text = stops[i];
    if (text.empty()) {
      continue;
    }
    std::vector<uint32_t> border(text.size(), 0);
    for (size_t end = 1, length = 0; end < text.size(); ++end) {
      while (length > 0 && text[end] != text[length]) {
        length = border[length - 1];
      }
      length += text[end] == text[length] ? 1 : 0;
      border[end] = static_cast<uint32_t>(length);
    }
    patterns_.push_back({.text = std::move(stops[i]), .index = i, .border = std::move(border)});
  }
}

std::string StopStrings::Push(std::string_view text) {
  if (matched_) {
    return {};
  }
  std::string out = std::exchange(held_, {});
  for (const char c : text) {
    out += c;
    const Pattern* match = nullptr;
    for (Pattern& pattern : patterns_) {
      size_t& length = pattern.matched_bytes;
      while (length > 0 && pattern.text[length] != c) {
        length = pattern.border[length - 1];
      }
      length += pattern.text[length] == c ? 1 : 0;
      if (length == pattern.text.size() && (match == nullptr || length > match->text.size())) {
        match = &pattern;
      }
    }
    if (match != nullptr) {
      matched_ = match->index;
      if (!include_stop_) {
        out.resize(out.size() - match->text.size());
      }
      return out;
    }
  }
  size_t held_bytes = 0;
  for (const Pattern& pattern : patterns_) {
    held_bytes = std::max(held_bytes, pattern.matched_bytes);
  }
  held_ = out.substr(out.size() - held_bytes);
  out.resize(out.size() - held_bytes);
  return out;
}

std::string StopStrings::Flush() {
  for (Pattern& pattern : patterns_) {
    pattern.matched_bytes = 0;
  }
  return std::exchange(held_, {});
}

}  // namespace kvik::text
