// SPDX-License-Identifier: Apache-2.0
// The methods of Python's str.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "text/jinja_args.h"
#include "text/jinja_format.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

constexpr int64_t kNoLimit = -1;

// The part of a string that the optional start and end arguments of find(), count(), startswith()
// select: bytes [begin, end), and the code points before `begin`.
struct Window {
  size_t begin = 0;
  size_t end = 0;
  size_t skipped = 0;
  bool valid = true;  // false if start lies beyond the end: then nothing is found, not even ""
};

Result<Window> WindowOf(JinjaRuntime& runtime, std::string_view text, const JinjaBoundArgs& args,
                        size_t first) {
  Window window;
  window.end = text.size();
  if (!runtime.Step(1 + text.size() / 64)) return runtime.Exhausted();
  const bool has_start = args.Has(first) && !args[first].is_none();
  const bool has_end = args.Has(first + 1) && !args[first + 1].is_none();
  if (!has_start && !has_end) return window;
  const auto length = static_cast<int64_t>(CountCodePoints(text));
  KVIK_ASSIGN(int64_t start, has_start ? JinjaIndex(args[first], "start") : Result<int64_t>(0));
  KVIK_ASSIGN(int64_t end, has_end ? JinjaIndex(args[first + 1], "end") : Result<int64_t>(length));
  if (start < 0) start = std::max<int64_t>(0, std::max(start, -length) + length);
  if (end < 0) end = std::max<int64_t>(0, std::max(end, -length) + length);
  end = std::min(end, length);
  if (start > end) {
    window.valid = false;
    return window;
  }
  window.skipped = static_cast<size_t>(start);
  window.begin = OffsetOfCodePoint(text, window.skipped);
  window.end = OffsetOfCodePoint(text, static_cast<size_t>(end));
  return window;
}

// --- searching

Result<std::optional<int64_t>> Locate(JinjaRuntime& runtime, const JinjaValue& self,
                                      const JinjaArgs& args, const char* name, bool from_right) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind(name, args, {"/sub", "/start", "/end"}, 1));
  KVIK_ASSIGN(const std::string part, bound.Text(0, ""));
  KVIK_ASSIGN(const Window window, WindowOf(runtime, self.text(), bound, 1));
  if (!window.valid) return std::optional<int64_t>();
  const std::string_view text =
      std::string_view(self.text()).substr(window.begin, window.end - window.begin);
  size_t at = 0;
  if (from_right) {
    KVIK_ASSIGN(at, JinjaFindLastBytes(runtime, text, part));
  } else {
    KVIK_ASSIGN(at, JinjaFindBytes(runtime, text, part, 0));
  }
  if (at == std::string_view::npos) return std::optional<int64_t>();
  return std::optional(static_cast<int64_t>(window.skipped + CountCodePoints(text.substr(0, at))));
}

Result<JinjaValue> Find(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const auto at, Locate(runtime, self, args, "find", false));
  return JinjaValue::Int(at.value_or(-1));
}

Result<JinjaValue> RFind(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const auto at, Locate(runtime, self, args, "rfind", true));
  return JinjaValue::Int(at.value_or(-1));
}

Result<JinjaValue> Index(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const auto at, Locate(runtime, self, args, "index", false));
  if (!at) return Err(ErrorCode::kInvalidInput, "substring not found");
  return JinjaValue::Int(*at);
}

Result<JinjaValue> RIndex(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const auto at, Locate(runtime, self, args, "rindex", true));
  if (!at) return Err(ErrorCode::kInvalidInput, "substring not found");
  return JinjaValue::Int(*at);
}

