// SPDX-License-Identifier: Apache-2.0
// text/jinja_unicode.h: UTF-8 strings seen as Python sees its strings, by code points.
//
// Functions that walk a string accept any bytes: what is not UTF-8 counts as U+FFFD. All are pure
// and thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvik::text {

bool IsAscii(std::string_view s);
bool IsValidUtf8(std::string_view s);

// The code point at `*pos` (REQUIRES: *pos < s.size()); advances *pos past it.
char32_t NextCodePoint(std::string_view s, size_t* pos);
// The code point that ends at `*end` (REQUIRES: *end > 0); moves *end to its start.
char32_t PreviousCodePoint(std::string_view s, size_t* end);
void AppendUtf8(char32_t c, std::string* out);
std::u32string ToUtf32(std::string_view s);
std::string ToUtf8(std::u32string_view s);
size_t CountCodePoints(std::string_view s);
// Byte offset of code point `index`, or s.size() if there are fewer.
size_t OffsetOfCodePoint(std::string_view s, size_t index);

// Character classes of Python's str methods of the same names.
bool IsSpace(char32_t c);
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);
bool IsNumeric(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsPrintable(char32_t c);
// What may start, and continue, an identifier.
bool IsIdentifierStart(char32_t c);
bool IsIdentifierPart(char32_t c);

// Case mappings with Unicode's one-to-many rules ("ß" becomes "SS") and the final sigma.
std::string ToUpper(std::string_view s);
std::string ToLower(std::string_view s);
std::string ToTitle(std::string_view s);
std::string Capitalize(std::string_view s);
std::string SwapCase(std::string_view s);
std::string CaseFold(std::string_view s);

// Without leading (if `left`) and trailing (if `right`) code points that are in `chars`, or that
// are white space if `chars` is null.
std::string_view Strip(std::string_view s, const std::string_view* chars, bool left, bool right);

}  // namespace kvik::text
