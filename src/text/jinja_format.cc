// SPDX-License-Identifier: Apache-2.0
// "%d items" % n and "{:>8}".format(x): Python's two format languages.
#include "text/jinja_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

// Widths and precisions beyond this are refused.
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxPrecision = 4096;

// One conversion, in whichever language it was written.
struct Spec {
  std::string fill = " ";
  char align = 0;  // '<' '>' '^' '=', or 0 for the type's own
  char sign = '-';
  bool alternate = false;
  char grouping = 0;  // ',' or '_'
  int width = 0;
  int precision = -1;
  char type = 0;
};

bool IsIntegral(const JinjaValue& v) { return v.is_int() || v.is_bool(); }
int64_t AsInt(const JinjaValue& v) { return v.is_bool() ? int64_t{v.boolean()} : v.integer(); }

Error BadFormat(const std::string& what) {
  return Err(ErrorCode::kInvalidInput, "format: %s", what.c_str());
}

// Reads a number at *pos; -1 if there is none.
Result<int> ReadNumber(std::string_view text, size_t* pos, int most) {
  int value = -1;
  while (*pos < text.size() && text[*pos] >= '0' && text[*pos] <= '9') {
    value = std::max(value, 0) * 10 + (text[*pos] - '0');
    if (value > most) return BadFormat("a width or precision is too large");
    ++*pos;
  }
  return value;
}

std::string ToChars(double value, std::chars_format format, int precision) {
  // Fixed notation of the largest double has 309 digits before the point.
  std::string out(static_cast<size_t>(precision) + 330, '\0');
  const auto end = std::to_chars(out.data(), out.data() + out.size(), value, format, precision).ptr;
  out.resize(static_cast<size_t>(end - out.data()));
  return out;
}

// The decimal exponent of value rounded to `precision` significant digits.
int ExponentOf(double value, int precision) {
  const std::string text = ToChars(value, std::chars_format::scientific, precision - 1);
  return std::stoi(text.substr(text.find('e') + 1));
}

// Digits of |value| for a float conversion, without sign and padding.
std::string FloatDigits(double value, const Spec& spec) {
  const double magnitude = std::fabs(value);
  const char type = static_cast<char>(spec.type | 0x20);
  const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  std::string out;
  if (std::isnan(value)) {
    out = "nan";
  } else if (std::isinf(value)) {
    out = "inf";
  } else if (spec.type == 0 && spec.precision < 0) {
    out = JinjaFloatRepr(magnitude);
  } else {
    const int precision = spec.precision < 0 ? 6 : spec.precision;
    const int digits = std::max(precision, 1);
    if (spec.type == 0) {  // as 'g', but it looks like a float
      const int exponent = magnitude == 0 ? 0 : ExponentOf(magnitude, digits);
      if (exponent < -4 || exponent >= digits - 1) {
        out = ToChars(magnitude, std::chars_format::scientific, digits - 1);
        // 'g' drops trailing zeros of the mantissa.
        const size_t e = out.find('e');
        size_t end = e;
        if (out.find('.') < e) {
          while (out[end - 1] == '0') --end;
          if (out[end - 1] == '.') --end;
        }
        out.erase(end, e - end);
        if (exponent == 0 || (exponent > 0 && exponent < digits - 1))
          out = JinjaFloatRepr(magnitude);
      } else {
        out = ToChars(magnitude, std::chars_format::general, digits);
        if (out.find('.') == std::string::npos) out += ".0";
      }
    } else if (type == 'e') {
      out = ToChars(magnitude, std::chars_format::scientific, precision);
    } else if (type == 'g' || type == 'n') {
      out = ToChars(magnitude, std::chars_format::general, digits);
    } else if (spec.type == '%') {
      out = ToChars(magnitude * 100, std::chars_format::fixed, precision) + "%";
    } else {
      out = ToChars(magnitude, std::chars_format::fixed, precision);
    }
  }
  if (upper) out = ToUpper(out);
  return out;
}

std::string IntDigits(uint64_t magnitude, char type, bool alternate) {
  int base = 10;
  std::string prefix;
  if (type == 'b') base = 2, prefix = "0b";
  if (type == 'o') base = 8, prefix = "0o";
  if (type == 'x' || type == 'X') base = 16, prefix = type == 'x' ? "0x" : "0X";
  char buffer[72];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), magnitude, base).ptr;
  std::string digits(buffer, static_cast<size_t>(end - buffer));
  if (type == 'X') digits = ToUpper(digits);
  return alternate ? prefix + digits : digits;
}

