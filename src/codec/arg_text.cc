// SPDX-License-Identifier: Apache-2.0
#include "codec/arg_text.h"

#include <array>
#include <charconv>

namespace kvik::codec {

std::string ToText(const ArgValue& value) {
  if (value.word.empty()) {
    std::array<char, 32> text;
    const double number = value.number == 0 ? 0 : value.number;  // no "-0"
    return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
  }
  std::string text = value.word;
  for (size_t i = 0; i < value.list.size(); ++i) {
    text += i == 0 ? "(" : ",";
    text += ToText(value.list[i]);
  }
  return value.list.empty() ? text : text + ")";
}

}  // namespace kvik::codec
