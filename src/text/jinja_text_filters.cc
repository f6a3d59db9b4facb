// SPDX-License-Identifier: Apache-2.0
// Filters on text and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_format.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

// The value as text, as most text filters take it.
Result<std::string> SoftText(JinjaRuntime& runtime, const JinjaValue& value) {
  if (!runtime.Step(1 + (value.is_string() ? value.text().size() / 16 : 0))) {
    return runtime.Exhausted();
  }
  return JinjaStr(runtime, value);
}

// The result of a method of str, called without arguments on str(value).
template <std::string (*kMap)(std::string_view)>
Result<JinjaValue> MapText(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("a case filter", args, {}));
  KVIK_ASSIGN(const std::string text, SoftText(runtime, value));
  if (!runtime.Use(4 * text.size())) return runtime.Exhausted();
  return runtime.String(kMap(text));
}

// Words start in upper case and go on in lower case; a word ends at white space or one of -({[<.
std::string TitleWords(std::string_view text) {
  const auto separates = [](char32_t c) {
    return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    size_t first_end = begin;
    const bool separator = separates(NextCodePoint(text, &first_end));
    size_t end = first_end;
    while (end < text.size()) {
      size_t next = end;
      if (separates(NextCodePoint(text, &next)) != separator) break;
      end = next;
    }
    out += ToUpper(text.substr(begin, first_end - begin));
    out += ToLower(text.substr(first_end, end - first_end));
    begin = end;
  }
  return out;
}

Result<JinjaValue> Trim(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("trim", args, {"chars"}));
  KVIK_ASSIGN(const std::string text, SoftText(runtime, value));
  if (!bound.Has(0) || bound[0].is_none()) {
    return runtime.String(std::string(Strip(text, nullptr, true, true)));
  }
  KVIK_ASSIGN(const std::string chars, bound.Text(0, ""));
  if (!runtime.Step(1 + chars.size() / 8)) return runtime.Exhausted();
  const std::string_view set = chars;
  return runtime.String(std::string(Strip(text, &set, true, true)));
}

Result<JinjaValue> String(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("string", args, {}));
  if (value.is_string()) return value;
  KVIK_ASSIGN(std::string text, JinjaStr(runtime, value));
  return JinjaValue::String(std::move(text));
}

Result<JinjaValue> Safe(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("safe", args, {}));
  KVIK_ASSIGN(std::string text, SoftText(runtime, value));
  return JinjaValue::Markup(std::move(text));
}

Result<JinjaValue> ForceEscape(JinjaRuntime& runtime, const JinjaValue& value,
                               const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("escape", args, {}));
  KVIK_ASSIGN(const std::string text, SoftText(runtime, value));
  if (!runtime.Use(6 * text.size())) return runtime.Exhausted();
  return JinjaValue::Markup(JinjaEscapeHtml(text));
}

Result<JinjaValue> Escape(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  if (value.is_markup()) return value;
  return ForceEscape(runtime, value, args);
}

Result<JinjaValue> Replace(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("replace", args, {"old", "new", "count"}, 2));
  KVIK_ASSIGN(const std::string text, SoftText(runtime, value));
  KVIK_ASSIGN(const std::string old_part, JinjaStr(runtime, bound[0]));
  KVIK_ASSIGN(const std::string new_part, JinjaStr(runtime, bound[1]));
  int64_t count = -1;
  if (bound.Has(2) && !bound[2].is_none()) {
    KVIK_ASSIGN(count, bound.Int(2, -1));
  }
  KVIK_ASSIGN(std::string out, JinjaReplace(runtime, text, old_part, new_part, count));
  return JinjaValue::String(std::move(out));
}