std::string Group(const std::string& digits, char separator, size_t every) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out + digits.substr(whole);
}

// Pads sign + body to the width.
std::string Pad(const Spec& spec, const std::string& sign, const std::string& body,
                char own_align) {
  const size_t length = CountCodePoints(sign) + CountCodePoints(body);
  const auto width = static_cast<size_t>(spec.width);
  if (width <= length) return sign + body;
  const size_t missing = width - length;
  const auto fill = [&spec](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align != 0 ? spec.align : own_align) {
    case '<':
      return sign + body + fill(missing);
    case '^':
      return fill(missing / 2) + sign + body + fill(missing - missing / 2);
    case '=':
      return sign + fill(missing) + body;
    default:
      return fill(missing) + sign + body;
  }
}

std::string SignText(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

std::string FormatFloat(double value, const Spec& spec) {
  std::string digits = FloatDigits(value, spec);
  if (spec.grouping != 0 && std::isfinite(value)) digits = Group(digits, spec.grouping, 3);
  return Pad(spec, SignText(std::signbit(value) && !std::isnan(value), spec.sign), digits, '>');
}

Result<std::string> FormatInt(int64_t value, const Spec& spec) {
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
    case 'b':
    case 'o':
    case 'x':
    case 'X': {
      if (spec.precision >= 0) return BadFormat("an integer has no precision");
      const uint64_t magnitude =
          value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
      std::string digits = IntDigits(magnitude, spec.type, false);
      const bool decimal = spec.type == 0 || spec.type == 'd' || spec.type == 'n';
      if (spec.grouping == ',' && !decimal) return BadFormat("',' goes with decimal numbers only");
      if (spec.grouping != 0) digits = Group(digits, spec.grouping, decimal ? 3 : 4);
      std::string sign = SignText(value < 0, spec.sign);
      if (spec.alternate && !decimal) sign += IntDigits(0, spec.type, true).substr(0, 2);
      return Pad(spec, sign, digits, '>');
    }
    case 'c': {
      if (value < 0 || value > 0x10FFFF) return BadFormat("'c' needs a code point");
      std::string character;
      AppendUtf8(static_cast<char32_t>(value), &character);
      return Pad(spec, "", character, '<');
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case '%':
      return FormatFloat(static_cast<double>(value), spec);
    default:
      return BadFormat(std::string("unknown format code '") + spec.type + "' for an int");
  }
}

std::string Truncate(const std::string& text, int precision) {
  if (precision < 0) return text;
  return text.substr(0, OffsetOfCodePoint(text, static_cast<size_t>(precision)));
}

// --- str.format

// [[fill]align][sign][#][0][width][grouping][.precision][type]
Result<Spec> ParseSpec(std::string_view text) {
  Spec spec;
  size_t pos = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    size_t after_fill = 0;
    NextCodePoint(text, &after_fill);
    if (after_fill < text.size() && is_align(text[after_fill])) {
      spec.fill = std::string(text.substr(0, after_fill));
      spec.align = text[after_fill];
      pos = after_fill + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      pos = 1;
    }
  }
  const auto at = [&](char c) { return pos < text.size() && text[pos] == c; };
  if (at('+') || at('-') || at(' ')) spec.sign = text[pos++];
  if (at('#')) {
    spec.alternate = true;
    ++pos;
  }
  if (at('0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
    ++pos;
  }
  KVIK_ASSIGN(const int width, ReadNumber(text, &pos, kMaxWidth));
  spec.width = std::max(width, 0);
  if (at(',') || at('_')) spec.grouping = text[pos++];
  if (at('.')) {
    ++pos;
    KVIK_ASSIGN(spec.precision, ReadNumber(text, &pos, kMaxPrecision));
    if (spec.precision < 0) return BadFormat("a precision is missing");
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size()) return BadFormat("an invalid format specifier");
  return spec;
}

Result<std::string> FormatValue(JinjaRuntime& runtime, const JinjaValue& value,
                                std::string_view spec_text) {
  if (spec_text.empty()) return JinjaStr(runtime, value);
  KVIK_ASSIGN(Spec spec, ParseSpec(spec_text));
  if (!runtime.Use(static_cast<uint64_t>(spec.width) * spec.fill.size())) {
    return runtime.Exhausted();
  }
  if (value.is_string()) {
    if ((spec.type != 0 && spec.type != 's') || spec.align == '=' || spec.grouping != 0 ||
        spec.sign != '-') {
      // "0" before the width asks for '=' too, but for strings it only sets the fill.
      if (spec.fill != "0" || spec.align != '=' || (spec.type != 0 && spec.type != 's')) {
        return BadFormat("a specifier that strings do not have");
      }
      spec.align = '<';
    }
    return Pad(spec, "", Truncate(value.text(), spec.precision), '<');
  }
  if (IsIntegral(value)) return FormatInt(AsInt(value), spec);
  if (value.is_float()) {
    if (spec.type != 0 && std::string_view("eEfFgGn%").find(spec.type) == std::string_view::npos) {
      return BadFormat(std::string("unknown format code '") + spec.type + "' for a float");
    }
    return FormatFloat(value.floating(), spec);
  }
  return BadFormat("a specifier for '" + JinjaTypeName(value) + "'");
}

// Fills in the fields of one format string.
class BraceFormatter {
 public:
  BraceFormatter(JinjaRuntime& runtime, const JinjaArgs& args) : runtime_(runtime), args_(args) {}

  // `depth`: how many levels of fields inside specifiers are allowed.
  Result<std::string> Format(std::string_view text, int depth) {
    if (depth < 0) return BadFormat("fields nest too deeply");
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      const char c = text[pos++];
      if (!runtime_.Use(1)) return runtime_.Exhausted();
      if (c != '{' && c != '}') {
        out.push_back(c);
        continue;
      }
      if (pos < text.size() && text[pos] == c) {
        out.push_back(c);
        ++pos;
        continue;
      }
      if (c == '}') return BadFormat("single '}' in a format string");
      KVIK_ASSIGN(const std::string field, Field(text, &pos, depth));
      out += field;
    }
    return out;
  }

 private:
  // The field that starts after the '{' before *pos.
  Result<std::string> Field(std::string_view text, size_t* pos, int depth) {
    const size_t begin = *pos;
    int open = 1;
    while (*pos < text.size() && open > 0) {
      const char c = text[(*pos)++];
      open += static_cast<int>(c == '{') - static_cast<int>(c == '}');
    }
    if (open > 0) return BadFormat("expected '}' before the end of the string");
    std::string_view field = text.substr(begin, *pos - 1 - begin);
    std::string_view name = field.substr(0, field.find_first_of("!:"));
    field.remove_prefix(name.size());
    char conversion = 0;
    if (field.starts_with("!")) {
      if (field.size() < 2 || (field.size() > 2 && field[2] != ':')) {
        return BadFormat("a bad conversion after '!'");
      }
      conversion = field[1];
      field.remove_prefix(2);
    }
    if (field.starts_with(":")) field.remove_prefix(1);
    KVIK_ASSIGN(JinjaValue value, Lookup(name));
    if (conversion == 'r' || conversion == 'a') {
      KVIK_ASSIGN(std::string repr, JinjaRepr(runtime_, value));
      value = JinjaValue::String(std::move(repr));
    } else if (conversion == 's') {
      KVIK_ASSIGN(std::string str, JinjaStr(runtime_, value));
      value = JinjaValue::String(std::move(str));
    } else if (conversion != 0) {
      return BadFormat("an unknown conversion");
    }
    KVIK_ASSIGN(const std::string spec, Format(field, depth - 1));
    return FormatValue(runtime_, value, spec);
  }

  // name is "", "0", "key", each followed by any of ".attribute" and "[item]".
  Result<JinjaValue> Lookup(std::string_view name) {
    const std::string_view first = name.substr(0, name.find_first_of(".["));
    std::string_view rest = name.substr(first.size());
    KVIK_ASSIGN(JinjaValue value, Argument(first));
    while (!rest.empty()) {
      if (rest[0] == '.') {
        const std::string_view attribute = rest.substr(1, rest.find_first_of(".[", 1) - 1);
        if (attribute.empty()) return BadFormat("an empty attribute");
        KVIK_ASSIGN(value, JinjaGetAttribute(runtime_, value, std::string(attribute)));
        rest.remove_prefix(1 + attribute.size());
      } else if (rest[0] == '[') {
        const size_t end = rest.find(']');
        if (end == std::string_view::npos || end == 1) return BadFormat("a bad index");
        const std::string_view key = rest.substr(1, end - 1);
        KVIK_ASSIGN(value, JinjaGetItem(runtime_, value, IndexKey(key)));
        rest.remove_prefix(end + 1);
      } else {
        return BadFormat("only '.' or '[' may follow ']'");
      }
    }
    return value;
  }

  static JinjaValue IndexKey(std::string_view key) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    const bool is_number = error == std::errc() && end == key.data() + key.size() && number >= 0;
    return is_number ? JinjaValue::Int(number) : JinjaValue::String(std::string(key));
  }

  Result<JinjaValue> Argument(std::string_view name) {
    const JinjaValue key = IndexKey(name);
    if (name.empty() || key.is_int()) {
      const bool automatic = name.empty();
      if (automatic ? manual_ : next_ > 0) {
        return BadFormat("automatic and manual field numbers do not mix");
      }
      manual_ = !automatic;
      const size_t index = automatic ? next_++ : static_cast<size_t>(key.integer());
      if (index >= args_.positional.size()) {
        return BadFormat("there is no argument number " + std::to_string(index));
      }
      return args_.positional[index];
    }
    for (const auto& [keyword, value] : args_.named) {
      if (keyword == name) return value;
    }
    return BadFormat("there is no argument '" + std::string(name) + "'");
  }

  JinjaRuntime& runtime_;
  const JinjaArgs& args_;
  size_t next_ = 0;
  bool manual_ = false;
};