Result<JinjaValue> Count(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("count", args, {"/sub", "/start", "/end"}, 1));
  KVIK_ASSIGN(const std::string part, bound.Text(0, ""));
  KVIK_ASSIGN(const Window window, WindowOf(runtime, self.text(), bound, 1));
  if (!window.valid) return JinjaValue::Int(0);
  const std::string_view text =
      std::string_view(self.text()).substr(window.begin, window.end - window.begin);
  if (part.empty()) return JinjaValue::Int(static_cast<int64_t>(CountCodePoints(text)) + 1);
  int64_t count = 0;
  size_t from = 0;
  while (true) {
    KVIK_ASSIGN(const size_t at, JinjaFindBytes(runtime, text, part, from));
    if (at == std::string_view::npos) return JinjaValue::Int(count);
    ++count;
    from = at + part.size();
  }
}

// startswith() and endswith(): one string, or a tuple of which any may match.
Result<JinjaValue> HasAffix(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args,
                            const char* name, bool at_end) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind(name, args, {"/affix", "/start", "/end"}, 1));
  KVIK_ASSIGN(const Window window, WindowOf(runtime, self.text(), bound, 1));
  const JinjaValue& wanted = bound[0];
  const std::vector<JinjaValue> candidates =
      wanted.is_tuple() ? wanted.items() : std::vector<JinjaValue>{wanted};
  bool found = false;
  for (const JinjaValue& candidate : candidates) {
    if (!runtime.Step()) return runtime.Exhausted();
    if (candidate.is_undefined()) return JinjaUndefinedError(candidate);
    if (!candidate.is_string()) {
      return Err(ErrorCode::kInvalidInput, "%s() needs a string or a tuple of strings, not '%s'",
                 name, JinjaTypeName(candidate).c_str());
    }
    if (!window.valid || found) continue;
    const std::string_view text =
        std::string_view(self.text()).substr(window.begin, window.end - window.begin);
    found = at_end ? text.ends_with(candidate.text()) : text.starts_with(candidate.text());
  }
  return JinjaValue::Bool(found);
}

Result<JinjaValue> StartsWith(JinjaRuntime& runtime, const JinjaValue& self,
                              const JinjaArgs& args) {
  return HasAffix(runtime, self, args, "startswith", false);
}

Result<JinjaValue> EndsWith(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return HasAffix(runtime, self, args, "endswith", true);
}

// --- stripping and case

Result<JinjaValue> StripSides(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args,
                              const char* name, bool left, bool right) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind(name, args, {"/chars"}));
  if (!runtime.Step(self.weight())) return runtime.Exhausted();
  std::string chars;
  const bool has_chars = bound.Has(0) && !bound[0].is_none();
  if (has_chars) {
    KVIK_ASSIGN(chars, bound.Text(0, ""));
  }
  if (!runtime.Step(1 + chars.size() / 8)) return runtime.Exhausted();
  const std::string_view set = chars;
  return runtime.String(std::string(Strip(self.text(), has_chars ? &set : nullptr, left, right)));
}

Result<JinjaValue> StripBoth(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return StripSides(runtime, self, args, "strip", true, true);
}
Result<JinjaValue> StripLeft(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return StripSides(runtime, self, args, "lstrip", true, false);
}
Result<JinjaValue> StripRight(JinjaRuntime& runtime, const JinjaValue& self,
                              const JinjaArgs& args) {
  return StripSides(runtime, self, args, "rstrip", false, true);
}

// A method without arguments that maps the text.
template <std::string (*kMap)(std::string_view)>
Result<JinjaValue> MapText(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("a case method", args, {}));
  if (!runtime.Step(self.text().size() / 8) || !runtime.Use(4 * self.text().size())) {
    return runtime.Exhausted();
  }
  return runtime.String(kMap(self.text()));
}

// isalpha() and its like: true if there is a character and all satisfy the class.
template <bool (*kIs)(char32_t)>
Result<JinjaValue> AllAre(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("a character test", args, {}));
  if (!runtime.Step(self.text().size() / 8)) return runtime.Exhausted();
  const std::string& text = self.text();
  bool all = !text.empty();
  for (size_t pos = 0; all && pos < text.size();) all = kIs(NextCodePoint(text, &pos));
  return JinjaValue::Bool(all);
}