Result<JinjaValue> Indent(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("indent", args, {"width", "first", "blank"}));
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (!value.is_string()) {
    return Err(ErrorCode::kInvalidInput, "indent: a string is needed, not '%s'",
               JinjaTypeName(value).c_str());
  }
  std::string margin;
  if (bound.Has(0) && bound[0].is_string()) {
    margin = bound[0].text();
  } else {
    KVIK_ASSIGN(const int64_t width, bound.Int(0, 4));
    if (width > 0 && !runtime.Use(static_cast<uint64_t>(width))) return runtime.Exhausted();
    margin.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool first = bound.Flag(1, false);
  const bool blank = bound.Flag(2, false);
  if (!runtime.Step(1 + value.text().size() / 16)) return runtime.Exhausted();
  const std::string text = value.text() + "\n";
  std::string out;
  const std::vector<std::string_view> lines = JinjaSplitLines(text, false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!runtime.Use(lines[i].size() + margin.size() + 1)) return runtime.Exhausted();
    if (i > 0) out += '\n';
    if (i == 0 ? first : blank || !lines[i].empty()) out += margin;
    out += lines[i];
  }
  return value.is_markup() ? JinjaValue::Markup(std::move(out))
                           : JinjaValue::String(std::move(out));
}

Result<JinjaValue> Format(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    return Err(ErrorCode::kInvalidInput, "format: positional and named arguments do not mix");
  }
  KVIK_ASSIGN(std::string text, SoftText(runtime, value));
  const JinjaValue format = JinjaValue::String(std::move(text));
  if (args.named.empty()) {
    KVIK_ASSIGN(const JinjaValue values, runtime.Tuple(args.positional));
    return JinjaFormatPercent(runtime, format, values);
  }
  JinjaDict dict;
  for (const auto& [name, argument] : args.named) dict.Set(name, argument);
  KVIK_ASSIGN(const JinjaValue values, runtime.Dict(std::move(dict)));
  return JinjaFormatPercent(runtime, format, values);
}

Result<JinjaValue> Center(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("center", args, {"width"}));
  KVIK_ASSIGN(const std::string text, SoftText(runtime, value));
  KVIK_ASSIGN(const int64_t width, bound.Int(0, 80));
  KVIK_ASSIGN(std::string out, JinjaCenter(runtime, text, width, " "));
  return JinjaValue::String(std::move(out));
}

Result<JinjaValue> Truncate(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("truncate", args, {"length", "killwords", "end", "leeway"}));
  KVIK_ASSIGN(const int64_t length, bound.Int(0, 255));
  KVIK_ASSIGN(const std::string end, bound.Text(2, "..."));
  int64_t leeway = 5;
  if (bound.Has(3) && !bound[3].is_none()) {
    KVIK_ASSIGN(leeway, bound.Int(3, 5));
  }
  const auto end_length = static_cast<int64_t>(CountCodePoints(end));
  if (length < end_length || leeway < 0) {
    return Err(ErrorCode::kInvalidInput,
               "truncate: the length is below that of the end, or a "
               "negative leeway");
  }
  KVIK_ASSIGN(const size_t measured, JinjaLength(runtime, value));
  const auto size = static_cast<int64_t>(measured);
  if (size <= length || size - length <= leeway) return value;
  if (!value.is_string()) {
    return Err(ErrorCode::kInvalidInput, "truncate: a string is needed, not '%s'",
               JinjaTypeName(value).c_str());
  }
  const std::string& text = value.text();
  if (!runtime.Use(text.size() + end.size())) return runtime.Exhausted();
  std::string out =
      text.substr(0, OffsetOfCodePoint(text, static_cast<size_t>(length - end_length)));
  if (!bound.Flag(1, false)) out = out.substr(0, out.rfind(' '));
  return JinjaValue::String(out + end);
}

Result<JinjaValue> WordCount(JinjaRuntime& runtime, const JinjaValue& value,
                             const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("wordcount", args, {}));
  KVIK_ASSIGN(const std::string text, SoftText(runtime, value));
  int64_t count = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    const bool word = c == '_' || IsAlpha(c) || IsNumeric(c);
    count += static_cast<int64_t>(word && !in_word);
    in_word = word;
  }
  return JinjaValue::Int(count);
}

// Percent-encodes all but letters, digits, "_.-~" and what `also_safe` lists.
std::string UrlQuote(std::string_view text, bool query) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (alnum || c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query)) {
      out.push_back(c);
    } else if (c == ' ' && query) {
      out.push_back('+');
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out.push_back('%');
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    }
  }
  return out;
}

