// SPDX-License-Identifier: Apache-2.0
// model/printable.h: text from a file, made fit for a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace kvik::model {

// Control characters and bytes beyond ASCII become '?'; cut after 80 characters.
inline std::string Printable(std::string_view text) {
  constexpr size_t kMaxChars = 80;
  std::string out;
  for (const char c : text.substr(0, kMaxChars)) {
    out.push_back(c >= 0x20 && c < 0x7F ? c : '?');
  }
  return text.size() > kMaxChars ? out + "..." : out;
}

}  // namespace kvik::model