bool IsAlnum(char32_t c) { return IsAlpha(c) || IsDigit(c) || IsNumeric(c); }

Result<JinjaValue> AllAscii(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("isascii", args, {}));
  if (!runtime.Step(self.weight())) return runtime.Exhausted();
  return JinjaValue::Bool(IsAscii(self.text()));
}

Result<JinjaValue> AllPrintable(JinjaRuntime& runtime, const JinjaValue& self,
                                const JinjaArgs& args) {
  if (self.text().empty()) return JinjaValue::Bool(true);
  return AllAre<IsPrintable>(runtime, self, args);
}

Result<JinjaValue> IsIdentifier(JinjaRuntime& runtime, const JinjaValue& self,
                                const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("isidentifier", args, {}));
  if (!runtime.Step(self.text().size() / 8)) return runtime.Exhausted();
  const std::string& text = self.text();
  bool ok = !text.empty();
  for (size_t pos = 0; ok && pos < text.size();) {
    const bool first = pos == 0;
    const char32_t c = NextCodePoint(text, &pos);
    ok = first ? IsIdentifierStart(c) : IsIdentifierPart(c);
  }
  return JinjaValue::Bool(ok);
}

// islower() and isupper(): no cased character of the other case, and at least one of this.
template <bool (*kWanted)(char32_t), bool (*kOther)(char32_t)>
Result<JinjaValue> CasedAs(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("a case test", args, {}));
  if (!runtime.Step(self.text().size() / 8)) return runtime.Exhausted();
  const std::string& text = self.text();
  bool seen = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    if (kOther(c) || IsTitle(c)) return JinjaValue::Bool(false);
    seen = seen || kWanted(c);
  }
  return JinjaValue::Bool(seen);
}

Result<JinjaValue> TitleCased(JinjaRuntime& runtime, const JinjaValue& self,
                              const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("istitle", args, {}));
  if (!runtime.Step(self.text().size() / 8)) return runtime.Exhausted();
  const std::string& text = self.text();
  bool seen = false;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    const bool upper = IsUpper(c) || IsTitle(c);
    const bool lower = IsLower(c);
    if ((upper && in_word) || (lower && !in_word)) return JinjaValue::Bool(false);
    in_word = upper || lower;
    seen = seen || in_word;
  }
  return JinjaValue::Bool(seen);
}

// --- splitting and joining

Result<JinjaValue> SplitFrom(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args,
                             const char* name, bool from_right) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind(name, args, {"sep", "maxsplit"}));
  KVIK_ASSIGN(const int64_t limit, bound.Int(1, kNoLimit));
  if (!bound.Has(0) || bound[0].is_none()) {
    return JinjaSplit(runtime, self, nullptr, limit, from_right);
  }
  KVIK_ASSIGN(const std::string separator, bound.Text(0, ""));
  const std::string_view view = separator;
  return JinjaSplit(runtime, self, &view, limit, from_right);
}

Result<JinjaValue> Split(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return SplitFrom(runtime, self, args, "split", false);
}
Result<JinjaValue> RSplit(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return SplitFrom(runtime, self, args, "rsplit", true);
}

Result<JinjaValue> SplitLines(JinjaRuntime& runtime, const JinjaValue& self,
                              const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("splitlines", args, {"keepends"}));
  if (!runtime.Step(self.text().size() / 8)) return runtime.Exhausted();
  std::vector<JinjaValue> lines;
  for (const std::string_view line : JinjaSplitLines(self.text(), bound.Flag(0, false))) {
    KVIK_ASSIGN(JinjaValue value, runtime.String(std::string(line)));
    lines.push_back(std::move(value));
  }
  return runtime.List(std::move(lines));
}