Result<JinjaValue> UrlEncode(JinjaRuntime& runtime, const JinjaValue& value,
                             const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("urlencode", args, {}));
  if (value.is_string() || !JinjaIsIterable(value)) {
    KVIK_ASSIGN(const std::string text, SoftText(runtime, value));
    if (!runtime.Use(3 * text.size())) return runtime.Exhausted();
    return JinjaValue::String(UrlQuote(text, false));
  }
  std::vector<JinjaValue> pairs;
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().entries()) {
      KVIK_ASSIGN(JinjaValue pair, runtime.Tuple({key, item}));
      pairs.push_back(std::move(pair));
    }
  } else {
    KVIK_ASSIGN(pairs, JinjaCollect(runtime, value));
  }
  std::string out;
  for (const JinjaValue& pair : pairs) {
    KVIK_ASSIGN(const std::vector<JinjaValue> parts, JinjaCollect(runtime, pair));
    if (parts.size() != 2) return Err(ErrorCode::kInvalidInput, "urlencode: pairs are needed");
    KVIK_ASSIGN(const std::string key, JinjaStr(runtime, parts[0]));
    KVIK_ASSIGN(const std::string item, JinjaStr(runtime, parts[1]));
    if (!runtime.Use(3 * (key.size() + item.size()))) return runtime.Exhausted();
    if (!out.empty()) out += '&';
    out += UrlQuote(key, true) + "=" + UrlQuote(item, true);
  }
  return runtime.String(std::move(out));
}

Result<JinjaValue> ToJson(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(
      const JinjaBoundArgs bound,
      JinjaBoundArgs::Bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JinjaJsonOptions options;
  options.ensure_ascii = bound.Flag(0, false);
  options.sort_keys = bound.Flag(3, false);
  if (bound.Has(1) && !bound[1].is_none()) {
    options.item_separator = ",";
    if (bound[1].is_string()) {
      options.indent = bound[1].text();
    } else {
      KVIK_ASSIGN(const int64_t width, bound.Int(1, 0));
      if (width > 0 && !runtime.Use(static_cast<uint64_t>(width))) return runtime.Exhausted();
      options.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (bound.Has(2) && !bound[2].is_none()) {
    KVIK_ASSIGN(const std::vector<JinjaValue> parts, JinjaCollect(runtime, bound[2]));
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) {
      return Err(ErrorCode::kInvalidInput, "tojson: separators are two strings");
    }
    options.item_separator = parts[0].text();
    options.key_separator = parts[1].text();
  }
  KVIK_ASSIGN(std::string json, JinjaToJson(runtime, value, options));
  return JinjaValue::String(std::move(json));
}

// --- numbers

bool IsIntegral(const JinjaValue& v) { return v.is_int() || v.is_bool(); }
int64_t AsInt(const JinjaValue& v) { return v.is_bool() ? int64_t{v.boolean()} : v.integer(); }

// Removes single underscores between digits; false if there are others.
bool DropUnderscores(std::string* text) {
  std::string out;
  for (size_t i = 0; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c != '_') {
      out.push_back(c);
      continue;
    }
    const auto alnum = [](char d) {
      return (d >= '0' && d <= '9') || (d >= 'a' && d <= 'z') || (d >= 'A' && d <= 'Z');
    };
    if (i == 0 || i + 1 == text->size() || !alnum((*text)[i - 1]) || !alnum((*text)[i + 1])) {
      return false;
    }
  }
  *text = out;
  return true;
}

Error TooLarge() { return Err(ErrorCode::kInvalidInput, "an integer does not fit 64 bits"); }

// int(text, base); nullopt where Python raises ValueError.
Result<std::optional<int64_t>> ParseInt(std::string_view text, int64_t base) {
  const std::optional<int64_t> invalid;
  if (base != 0 && (base < 2 || base > 36)) return invalid;
  std::string digits(Strip(text, nullptr, true, true));
  bool negative = false;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    negative = digits[0] == '-';
    digits.erase(0, 1);
  }
  if (digits.size() > 1 && digits[0] == '0') {
    const char kind = static_cast<char>(digits[1] | 0x20);
    const int64_t prefixed = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (prefixed != 0 && (base == 0 || base == prefixed)) {
      base = prefixed;
      digits.erase(0, digits.size() > 2 && digits[2] == '_' ? 3 : 2);
    } else if (base == 0 && digits.find_first_not_of("0_") != std::string::npos) {
      return invalid;  // 010 is no integer literal
    }
  }
  if (base == 0) base = 10;
  if (!DropUnderscores(&digits) || digits.empty()) return invalid;
  if (negative) digits.insert(0, 1, '-');
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) return invalid;
  if (negative && digits.size() > 1 && digits[1] == '-') return invalid;
  if (error != std::errc()) return TooLarge();
  return std::optional(value);
}

