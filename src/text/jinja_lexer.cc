// SPDX-License-Identifier: Apache-2.0
// White space control, the delicate part, works on the text before and after a tag:
//   {%- and {{- and {#-   remove all white space before the tag, new lines included;
//   {% and {#             remove spaces from the start of the line up to the tag, if there is
//                         nothing else (lstrip_blocks); {%+ keeps them;
//   -%} and -}} and -#}   remove all white space after the tag;
//   %} and #}             remove one new line after the tag (trim_blocks); +%} keeps it.
#include "text/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

// Longest first.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

int DigitValue(char c) {
  if (IsAsciiDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// \r\n and \r become \n; one new line at the end is dropped.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<JinjaToken>> Run() {
    while (pos_ < source_.size()) KVIK_TRY(Text());
    Push(JinjaTokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] bool At(std::string_view what) const {
    return source_.substr(pos_).starts_with(what);
  }
  [[nodiscard]] char Peek(size_t ahead = 0) const {
    return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0';
  }

  // Moves to `to`, counting lines.
  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    if (to > pos_) line_starting_ = source_[to - 1] == '\n';
    pos_ = to;
  }

  [[nodiscard]] size_t SkipSpace(size_t from) const {
    while (from < source_.size()) {
      size_t next = from;
      if (!IsSpace(NextCodePoint(source_, &next))) break;
      from = next;
    }
    return from;
  }

  void Push(JinjaTokenType type, std::string text) {
    JinjaToken token;
    token.type = type;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  // The text up to the tag at `tag`, stripped as the tag's sign ('-', '+' or none) asks.
  void PushText(size_t tag, char sign, bool is_variable) {
    std::string_view text = source_.substr(pos_, tag - pos_);
    if (sign == '-') {
      text = Strip(text, nullptr, false, true);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      const std::string_view margin = text.substr(line_begin);
      if ((line_begin > 0 || line_starting_) && Strip(margin, nullptr, true, false).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) Push(JinjaTokenType::kData, std::string(text));
    Advance(tag);
  }

  // Position after the tag end that is at `at` (sign, brackets, what white space control removes),
  // or npos if there is none. `may_trim` is false for {{ }}.
  [[nodiscard]] size_t EndOfTag(size_t at, std::string_view bracket, bool may_trim) const {
    const std::string_view rest = source_.substr(at);
    if (rest.starts_with("-") && rest.substr(1).starts_with(bracket)) {
      return SkipSpace(at + 1 + bracket.size());
    }
    if (may_trim && rest.starts_with("+") && rest.substr(1).starts_with(bracket)) {
      return at + 1 + bracket.size();
    }
    if (!rest.starts_with(bracket)) return std::string_view::npos;
    const size_t end = at + bracket.size();
    return may_trim && end < source_.size() && source_[end] == '\n' ? end + 1 : end;
  }

  // Matches `{%`, a sign, white space, `name`, white space at `at`; gives the position after it.
  [[nodiscard]] size_t AfterBlockName(size_t at, std::string_view name, char* sign) const {
    size_t next = at + 2;
    *sign = '\0';
    if (next < source_.size() && (source_[next] == '-' || source_[next] == '+')) {
      *sign = source_[next++];
    }
    next = SkipSpace(next);
    if (!source_.substr(next).starts_with(name)) return std::string_view::npos;
    return SkipSpace(next + name.size());
  }

  // Template text and the tag that ends it.
  Result<void> Text() {
    size_t tag = pos_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
        Push(JinjaTokenType::kData, std::string(source_.substr(pos_)));
        Advance(source_.size());
        return {};
      }
      const char kind = source_[tag + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    if (kind == '%') {
      char raw_sign = '\0';
      const size_t after = AfterBlockName(tag, "raw", &raw_sign);
      if (after != std::string_view::npos) {
        // After {% raw %} the new line stays.
        size_t end = EndOfTag(after, "%}", false);
        if (end != std::string_view::npos) {
          PushText(tag, raw_sign, false);
          Advance(end);
          return Raw();
        }
      }
    }
    PushText(tag, sign, kind == '{');
    const size_t begin = tag + (sign != '\0' ? 3 : 2);
    if (kind == '#') {
      Advance(begin);
      return Comment();
    }
    Push(kind == '{' ? JinjaTokenType::kVariableBegin : JinjaTokenType::kBlockBegin, "");
    Advance(begin);
    return kind == '{' ? Code("}}", JinjaTokenType::kVariableEnd)
                       : Code("%}", JinjaTokenType::kBlockEnd);
  }

  Result<void> Comment() {
    const int line = line_;
    for (size_t at = pos_; at < source_.size(); ++at) {
      const char c = source_[at];
      if (c != '#' && c != '-' && c != '+') continue;
      const size_t end = EndOfTag(at, "#}", true);
      if (end == std::string_view::npos) continue;
      Advance(end);
      return {};
    }
    // jinja2 accepts a comment that starts where the template ends.
    if (pos_ == source_.size()) return {};
    return JinjaSyntaxError(line, "missing end of comment tag");
  }

  Result<void> Raw() {
    const int line = line_;
    for (size_t at = source_.find("{%", pos_); at != std::string_view::npos;
         at = source_.find("{%", at + 1)) {
      char sign = '\0';
      const size_t after = AfterBlockName(at, "endraw", &sign);
      if (after == std::string_view::npos) continue;
      const size_t end = EndOfTag(after, "%}", true);
      if (end == std::string_view::npos) continue;
      PushText(at, sign, false);
      Advance(end);
      return {};
    }
    if (pos_ == source_.size()) return {};  // likewise
    return JinjaSyntaxError(line, "missing end of raw directive");
  }

  // The inside of {{ }} or {% %}. Its end is seen only outside of all brackets.
  Result<void> Code(std::string_view bracket, JinjaTokenType end_type) {
    std::string open;  // the closing brackets that are due
    while (pos_ < source_.size()) {
      if (open.empty()) {
        const size_t end = EndOfTag(pos_, bracket, end_type == JinjaTokenType::kBlockEnd);
        if (end != std::string_view::npos) {
          Push(end_type, "");
          Advance(end);
          return {};
        }
      }
      const size_t after_space = SkipSpace(pos_);
      if (after_space != pos_) {
        Advance(after_space);
        continue;
      }
      const char c = Peek();
      if (IsAsciiDigit(c)) {
        KVIK_TRY(Number());
      } else if (c == '\'' || c == '"') {
        KVIK_TRY(StringLiteral(c));
      } else if (!Name()) {
        KVIK_TRY(Operator(&open));
      }
    }
    return {};  // the parser misses the end tag
  }

  bool Name() {
    size_t end = pos_;
    while (end < source_.size()) {
      size_t next = end;
      const char32_t c = NextCodePoint(source_, &next);
      if (end == pos_ ? !IsIdentifierStart(c) : !IsIdentifierPart(c)) break;
      end = next;
    }
    if (end == pos_) return false;
    Push(JinjaTokenType::kName, std::string(source_.substr(pos_, end - pos_)));
    Advance(end);
    return true;
  }

  Result<void> Operator(std::string* open) {
    const auto* op = std::find_if(kOperators.begin(), kOperators.end(),
                                  [this](std::string_view candidate) { return At(candidate); });
    if (op == kOperators.end()) {
      size_t end = pos_;
      NextCodePoint(source_, &end);
      return JinjaSyntaxError(
          line_, "unexpected character '" + std::string(source_.substr(pos_, end - pos_)) + "'");
    }
    const char c = (*op)[0];
    if (c == '(' || c == '[' || c == '{') {
      open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open->empty()) return JinjaSyntaxError(line_, std::string("unexpected '") + c + "'");
      if (open->back() != c) {
        return JinjaSyntaxError(
            line_, std::string("unexpected '") + c + "', expected '" + open->back() + "'");
      }
      open->pop_back();
    }
    Push(JinjaTokenType::kOperator, std::string(*op));
    Advance(pos_ + op->size());
    return {};
  }

  // Digits of `base` from `at`, single underscores between them; gives the end.
  size_t Digits(size_t at, int base, bool underscore_first, std::string* digits) const {
    bool need_digit = !underscore_first;
    while (at < source_.size()) {
      size_t digit = at;
      if (!need_digit && source_[digit] == '_') ++digit;
      if (digit >= source_.size() || DigitValue(source_[digit]) >= base) break;
      digits->push_back(source_[digit]);
      at = digit + 1;
      need_digit = false;
    }
    return at;
  }

  Result<void> Number() {
    // A number after a dot is an index: `x.1.5` holds no 1.5.
    const bool may_be_float = pos_ == 0 || source_[pos_ - 1] != '.';
    std::string whole;
    const size_t whole_end = Digits(pos_, 10, false, &whole);
    if (may_be_float) {
      std::string text = whole;
      size_t end = whole_end;
      bool is_float = false;
      if (end + 1 < source_.size() && source_[end] == '.' && IsAsciiDigit(source_[end + 1])) {
        text.push_back('.');
        end = Digits(end + 1, 10, false, &text);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        size_t power = end + 1;
        std::string sign;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) {
          sign = source_[power++];
        }
        if (power < source_.size() && IsAsciiDigit(source_[power])) {
          text += "e" + sign;
          end = Digits(power, 10, false, &text);
          is_float = true;
        }
      }
      if (is_float) {
        Push(JinjaTokenType::kFloat, "");
        // Out of range leaves 0 or infinity, as Python has it.
        const auto result =
            std::from_chars(text.data(), text.data() + text.size(), tokens_.back().floating);
        if (result.ec == std::errc::result_out_of_range) {
          tokens_.back().floating = std::strtod(text.c_str(), nullptr);
        }
        Advance(end);
        return {};
      }
    }
    return Integer(whole, whole_end);
  }

  Result<void> Integer(std::string digits, size_t end) {
    int base = 10;
    if (Peek() == '0') {
      const char kind = static_cast<char>(Peek(1) | 0x20);
      const int prefixed = kind == 'b' ? 2 : kind == 'o' ? 8 : kind == 'x' ? 16 : 0;
      std::string prefixed_digits;
      const size_t prefixed_end =
          prefixed != 0 ? Digits(pos_ + 2, prefixed, true, &prefixed_digits) : 0;
      if (!prefixed_digits.empty()) {
        base = prefixed;
        digits = prefixed_digits;
        end = prefixed_end;
      } else {  // only zeros may follow a zero
        digits.clear();
        end = Digits(pos_, 1, false, &digits);
      }
    }
    Push(JinjaTokenType::kInteger, "");
    const auto result =
        std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().integer, base);
    if (result.ec != std::errc()) {
      return JinjaSyntaxError(line_, "an integer does not fit 64 bits");
    }
    Advance(end);
    return {};
  }

  Result<void> StringLiteral(char quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return JinjaSyntaxError(line_, "a string has no end");
    KVIK_ASSIGN(std::string value, Unescape(source_.substr(pos_ + 1, end - pos_ - 1)));
    Push(JinjaTokenType::kString, std::move(value));
    Advance(end + 1);
    return {};
  }

  // Python's escapes; an unknown one stays as it is, backslash included.
  [[nodiscard]] Result<std::string> Unescape(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out.push_back(text[i]);
        continue;
      }
      const char c = text[++i];  // the lexer made sure that a character follows
      constexpr std::string_view kNames = "\\'\"abfnrtv";
      constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t known = kNames.find(c); known != std::string_view::npos) {
        out.push_back(kValues[known]);
      } else if (c == '\n') {
        continue;
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        size_t end = i;
        while (end < text.size() && end < i + 3 && text[end] >= '0' && text[end] <= '7') {
          code = code * 8 + static_cast<char32_t>(text[end++] - '0');
        }
        AppendUtf8(code, &out);
        i = end - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        KVIK_ASSIGN(char32_t code, HexEscape(text, i + 1, length));
        i += length;
        // Two halves of a surrogate pair make one character.
        if (code >= 0xD800 && code < 0xDC00 && text.substr(i + 1).starts_with("\\u")) {
          KVIK_ASSIGN(const char32_t low, HexEscape(text, i + 3, 4));
          if (low >= 0xDC00 && low < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            i += 6;
          }
        }
        AppendUtf8(code, &out);
      } else if (c == 'N') {
        return JinjaSyntaxError(line_, "characters by name (\\N) are not supported");
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  [[nodiscard]] Result<char32_t> HexEscape(std::string_view text, size_t at, size_t length) const {
    char32_t code = 0;
    for (size_t i = at; i < at + length; ++i) {
      if (i >= text.size() || DigitValue(text[i]) >= 16) {
        return JinjaSyntaxError(line_, "a truncated escape in a string");
      }
      code = code * 16 + static_cast<char32_t>(DigitValue(text[i]));
    }
    if (code > 0x10FFFF) return JinjaSyntaxError(line_, "an escape beyond Unicode");
    return code;
  }

  std::string_view source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last character consumed ended a line
  std::vector<JinjaToken> tokens_;
};

}  // namespace

Error JinjaSyntaxError(int line, const std::string& message) {
  return Err(ErrorCode::kInvalidInput, "line %d: %s", line, message.c_str());
}

Result<std::vector<JinjaToken>> JinjaTokenize(std::string_view source) {
  const std::string normalized = NormalizeNewlines(source);
  return Lexer(normalized).Run();
}

}  // namespace kvik::text