Result<JinjaValue> PartitionAt(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args,
                               const char* name, bool from_right) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind(name, args, {"/sep"}, 1));
  KVIK_ASSIGN(const std::string separator, bound.Text(0, ""));
  if (separator.empty()) return Err(ErrorCode::kInvalidInput, "empty separator");
  const std::string& text = self.text();
  if (!runtime.Use(text.size())) return runtime.Exhausted();
  size_t at = 0;
  if (from_right) {
    KVIK_ASSIGN(at, JinjaFindLastBytes(runtime, text, separator));
  } else {
    KVIK_ASSIGN(at, JinjaFindBytes(runtime, text, separator, 0));
  }
  const JinjaValue empty = JinjaValue::String("");
  if (at == std::string::npos) {
    return from_right ? runtime.Tuple({empty, empty, self}) : runtime.Tuple({self, empty, empty});
  }
  return runtime.Tuple({JinjaValue::String(text.substr(0, at)), JinjaValue::String(separator),
                        JinjaValue::String(text.substr(at + separator.size()))});
}

Result<JinjaValue> Partition(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return PartitionAt(runtime, self, args, "partition", false);
}
Result<JinjaValue> RPartition(JinjaRuntime& runtime, const JinjaValue& self,
                              const JinjaArgs& args) {
  return PartitionAt(runtime, self, args, "rpartition", true);
}

Result<JinjaValue> Join(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("join", args, {"/iterable"}, 1));
  KVIK_ASSIGN(const std::vector<JinjaValue> items, JinjaCollect(runtime, bound[0]));
  return JinjaJoin(runtime, self.text(), items);
}

Result<JinjaValue> Replace(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("replace", args, {"/old", "/new", "/count"}, 2));
  KVIK_ASSIGN(const std::string old_part, bound.Text(0, ""));
  KVIK_ASSIGN(const std::string new_part, bound.Text(1, ""));
  KVIK_ASSIGN(const int64_t count, bound.Int(2, kNoLimit));
  KVIK_ASSIGN(std::string text, JinjaReplace(runtime, self.text(), old_part, new_part, count));
  return JinjaValue::String(std::move(text));
}

Result<JinjaValue> RemoveAffix(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args,
                               const char* name, bool at_end) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind(name, args, {"/affix"}, 1));
  KVIK_ASSIGN(const std::string affix, bound.Text(0, ""));
  const std::string_view text = self.text();
  if (at_end && text.ends_with(affix)) {
    return runtime.String(std::string(text.substr(0, text.size() - affix.size())));
  }
  if (!at_end && text.starts_with(affix)) {
    return runtime.String(std::string(text.substr(affix.size())));
  }
  return self;
}

Result<JinjaValue> RemovePrefix(JinjaRuntime& runtime, const JinjaValue& self,
                                const JinjaArgs& args) {
  return RemoveAffix(runtime, self, args, "removeprefix", false);
}
Result<JinjaValue> RemoveSuffix(JinjaRuntime& runtime, const JinjaValue& self,
                                const JinjaArgs& args) {
  return RemoveAffix(runtime, self, args, "removesuffix", true);
}

// --- padding

// Checks a width argument and one fill character; gives the number of characters to add.
struct Padding {
  std::string fill = " ";
  size_t count = 0;
};

Result<Padding> PaddingFor(JinjaRuntime& runtime, std::string_view text, int64_t width,
                           std::string_view fill) {
  if (CountCodePoints(fill) != 1) {
    return Err(ErrorCode::kInvalidInput, "the fill character must be exactly one character long");
  }
  if (!runtime.Step(1 + text.size() / 64)) return runtime.Exhausted();
  const auto length = static_cast<int64_t>(CountCodePoints(text));
  Padding padding{std::string(fill), width > length ? static_cast<size_t>(width - length) : 0};
  if (padding.count > runtime.limits().max_working_bytes / 8 ||
      !runtime.Use(text.size() + padding.count * fill.size())) {
    return Err(ErrorCode::kExhausted, "a padding is too wide");
  }
  return padding;
}

std::string Fill(const Padding& padding, size_t count) {
  if (padding.fill.size() == 1) return std::string(count, padding.fill[0]);
  std::string out;
  for (size_t i = 0; i < count; ++i) out += padding.fill;
  return out;
}