// float(text); nullopt where Python raises ValueError.
std::optional<double> ParseFloat(std::string_view text) {
  std::string digits(Strip(text, nullptr, true, true));
  if (!DropUnderscores(&digits)) return std::nullopt;
  bool negative = false;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    negative = digits[0] == '-';
    digits.erase(0, 1);
  }
  const std::string lower = ToLower(digits);
  double value = 0;
  if (lower == "inf" || lower == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (lower == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (digits.empty() || !((digits[0] >= '0' && digits[0] <= '9') || digits[0] == '.')) {
      return std::nullopt;
    }
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) {
      return std::nullopt;
    }
    // Out of range means too large or too small: the exponent's sign tells.
    if (error == std::errc::result_out_of_range) {
      const size_t e = lower.find('e');
      const bool tiny = e != std::string::npos && e + 1 < lower.size() && lower[e + 1] == '-';
      value = tiny ? 0 : std::numeric_limits<double>::infinity();
    }
  }
  return negative ? -value : value;
}

// float(value) for any value; nullopt where Python raises TypeError or ValueError.
Result<std::optional<double>> ToFloat(const JinjaValue& value) {
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (value.is_float()) return std::optional(value.floating());
  if (IsIntegral(value)) return std::optional(static_cast<double>(AsInt(value)));
  if (value.is_string()) return ParseFloat(value.text());
  return std::optional<double>();
}

Result<JinjaValue> Int(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("int", args, {"default", "base"}));
  const JinjaValue fallback = bound.Or(0, JinjaValue::Int(0));
  if (!runtime.Step(value.is_string() ? value.weight() : 1)) return runtime.Exhausted();
  if (IsIntegral(value)) return JinjaValue::Int(AsInt(value));
  if (value.is_string()) {
    KVIK_ASSIGN(const int64_t base, bound.Int(1, 10));
    KVIK_ASSIGN(const std::optional<int64_t> parsed, ParseInt(value.text(), base));
    if (parsed) return JinjaValue::Int(*parsed);
  }
  KVIK_ASSIGN(const std::optional<double> number, ToFloat(value));
  if (!number || std::isnan(*number)) return fallback;
  if (std::isinf(*number)) {
    if (value.is_string()) return fallback;
    return Err(ErrorCode::kInvalidInput, "cannot convert infinity to an integer");
  }
  if (std::fabs(*number) >= 9223372036854775808.0) return TooLarge();
  return JinjaValue::Int(static_cast<int64_t>(*number));
}

Result<JinjaValue> Float(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("float", args, {"default"}));
  if (!runtime.Step(value.is_string() ? value.weight() : 1)) return runtime.Exhausted();
  KVIK_ASSIGN(const std::optional<double> number, ToFloat(value));
  return number ? JinjaValue::Float(*number) : bound.Or(0, JinjaValue::Float(0));
}

Result<JinjaValue> Abs(JinjaRuntime& /*runtime*/, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("abs", args, {}));
  if (value.is_float()) return JinjaValue::Float(std::fabs(value.floating()));
  if (IsIntegral(value) && AsInt(value) >= 0) return JinjaValue::Int(AsInt(value));
  return JinjaNegate(value);
}

