// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_utf8.h: UTF-8 as tokenizers need it. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvik::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";           // U+2581

// The sequence at the front of a text.
struct Utf8Sequence {
  size_t bytes = 0;  // > 0; of a broken one, those that one U+FFFD stands for
  bool valid = false;
  bool truncated = false;  // not valid only because the text ends here
  char32_t code_point = 0xFFFD;
};

// REQUIRES: text is not empty. A broken sequence is the longest beginning of a valid one, or one
// byte, as Unicode recommends ("maximal subpart") and Python and browsers do.
Utf8Sequence ReadUtf8(std::string_view text);

// Appends `text` with U+FFFD for what is broken. With `keep_truncated` stops before a truncated
// sequence at the end. Returns the bytes of `text` used.
size_t AppendValidUtf8(std::string_view text, bool keep_truncated, std::string* out);

// Length of the longest front of `text` that is valid.
size_t ValidUtf8Prefix(std::string_view text);

// Length of the longest front of `text` that is ASCII.
size_t AsciiPrefix(std::string_view text);

// Unicode's White_Space property.
bool IsWhiteSpace(char32_t c);

// The code point that ends at the end of `text`; U+FFFD if it is broken. REQUIRES: not empty.
Utf8Sequence ReadLastUtf8(std::string_view text);

// `text` with every `pattern` replaced. REQUIRES: pattern is not empty.
std::string ReplaceEvery(std::string_view text, std::string_view pattern, std::string_view content);

// The byte that `<0x0A>` names, or -1.
int ByteOfSpelling(std::string_view spelling);

}  // namespace kvik::text