Result<JinjaValue> Justify(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args,
                           const char* name, bool left) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind(name, args, {"/width", "/fill"}, 1));
  KVIK_ASSIGN(const int64_t width, bound.Int(0, 0));
  KVIK_ASSIGN(const std::string fill, bound.Text(1, " "));
  KVIK_ASSIGN(const Padding padding, PaddingFor(runtime, self.text(), width, fill));
  const std::string pad = Fill(padding, padding.count);
  return JinjaValue::String(left ? self.text() + pad : pad + self.text());
}

Result<JinjaValue> LJust(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return Justify(runtime, self, args, "ljust", true);
}
Result<JinjaValue> RJust(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return Justify(runtime, self, args, "rjust", false);
}

Result<JinjaValue> Center(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("center", args, {"/width", "/fill"}, 1));
  KVIK_ASSIGN(const int64_t width, bound.Int(0, 0));
  KVIK_ASSIGN(const std::string fill, bound.Text(1, " "));
  KVIK_ASSIGN(std::string text, JinjaCenter(runtime, self.text(), width, fill));
  return JinjaValue::String(std::move(text));
}

Result<JinjaValue> ZFill(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("zfill", args, {"/width"}, 1));
  KVIK_ASSIGN(const int64_t width, bound.Int(0, 0));
  const std::string_view text = self.text();
  KVIK_ASSIGN(const Padding padding, PaddingFor(runtime, text, width, "0"));
  const bool sign = !text.empty() && (text[0] == '+' || text[0] == '-');
  return JinjaValue::String(std::string(text.substr(0, sign ? 1 : 0)) +
                            Fill(padding, padding.count) + std::string(text.substr(sign ? 1 : 0)));
}

Result<JinjaValue> ExpandTabs(JinjaRuntime& runtime, const JinjaValue& self,
                              const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("expandtabs", args, {"tabsize"}));
  KVIK_ASSIGN(const int64_t tab, bound.Int(0, 8));
  const std::string& text = self.text();
  if (!runtime.Step(text.size() / 8)) return runtime.Exhausted();
  std::string out;
  int64_t column = 0;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    if (c != '\t') {
      AppendUtf8(c, &out);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    } else if (tab > 0) {
      const int64_t spaces = tab - column % tab;
      if (!runtime.Use(static_cast<uint64_t>(spaces))) return runtime.Exhausted();
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    }
  }
  return runtime.String(std::move(out));
}

Result<JinjaValue> Format(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  return JinjaFormatBraces(runtime, self.text(), args);
}

Result<JinjaValue> FormatMap(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("format_map", args, {"/map"}, 1));
  if (!bound[0].is_dict()) {
    return Err(ErrorCode::kInvalidInput, "format_map() needs a dict, not '%s'",
               JinjaTypeName(bound[0]).c_str());
  }
  JinjaArgs named;
  for (const auto& [key, value] : bound[0].dict().entries()) {
    if (key.is_string()) named.named.emplace_back(key.text(), value);
  }
  return JinjaFormatBraces(runtime, self.text(), named);
}

struct NamedMethod {
  std::string_view name;
  JinjaMethod method;
};