// --- the % operator

class PercentFormatter {
 public:
  PercentFormatter(JinjaRuntime& runtime, const JinjaValue& values)
      : runtime_(runtime), values_(values) {}

  Result<std::string> Format(std::string_view text) {
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      const char c = text[pos++];
      if (!runtime_.Use(1)) return runtime_.Exhausted();
      if (c != '%') {
        out.push_back(c);
        continue;
      }
      KVIK_ASSIGN(const std::string field, Field(text, &pos));
      out += field;
    }
    if (values_.is_tuple() ? next_ < values_.items().size() : next_ == 0 && MustBeUsed()) {
      return BadFormat("not all arguments were converted");
    }
    return out;
  }

 private:
  // A single value that is no container has to appear in the text.
  [[nodiscard]] bool MustBeUsed() const {
    return !values_.is_dict() && !values_.is_list() && !values_.is_undefined();
  }

  Result<JinjaValue> NextValue() {
    if (values_.is_tuple()) {
      if (next_ >= values_.items().size()) return BadFormat("not enough arguments");
      return values_.items()[next_++];
    }
    if (next_ > 0) return BadFormat("not enough arguments");
    next_ = 1;
    return values_;
  }

  // A width or precision, where '*' takes it from the values.
  Result<int> Number(std::string_view text, size_t* pos, int most) {
    if (*pos >= text.size() || text[*pos] != '*') return ReadNumber(text, pos, most);
    ++*pos;
    KVIK_ASSIGN(const JinjaValue value, NextValue());
    KVIK_ASSIGN(const int64_t number, JinjaIndex(value, "*"));
    if (number < -most || number > most) return BadFormat("a width or precision is too large");
    return static_cast<int>(number);
  }

  Result<std::string> Field(std::string_view text, size_t* pos) {
    std::optional<JinjaValue> named;
    if (*pos < text.size() && text[*pos] == '(') {
      const size_t end = text.find(')', *pos);
      if (end == std::string_view::npos) return BadFormat("incomplete format key");
      if (!values_.is_dict()) return BadFormat("a format key needs a mapping");
      const std::string key(text.substr(*pos + 1, end - *pos - 1));
      const JinjaValue* found = values_.Find(key);
      if (found == nullptr) return BadFormat("there is no '" + key + "'");
      named = *found;
      *pos = end + 1;
    }
    Spec spec;
    bool left = false;
    bool zero = false;
    for (; *pos < text.size(); ++*pos) {
      const char flag = text[*pos];
      if (flag == '-') {
        left = true;
      } else if (flag == '0') {
        zero = true;
      } else if (flag == '+') {
        spec.sign = '+';
      } else if (flag == ' ') {
        if (spec.sign != '+') spec.sign = ' ';
      } else if (flag == '#') {
        spec.alternate = true;
      } else {
        break;
      }
    }
    KVIK_ASSIGN(int width, Number(text, pos, kMaxWidth));
    if (width < -1) {
      left = true;
      width = -width;
    }
    spec.width = std::max(width, 0);
    if (*pos < text.size() && text[*pos] == '.') {
      ++*pos;
      KVIK_ASSIGN(const int precision, Number(text, pos, kMaxPrecision));
      spec.precision = std::max(precision, 0);
    }
    while (*pos < text.size() &&
           std::string_view("hlL").find(text[*pos]) != std::string_view::npos) {
      ++*pos;
    }
    if (*pos >= text.size()) return BadFormat("incomplete format");
    spec.type = text[(*pos)++];
    if (spec.type == '%') return std::string("%");
    spec.align = left ? '<' : '>';
    if (!runtime_.Use(static_cast<uint64_t>(spec.width))) return runtime_.Exhausted();
    if (named) return Convert(*named, spec, zero && !left);
    KVIK_ASSIGN(const JinjaValue value, NextValue());
    return Convert(value, spec, zero && !left);
  }

  Result<std::string> Convert(const JinjaValue& value, Spec spec, bool zero) {
    switch (spec.type) {
      case 's': {
        KVIK_ASSIGN(const std::string str, JinjaStr(runtime_, value));
        return Pad(spec, "", Truncate(str, spec.precision), '>');
      }
      case 'r':
      case 'a': {
        KVIK_ASSIGN(const std::string repr, JinjaRepr(runtime_, value));
        return Pad(spec, "", Truncate(repr, spec.precision), '>');
      }
      case 'c':
        if (value.is_string() && CountCodePoints(value.text()) == 1) {
          return Pad(spec, "", value.text(), '>');
        }
        if (!IsIntegral(value)) return BadFormat("%c needs an int or one character");
        return FormatInt(AsInt(value), spec);
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return ConvertInt(value, spec, zero);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (value.is_undefined()) return JinjaUndefinedError(value);
        if (!IsIntegral(value) && !value.is_float()) return BadFormat("a float is needed");
        const double number =
            value.is_float() ? value.floating() : static_cast<double>(AsInt(value));
        if (spec.precision < 0) spec.precision = 6;
        if (zero) spec.fill = std::string(1, '0'), spec.align = '=';
        return FormatFloat(number, spec);
      }
      default:
        return BadFormat(std::string("unsupported format character '") + spec.type + "'");
    }
  }

  Result<std::string> ConvertInt(const JinjaValue& value, Spec spec, bool zero) {
    if (value.is_undefined()) return JinjaUndefinedError(value);
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    int64_t number = 0;
    if (IsIntegral(value)) {
      number = AsInt(value);
    } else if (value.is_float() && decimal && std::fabs(value.floating()) < 9.2e18) {
      number = static_cast<int64_t>(value.floating());
    } else {
      return BadFormat(std::string("%") + spec.type + " needs an integer, not '" +
                       JinjaTypeName(value) + "'");
    }
    if (decimal) spec.type = 'd';
    const uint64_t magnitude =
        number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    std::string digits = IntDigits(magnitude, spec.type, false);
    // A precision is the least number of digits.
    if (spec.precision > static_cast<int>(digits.size())) {
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    }
    if (zero) spec.fill = "0", spec.align = '=';
    std::string sign = SignText(number < 0, spec.sign);
    if (spec.alternate && !decimal) sign += IntDigits(0, spec.type, true).substr(0, 2);
    return Pad(spec, sign, digits, '>');
  }

  JinjaRuntime& runtime_;
  const JinjaValue& values_;
  size_t next_ = 0;
};

}  // namespace

Result<JinjaValue> JinjaFormatPercent(JinjaRuntime& runtime, const JinjaValue& format,
                                      const JinjaValue& values) {
  KVIK_ASSIGN(std::string text, PercentFormatter(runtime, values).Format(format.text()));
  return runtime.String(std::move(text));
}

Result<JinjaValue> JinjaFormatBraces(JinjaRuntime& runtime, std::string_view format,
                                     const JinjaArgs& args) {
  KVIK_ASSIGN(std::string text, BraceFormatter(runtime, args).Format(format, 2));
  return runtime.String(std::move(text));
}

}  // namespace kvik::text