// Rounds to `precision` decimals, ties to even, from the exact binary value.
double RoundFloat(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 323) return value;
  if (precision < -308) return std::copysign(0.0, value);
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / scale) * scale;
  }
  char buffer[1024];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed,
                                 static_cast<int>(precision))
                       .ptr;
  double rounded = value;
  std::from_chars(buffer, end, rounded);
  return rounded;
}

Result<JinjaValue> Round(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("round", args, {"precision", "method"}));
  KVIK_ASSIGN(const int64_t precision, bound.Int(0, 0));
  KVIK_ASSIGN(const std::string method, bound.Text(1, "common"));
  if (method != "common" && method != "ceil" && method != "floor") {
    return Err(ErrorCode::kInvalidInput, "round: the method is common, ceil or floor");
  }
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (!IsIntegral(value) && !value.is_float()) {
    return Err(ErrorCode::kInvalidInput, "round: a number is needed, not '%s'",
               JinjaTypeName(value).c_str());
  }
  if (method == "common") {
    if (value.is_float()) return JinjaValue::Float(RoundFloat(value.floating(), precision));
    if (precision >= 0) return JinjaValue::Int(AsInt(value));
    return JinjaValue::Int(
        static_cast<int64_t>(RoundFloat(static_cast<double>(AsInt(value)), precision)));
  }
  const double number = value.is_float() ? value.floating() : static_cast<double>(AsInt(value));
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = number * scale;
  if (!std::isfinite(scaled) || scale == 0) {
    return Err(ErrorCode::kInvalidInput, "round: the number is too large");
  }
  (void)runtime;
  return JinjaValue::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Result<JinjaValue> FileSizeFormat(JinjaRuntime& runtime, const JinjaValue& value,
                                  const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("filesizeformat", args, {"binary"}));
  KVIK_ASSIGN(const std::optional<double> number, ToFloat(value));
  if (!number || !std::isfinite(*number)) {
    return Err(ErrorCode::kInvalidInput, "filesizeformat: a finite number is needed");
  }
  const bool binary = bound.Flag(0, false);
  const double base = binary ? 1024 : 1000;
  if (*number == 1) return JinjaValue::String("1 Byte");
  if (*number < base) {
    return JinjaValue::String(std::to_string(static_cast<int64_t>(*number)) + " Bytes");
  }
  static constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  while (i + 1 < kPrefixes.size() && *number >= unit * base) {
    unit *= base;
    ++i;
  }
  KVIK_ASSIGN(const JinjaValue text, JinjaFormatPercent(runtime, JinjaValue::String("%.1f "),
                                                        JinjaValue::Float(*number / unit)));
  const std::string prefix = binary && i == 0 ? "K" : std::string(1, kPrefixes[i]);
  return JinjaValue::String(text.text() + prefix + (binary ? "iB" : "B"));
}

// Sorted by name.
constexpr JinjaNamedFilter kFilters[] = {
    {"abs", Abs},
    {"capitalize", MapText<Capitalize>},
    {"center", Center},
    {"e", Escape},
    {"escape", Escape},
    {"filesizeformat", FileSizeFormat},
    {"float", Float},
    {"forceescape", ForceEscape},
    {"format", Format},
    {"indent", Indent},
    {"int", Int},
    {"lower", MapText<ToLower>},
    {"replace", Replace},
    {"round", Round},
    {"safe", Safe},
    {"string", String},
    {"title", MapText<TitleWords>},
    {"tojson", ToJson},
    {"trim", Trim},
    {"truncate", Truncate},
    {"upper", MapText<ToUpper>},
    {"urlencode", UrlEncode},
    {"wordcount", WordCount},
};

}  // namespace

JinjaFilter FindJinjaTextFilter(std::string_view name) {
  const auto* it = std::lower_bound(
      std::begin(kFilters), std::end(kFilters), name,
      [](const JinjaNamedFilter& entry, std::string_view n) { return entry.name < n; });
  return it != std::end(kFilters) && it->name == name ? it->filter : nullptr;
}

}  // namespace kvik::text