// Sorted by name.
constexpr NamedMethod kMethods[] = {
    {"capitalize", MapText<Capitalize>},
    {"casefold", MapText<CaseFold>},
    {"center", Center},
    {"count", Count},
    {"endswith", EndsWith},
    {"expandtabs", ExpandTabs},
    {"find", Find},
    {"format", Format},
    {"format_map", FormatMap},
    {"index", Index},
    {"isalnum", AllAre<IsAlnum>},
    {"isalpha", AllAre<IsAlpha>},
    {"isascii", AllAscii},
    {"isdecimal", AllAre<IsDecimal>},
    {"isdigit", AllAre<IsDigit>},
    {"isidentifier", IsIdentifier},
    {"islower", CasedAs<IsLower, IsUpper>},
    {"isnumeric", AllAre<IsNumeric>},
    {"isprintable", AllPrintable},
    {"isspace", AllAre<IsSpace>},
    {"istitle", TitleCased},
    {"isupper", CasedAs<IsUpper, IsLower>},
    {"join", Join},
    {"ljust", LJust},
    {"lower", MapText<ToLower>},
    {"lstrip", StripLeft},
    {"partition", Partition},
    {"removeprefix", RemovePrefix},
    {"removesuffix", RemoveSuffix},
    {"replace", Replace},
    {"rfind", RFind},
    {"rindex", RIndex},
    {"rjust", RJust},
    {"rpartition", RPartition},
    {"rsplit", RSplit},
    {"rstrip", StripRight},
    {"split", Split},
    {"splitlines", SplitLines},
    {"startswith", StartsWith},
    {"strip", StripBoth},
    {"swapcase", MapText<SwapCase>},
    {"title", MapText<ToTitle>},
    {"upper", MapText<ToUpper>},
    {"zfill", ZFill},
};

// The pieces of a split, as [begin, end) in `text`, from left to right.
using Pieces = std::vector<std::string_view>;

Pieces SplitAtSpace(std::string_view text, int64_t limit, bool from_right) {
  Pieces pieces;
  std::string_view rest = Strip(text, nullptr, !from_right, from_right);
  while (!rest.empty()) {
    if (limit >= 0 && static_cast<int64_t>(pieces.size()) >= limit) {
      pieces.push_back(rest);
      break;
    }
    if (from_right) {
      size_t begin = rest.size();
      while (begin > 0) {
        size_t start = begin;
        if (IsSpace(PreviousCodePoint(rest, &start))) break;
        begin = start;
      }
      pieces.push_back(rest.substr(begin));
      rest = Strip(rest.substr(0, begin), nullptr, false, true);
    } else {
      size_t end = 0;
      while (end < rest.size()) {
        size_t next = end;
        if (IsSpace(NextCodePoint(rest, &next))) break;
        end = next;
      }
      pieces.push_back(rest.substr(0, end));
      rest = Strip(rest.substr(end), nullptr, true, false);
    }
  }
  if (from_right) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

Result<Pieces> SplitAt(JinjaRuntime& runtime, std::string_view text, std::string_view separator,
                       int64_t limit, bool from_right) {
  Pieces pieces;
  std::string_view rest = text;
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    size_t at = 0;
    if (from_right) {
      KVIK_ASSIGN(at, JinjaFindLastBytes(runtime, rest, separator));
    } else {
      KVIK_ASSIGN(at, JinjaFindBytes(runtime, rest, separator, 0));
    }
    if (at == std::string_view::npos) break;
    pieces.push_back(from_right ? rest.substr(at + separator.size()) : rest.substr(0, at));
    rest = from_right ? rest.substr(0, at) : rest.substr(at + separator.size());
  }
  pieces.push_back(rest);
  if (from_right) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

}  // namespace

JinjaMethod FindJinjaStringMethod(std::string_view name) {
  const auto* it =
      std::lower_bound(std::begin(kMethods), std::end(kMethods), name,
                       [](const NamedMethod& entry, std::string_view n) { return entry.name < n; });
  return it != std::end(kMethods) && it->name == name ? it->method : nullptr;
}

Result<JinjaValue> JinjaSplit(JinjaRuntime& runtime, const JinjaValue& text,
                              const std::string_view* separator, int64_t limit, bool from_right) {
  Pieces pieces;
  if (separator == nullptr) {
    if (!runtime.Step(1 + text.text().size() / 8)) return runtime.Exhausted();
    pieces = SplitAtSpace(text.text(), limit, from_right);
  } else {
    if (separator->empty()) return Err(ErrorCode::kInvalidInput, "empty separator");
    KVIK_ASSIGN(pieces, SplitAt(runtime, text.text(), *separator, limit, from_right));
  }
  std::vector<JinjaValue> items;
  items.reserve(pieces.size());
  for (const std::string_view piece : pieces) {
    KVIK_ASSIGN(JinjaValue item, runtime.String(std::string(piece)));
    items.push_back(std::move(item));
  }
  return runtime.List(std::move(items));
}

