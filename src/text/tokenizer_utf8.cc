// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace kvik::text {

Utf8Sequence ReadUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {.bytes = 1, .valid = true, .code_point = lead};
  }
  // The second byte's range excludes overlong forms, surrogates and what is above U+10FFFF.
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0Fu;
    low = lead == 0xE0 ? 0xA0 : 0x80;
    high = lead == 0xED ? 0x9F : 0xBF;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07u;
    low = lead == 0xF0 ? 0x90 : 0x80;
    high = lead == 0xF4 ? 0x8F : 0xBF;
  } else {
    return {.bytes = 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) {
      return {.bytes = i, .truncated = true};
    }
    if (byte(i) < low || byte(i) > high) {
      return {.bytes = i};
    }
    code_point = (code_point << 6) | (byte(i) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {.bytes = length, .valid = true, .code_point = code_point};
}

Utf8Sequence ReadLastUtf8(std::string_view text) {
  // At most 4 bytes: the longest suffix that is one valid sequence.
  for (size_t bytes = std::min<size_t>(4, text.size()); bytes > 0; --bytes) {
    const Utf8Sequence sequence = ReadUtf8(text.substr(text.size() - bytes));
    if (sequence.valid && sequence.bytes == bytes) {
      return sequence;
    }
  }
  return {.bytes = 1};
}

size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080ULL) != 0) {
      break;
    }
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) {
    ++i;
  }
  return i;
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (true) {
    pos += AsciiPrefix(text.substr(pos));
    // Runs of characters that are not ASCII stay in the inner loop.
    while (true) {
      if (pos == text.size()) {
        return pos;
      }
      if (static_cast<uint8_t>(text[pos]) < 0x80) {
        break;
      }
      const Utf8Sequence sequence = ReadUtf8(text.substr(pos));
      if (!sequence.valid) {
        return pos;
      }
      pos += sequence.bytes;
    }
  }
}

size_t AppendValidUtf8(std::string_view text, bool keep_truncated, std::string* out) {
  size_t pos = 0;
  while (pos < text.size()) {
    const size_t valid = ValidUtf8Prefix(text.substr(pos));
    out->append(text.substr(pos, valid));
    pos += valid;
    if (pos == text.size()) {
      break;
    }
    const Utf8Sequence broken = ReadUtf8(text.substr(pos));
    if (broken.truncated && keep_truncated) {
      break;
    }
    out->append(kReplacementCharacter);
    pos += broken.bytes;
  }
  return pos;
}

bool IsWhiteSpace(char32_t c) {
  if (c < 0x80) {
    return c == ' ' || (c >= '\t' && c <= '\r');
  }
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string ReplaceEvery(std::string_view text, std::string_view pattern,
                         std::string_view content) {
  std::string out;
  out.reserve(text.size());
  size_t pos = 0;
  for (size_t hit = text.find(pattern); hit != std::string_view::npos;
       hit = text.find(pattern, pos)) {
    out += text.substr(pos, hit - pos);
    out += content;
    pos = hit + pattern.size();
  }
  out += text.substr(pos);
  return out;
}

int ByteOfSpelling(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') {
    return -1;
  }
  int value = 0;
  for (const char c : spelling.substr(3, 2)) {
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'A' && c <= 'F') {
      digit = c - 'A' + 10;
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return -1;
    }
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace kvik::text