std::vector<std::string_view> JinjaSplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = NextCodePoint(text, &pos);
    const bool breaks =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

Result<std::string> JinjaReplace(JinjaRuntime& runtime, std::string_view text,
                                 std::string_view old_part, std::string_view new_part,
                                 int64_t count) {
  std::string out;
  const auto append = [&](std::string_view part) {
    if (!runtime.Use(part.size())) return false;
    out.append(part);
    return true;
  };
  uint64_t left = count < 0 ? std::numeric_limits<uint64_t>::max() : static_cast<uint64_t>(count);
  size_t from = 0;
  if (old_part.empty()) {  // before every character and at the end
    while (left > 0) {
      if (!append(new_part) || !runtime.Step()) return runtime.Exhausted();
      --left;
      if (from == text.size()) break;
      size_t next = from;
      NextCodePoint(text, &next);
      if (!append(text.substr(from, next - from))) return runtime.Exhausted();
      from = next;
    }
  } else {
    while (left > 0) {
      KVIK_ASSIGN(const size_t at, JinjaFindBytes(runtime, text, old_part, from));
      if (at == std::string_view::npos) break;
      if (!append(text.substr(from, at - from)) || !append(new_part)) return runtime.Exhausted();
      from = at + old_part.size();
      --left;
    }
  }
  if (!append(text.substr(from))) return runtime.Exhausted();
  return out;
}

Result<JinjaValue> JinjaJoin(JinjaRuntime& runtime, std::string_view separator,
                             const std::vector<JinjaValue>& items) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) {
      return Err(ErrorCode::kInvalidInput, "join(): item %zu is '%s', not a string", i,
                 JinjaTypeName(items[i]).c_str());
    }
    if (!runtime.Step() || !runtime.Use(separator.size() + items[i].text().size())) {
      return runtime.Exhausted();
    }
    if (i > 0) out.append(separator);
    out.append(items[i].text());
  }
  return JinjaValue::String(std::move(out));
}

Result<std::string> JinjaCenter(JinjaRuntime& runtime, std::string_view text, int64_t width,
                                std::string_view fill) {
  KVIK_ASSIGN(const Padding padding, PaddingFor(runtime, text, width, fill));
  // CPython's rule for the odd character: to the left if the width is odd.
  const size_t left = padding.count / 2 + (padding.count & static_cast<size_t>(width) & 1);
  return Fill(padding, left) + std::string(text) + Fill(padding, padding.count - left);
}

Result<size_t> JinjaFindBytes(JinjaRuntime& runtime, std::string_view text, std::string_view part,
                              size_t from) {
  if (part.empty()) return from;
  // memmem is linear for long needles and at worst needle-times-text for those up to 256 bytes.
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  const size_t at = found == nullptr
                        ? std::string_view::npos
                        : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  const size_t walked = (found == nullptr ? text.size() : at) - from;
  if (!runtime.Step(1 + walked * std::min<size_t>(part.size(), 256) / 512)) {
    return runtime.Exhausted();
  }
  return at;
}

Result<size_t> JinjaFindLastBytes(JinjaRuntime& runtime, std::string_view text,
                                  std::string_view part) {
  // Each place may cost a comparison of the whole part: with a long part that is paid in advance.
  const bool paid = part.size() > 256;
  if (paid && !runtime.Step(text.size() / 1024 * part.size())) return runtime.Exhausted();
  const size_t at = text.rfind(part);
  const size_t walked = at == std::string_view::npos ? text.size() : text.size() - at;
  if (!runtime.Step(1 + (paid ? 0 : walked * part.size() / 512))) return runtime.Exhausted();
  return at;
}

}  // namespace kvik::text
