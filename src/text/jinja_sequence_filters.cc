// SPDX-License-Identifier: Apache-2.0
// Filters on sequences and mappings.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

// Looks up an attribute path like "function.name" or "0.text", the `attribute` argument of many
// filters. None stands for the value itself.
class AttributeGetter {
 public:
  static Result<AttributeGetter> Make(const JinjaValue& attribute, JinjaValue fallback = {}) {
    AttributeGetter getter;
    getter.fallback_ = std::move(fallback);
    if (attribute.is_none()) return getter;
    if (attribute.is_undefined()) return JinjaUndefinedError(attribute);
    if (!attribute.is_string()) {
      getter.path_.push_back(attribute);
      return getter;
    }
    std::string_view rest = attribute.text();
    while (true) {
      const size_t dot = rest.find('.');
      getter.path_.push_back(Part(rest.substr(0, dot)));
      if (dot == std::string_view::npos) return getter;
      rest.remove_prefix(dot + 1);
    }
  }

  Result<JinjaValue> Get(JinjaRuntime& runtime, JinjaValue item) const {
    for (const JinjaValue& part : path_) {
      if (!runtime.Step()) return runtime.Exhausted();
      KVIK_ASSIGN(item, JinjaGetItem(runtime, item, part));
      if (item.is_undefined() && !fallback_.is_none()) item = fallback_;
    }
    return item;
  }

 private:
  static JinjaValue Part(std::string_view text) {
    int64_t index = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    const bool number =
        !text.empty() && text[0] != '-' && error == std::errc() && end == text.data() + text.size();
    return number ? JinjaValue::Int(index) : JinjaValue::String(std::string(text));
  }

  std::vector<JinjaValue> path_;
  JinjaValue fallback_;
};

// What sorting and comparing without case looks at.
Result<JinjaValue> FoldCase(JinjaRuntime& runtime, const JinjaValue& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  if (!runtime.Step(1 + value.text().size() / 8)) return runtime.Exhausted();
  return runtime.String(ToLower(value.text()));
}

Result<JinjaValue> Length(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("length", args, {}));
  KVIK_ASSIGN(const size_t length, JinjaLength(runtime, value));
  return JinjaValue::Int(static_cast<int64_t>(length));
}

Result<JinjaValue> Default(JinjaRuntime& /*runtime*/, const JinjaValue& value,
                           const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("default", args, {"default_value", "boolean"}));
  if (value.is_undefined() || (bound.Flag(1, false) && !JinjaTruth(value))) {
    return bound.Or(0, JinjaValue::String(""));
  }
  return value;
}

Result<JinjaValue> First(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("first", args, {}));
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
  KVIK_ASSIGN(const std::optional<JinjaValue> first, cursor.Next(runtime));
  return first ? *first : JinjaValue::Undefined("No first item, sequence was empty.");
}

// The items of what reversed() takes, which generators are not.
Result<std::vector<JinjaValue>> Reversible(JinjaRuntime& runtime, const JinjaValue& value) {
  if (value.is_object() && dynamic_cast<JinjaIterator*>(&value.object()) != nullptr) {
    return Err(ErrorCode::kInvalidInput, "'%s' object is not reversible",
               JinjaTypeName(value).c_str());
  }
  return JinjaCollect(runtime, value);
}

Result<JinjaValue> Last(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("last", args, {}));
  const JinjaValue nothing = JinjaValue::Undefined("No last item, sequence was empty.");
  if (value.is_list() || value.is_tuple()) {
    return value.items().empty() ? nothing : value.items().back();
  }
  KVIK_ASSIGN(const std::vector<JinjaValue> items, Reversible(runtime, value));
  return items.empty() ? nothing : items.back();
}

Result<JinjaValue> Reverse(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("reverse", args, {}));
  if (value.is_string()) {
    return JinjaSlice(runtime, value, JinjaValue(), JinjaValue(), JinjaValue::Int(-1));
  }
  const bool one_way =
      value.is_object() && dynamic_cast<JinjaIterator*>(&value.object()) != nullptr;
  KVIK_ASSIGN(std::vector<JinjaValue> items, JinjaCollect(runtime, value));
  std::reverse(items.begin(), items.end());
  if (one_way) return runtime.List(std::move(items));
  return runtime.Iterator(JinjaTypeName(value) + "_reverseiterator", std::move(items));
}

Result<JinjaValue> Join(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("join", args, {"d", "attribute"}));
  KVIK_ASSIGN(const AttributeGetter getter, AttributeGetter::Make(bound.Or(1)));
  KVIK_ASSIGN(const std::string separator, JinjaStr(runtime, bound.Or(0, JinjaValue::String(""))));
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
  std::string out;
  for (bool first = true;; first = false) {
    KVIK_ASSIGN(std::optional<JinjaValue> item, cursor.Next(runtime));
    if (!item) return JinjaValue::String(std::move(out));
    KVIK_ASSIGN(const JinjaValue found, getter.Get(runtime, *std::move(item)));
    KVIK_ASSIGN(const std::string text, JinjaStr(runtime, found));
    if (!runtime.Use(separator.size())) return runtime.Exhausted();
    if (!first) out += separator;
    out += text;
  }
}

Result<JinjaValue> List(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("list", args, {}));
  KVIK_ASSIGN(std::vector<JinjaValue> items, JinjaCollect(runtime, value));
  return runtime.List(std::move(items));
}

// The value of a filter that is a generator in jinja2: an error shows when it is walked.
Result<JinjaValue> Lazy(JinjaRuntime& runtime, std::vector<JinjaValue> items,
                        const Result<void>& end) {
  if (!end && end.error().code == ErrorCode::kExhausted) return end.error();
  return runtime.Iterator("generator", std::move(items),
                          end ? std::nullopt : std::optional(end.error()));
}

Result<JinjaValue> Items(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("items", args, {}));
  std::vector<JinjaValue> items;
  const auto fill = [&]() -> Result<void> {
    if (value.is_undefined()) return {};
    if (!value.is_dict()) {
      return Err(ErrorCode::kInvalidInput, "items: a mapping is needed, not '%s'",
                 JinjaTypeName(value).c_str());
    }
    for (const auto& [key, item] : value.dict().entries()) {
      KVIK_ASSIGN(JinjaValue pair, runtime.Tuple({key, item}));
      items.push_back(std::move(pair));
    }
    return {};
  };
  const Result<void> end = fill();
  return Lazy(runtime, std::move(items), end);
}

Result<JinjaValue> DictSort(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("dictsort", args, {"case_sensitive", "by", "reverse"}));
  KVIK_ASSIGN(const std::string by, bound.Text(1, "key"));
  if (by != "key" && by != "value") {
    return Err(ErrorCode::kInvalidInput, "dictsort: sort by 'key' or 'value'");
  }
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (!value.is_dict()) {
    return Err(ErrorCode::kInvalidInput, "dictsort: a mapping is needed, not '%s'",
               JinjaTypeName(value).c_str());
  }
  std::vector<JinjaValue> items;
  std::vector<JinjaValue> keys;
  for (const auto& [key, item] : value.dict().entries()) {
    KVIK_ASSIGN(JinjaValue pair, runtime.Tuple({key, item}));
    items.push_back(std::move(pair));
    KVIK_ASSIGN(JinjaValue folded,
                FoldCase(runtime, by == "key" ? key : item, bound.Flag(0, false)));
    keys.push_back(std::move(folded));
  }
  KVIK_ASSIGN(items, JinjaSort(runtime, std::move(items), keys, bound.Flag(2, false)));
  return runtime.List(std::move(items));
}

Result<JinjaValue> Sort(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("sort", args, {"reverse", "case_sensitive", "attribute"}));
  const bool case_sensitive = bound.Flag(1, false);
  // "a.b,c": several attributes, compared in this order.
  std::vector<AttributeGetter> getters;
  const JinjaValue attribute = bound.Or(2);
  if (attribute.is_string()) {
    std::string_view rest = attribute.text();
    while (true) {
      const size_t comma = rest.find(',');
      KVIK_ASSIGN(AttributeGetter getter,
                  AttributeGetter::Make(JinjaValue::String(std::string(rest.substr(0, comma)))));
      getters.push_back(std::move(getter));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    KVIK_ASSIGN(AttributeGetter getter, AttributeGetter::Make(attribute));
    getters.push_back(std::move(getter));
  }
  KVIK_ASSIGN(std::vector<JinjaValue> items, JinjaCollect(runtime, value));
  std::vector<JinjaValue> keys;
  keys.reserve(items.size());
  for (const JinjaValue& item : items) {
    std::vector<JinjaValue> key;
    for (const AttributeGetter& getter : getters) {
      KVIK_ASSIGN(const JinjaValue found, getter.Get(runtime, item));
      KVIK_ASSIGN(JinjaValue folded, FoldCase(runtime, found, case_sensitive));
      key.push_back(std::move(folded));
    }
    KVIK_ASSIGN(JinjaValue list, runtime.List(std::move(key)));
    keys.push_back(std::move(list));
  }
  KVIK_ASSIGN(items, JinjaSort(runtime, std::move(items), keys, bound.Flag(0, false)));
  return runtime.List(std::move(items));
}

Result<JinjaValue> Unique(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("unique", args, {"case_sensitive", "attribute"}));
  std::vector<JinjaValue> items;
  const auto fill = [&]() -> Result<void> {
    KVIK_ASSIGN(const AttributeGetter getter, AttributeGetter::Make(bound.Or(1)));
    KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
    JinjaDict seen;
    while (true) {
      KVIK_ASSIGN(const std::optional<JinjaValue> item, cursor.Next(runtime));
      if (!item) return {};
      KVIK_ASSIGN(const JinjaValue found, getter.Get(runtime, *item));
      KVIK_ASSIGN(JinjaValue key, FoldCase(runtime, found, bound.Flag(0, false)));
      if (!JinjaDict::IsHashable(key)) {
        return Err(ErrorCode::kInvalidInput, "unhashable type: '%s'", JinjaTypeName(key).c_str());
      }
      if (!runtime.Step(key.weight()) || !runtime.Use(4 * sizeof(JinjaValue))) {
        return runtime.Exhausted();
      }
      if (seen.Find(key) != nullptr) continue;
      seen.Set(std::move(key), JinjaValue());
      items.push_back(*item);
    }
  };
  const Result<void> end = fill();
  return Lazy(runtime, std::move(items), end);
}

Result<JinjaValue> Extreme(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args,
                           const char* name, JinjaCompareOp better) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind(name, args, {"case_sensitive", "attribute"}));
  KVIK_ASSIGN(const AttributeGetter getter, AttributeGetter::Make(bound.Or(1)));
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
  std::optional<JinjaValue> best;
  JinjaValue best_key;
  while (true) {
    KVIK_ASSIGN(const std::optional<JinjaValue> item, cursor.Next(runtime));
    if (!item) break;
    KVIK_ASSIGN(const JinjaValue found, getter.Get(runtime, *item));
    KVIK_ASSIGN(JinjaValue key, FoldCase(runtime, found, bound.Flag(0, false)));
    if (best) {
      KVIK_ASSIGN(const bool wins, JinjaCompare(runtime, better, key, best_key));
      if (!wins) continue;
    }
    best = *item;
    best_key = std::move(key);
  }
  return best ? *best : JinjaValue::Undefined("No aggregated item, sequence was empty.");
}

Result<JinjaValue> Min(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  return Extreme(runtime, value, args, "min", JinjaCompareOp::kLt);
}
Result<JinjaValue> Max(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  return Extreme(runtime, value, args, "max", JinjaCompareOp::kGt);
}

Result<JinjaValue> Sum(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("sum", args, {"attribute", "start"}));
  KVIK_ASSIGN(const AttributeGetter getter, AttributeGetter::Make(bound.Or(0)));
  JinjaValue sum = bound.Or(1, JinjaValue::Int(0));
  if (sum.is_string()) {
    return Err(ErrorCode::kInvalidInput, "sum: strings are joined, not summed");
  }
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
  while (true) {
    KVIK_ASSIGN(std::optional<JinjaValue> item, cursor.Next(runtime));
    if (!item) return sum;
    KVIK_ASSIGN(const JinjaValue found, getter.Get(runtime, *std::move(item)));
    KVIK_ASSIGN(sum, JinjaBinary(runtime, JinjaBinaryOp::kAdd, sum, found));
  }
}

Result<JinjaValue> Batch(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("batch", args, {"linecount", "fill_with"}, 1));
  std::vector<JinjaValue> rows;
  const auto fill = [&]() -> Result<void> {
    KVIK_ASSIGN(const int64_t width, bound.Int(0, 1));
    KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
    std::vector<JinjaValue> row;
    while (true) {
      KVIK_ASSIGN(std::optional<JinjaValue> item, cursor.Next(runtime));
      if (!item) break;
      if (static_cast<int64_t>(row.size()) == width) {
        KVIK_ASSIGN(JinjaValue list, runtime.List(std::exchange(row, {})));
        rows.push_back(std::move(list));
      }
      row.push_back(*std::move(item));
    }
    if (row.empty()) return {};
    const JinjaValue filler = bound.Or(1);
    while (!filler.is_none() && static_cast<int64_t>(row.size()) < width) {
      if (!runtime.Step() || !runtime.Use(sizeof(JinjaValue))) return runtime.Exhausted();
      row.push_back(filler);
    }
    KVIK_ASSIGN(JinjaValue list, runtime.List(std::move(row)));
    rows.push_back(std::move(list));
    return {};
  };
  const Result<void> end = fill();
  return Lazy(runtime, std::move(rows), end);
}

Result<JinjaValue> Slice(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("slice", args, {"slices", "fill_with"}, 1));
  std::vector<JinjaValue> columns;
  const auto fill = [&]() -> Result<void> {
    KVIK_ASSIGN(const int64_t slices, bound.Int(0, 1));
    KVIK_ASSIGN(const std::vector<JinjaValue> items, JinjaCollect(runtime, value));
    if (slices == 0) return Err(ErrorCode::kInvalidInput, "division by zero");
    const JinjaValue filler = bound.Or(1);
    const auto size = static_cast<int64_t>(items.size());
    size_t next = 0;
    for (int64_t i = 0; i < slices; ++i) {
      const bool extra = i < size % slices;
      std::vector<JinjaValue> column;
      for (int64_t n = size / slices + static_cast<int64_t>(extra); n > 0; --n) {
        column.push_back(items[next++]);
      }
      if (!filler.is_none() && !extra) column.push_back(filler);
      if (!runtime.Step()) return runtime.Exhausted();
      KVIK_ASSIGN(JinjaValue list, runtime.List(std::move(column)));
      columns.push_back(std::move(list));
    }
    return {};
  };
  const Result<void> end = fill();
  return Lazy(runtime, std::move(columns), end);
}

Result<JinjaValue> GroupBy(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("groupby", args, {"attribute", "default", "case_sensitive"}, 1));
  KVIK_ASSIGN(const AttributeGetter getter, AttributeGetter::Make(bound[0], bound.Or(1)));
  const bool case_sensitive = bound.Flag(2, false);
  KVIK_ASSIGN(const std::vector<JinjaValue> items, JinjaCollect(runtime, value));
  std::vector<JinjaValue> groupers;
  std::vector<JinjaValue> keys;
  for (const JinjaValue& item : items) {
    KVIK_ASSIGN(JinjaValue grouper, getter.Get(runtime, item));
    KVIK_ASSIGN(JinjaValue key, FoldCase(runtime, grouper, case_sensitive));
    groupers.push_back(std::move(grouper));
    keys.push_back(std::move(key));
  }
  KVIK_ASSIGN(const std::vector<size_t> order, JinjaSortedOrder(runtime, keys, false));
  std::vector<JinjaValue> groups;
  for (size_t begin = 0; begin < order.size();) {
    std::vector<JinjaValue> members;
    size_t end = begin;
    for (; end < order.size(); ++end) {
      KVIK_ASSIGN(const bool same,
                  JinjaCompare(runtime, JinjaCompareOp::kEq, keys[order[end]], keys[order[begin]]));
      if (!same) break;
      members.push_back(items[order[end]]);
    }
    KVIK_ASSIGN(JinjaValue list, runtime.List(std::move(members)));
    KVIK_ASSIGN(JinjaValue group, runtime.Tuple({groupers[order[begin]], std::move(list)}));
    groups.push_back(std::move(group));
    begin = end;
  }
  return runtime.List(std::move(groups));
}

Result<JinjaValue> Attribute(JinjaRuntime& runtime, const JinjaValue& value,
                             const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("attr", args, {"name"}, 1));
  KVIK_ASSIGN(const std::string name, bound.Text(0, ""));
  KVIK_ASSIGN(const std::optional<JinjaValue> found, JinjaOwnAttribute(runtime, value, name));
  return found ? *found : JinjaNoAttribute(value, name);
}

// The first positional argument as the name of a filter or test, and the arguments after it.
Result<std::pair<std::string, JinjaArgs>> TakeName(const JinjaArgs& args, size_t at,
                                                   const char* what) {
  if (!args.positional[at].is_string()) {
    return Err(ErrorCode::kInvalidInput, "%s: a name is needed, not '%s'", what,
               JinjaTypeName(args.positional[at]).c_str());
  }
  JinjaArgs rest;
  rest.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(at) + 1,
                         args.positional.end());
  rest.named = args.named;
  return std::pair(args.positional[at].text(), std::move(rest));
}

Result<void> MapInto(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args,
                     std::vector<JinjaValue>* out) {
  if (!JinjaTruth(value)) return {};
  std::optional<AttributeGetter> getter;
  JinjaFilter filter = nullptr;
  JinjaArgs filter_args;
  if (args.positional.empty() && !args.named.empty()) {
    KVIK_ASSIGN(const JinjaBoundArgs bound,
                JinjaBoundArgs::Bind("map", args, {"attribute", "default"}, 1));
    KVIK_ASSIGN(getter, AttributeGetter::Make(bound[0], bound.Or(1)));
  } else {
    if (args.positional.empty()) return Err(ErrorCode::kInvalidInput, "map needs a filter");
    KVIK_ASSIGN(auto name_and_args, TakeName(args, 0, "map"));
    filter = FindJinjaFilter(name_and_args.first);
    filter_args = std::move(name_and_args.second);
    if (filter == nullptr) {
      return Err(ErrorCode::kInvalidInput, "no filter named '%s'", name_and_args.first.c_str());
    }
  }
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
  while (true) {
    KVIK_ASSIGN(const std::optional<JinjaValue> item, cursor.Next(runtime));
    if (!item) return {};
    const JinjaDepth depth(runtime);
    if (!depth.ok()) return runtime.Exhausted();
    KVIK_ASSIGN(JinjaValue mapped,
                getter ? getter->Get(runtime, *item) : filter(runtime, *item, filter_args));
    out->push_back(std::move(mapped));
  }
}

Result<JinjaValue> Map(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  std::vector<JinjaValue> items;
  const Result<void> end = MapInto(runtime, value, args, &items);
  return Lazy(runtime, std::move(items), end);
}

Result<void> SelectInto(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args,
                        bool by_attribute, bool wanted, std::vector<JinjaValue>* out) {
  if (!JinjaTruth(value)) return {};
  JinjaValue attribute;
  size_t at = 0;
  if (by_attribute) {
    if (args.positional.empty()) {
      return Err(ErrorCode::kInvalidInput, "an attribute's name is needed");
    }
    attribute = args.positional[at++];
  }
  KVIK_ASSIGN(const AttributeGetter getter, AttributeGetter::Make(attribute));
  JinjaTest test = nullptr;
  JinjaArgs test_args;
  if (at < args.positional.size()) {
    KVIK_ASSIGN(auto name_and_args, TakeName(args, at, "select"));
    test = FindJinjaTest(name_and_args.first);
    test_args = std::move(name_and_args.second);
    if (test == nullptr) {
      return Err(ErrorCode::kInvalidInput, "no test named '%s'", name_and_args.first.c_str());
    }
  }
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
  while (true) {
    KVIK_ASSIGN(const std::optional<JinjaValue> item, cursor.Next(runtime));
    if (!item) return {};
    KVIK_ASSIGN(const JinjaValue found, getter.Get(runtime, *item));
    bool holds = JinjaTruth(found);
    if (test != nullptr) {
      KVIK_ASSIGN(holds, test(runtime, found, test_args));
    }
    if (holds == wanted) out->push_back(*item);
  }
}

template <bool kByAttribute, bool kWanted>
Result<JinjaValue> Select(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  std::vector<JinjaValue> items;
  const Result<void> end = SelectInto(runtime, value, args, kByAttribute, kWanted, &items);
  return Lazy(runtime, std::move(items), end);
}

// Sorted by name.
constexpr JinjaNamedFilter kFilters[] = {
    {"attr", Attribute},
    {"batch", Batch},
    {"count", Length},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSort},
    {"first", First},
    {"groupby", GroupBy},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", Length},
    {"list", List},
    {"map", Map},
    {"max", Max},
    {"min", Min},
    {"reject", Select<false, false>},
    {"rejectattr", Select<true, false>},
    {"reverse", Reverse},
    {"select", Select<false, true>},
    {"selectattr", Select<true, true>},
    {"slice", Slice},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

JinjaFilter FindJinjaSequenceFilter(std::string_view name) {
  const auto* it = std::lower_bound(
      std::begin(kFilters), std::end(kFilters), name,
      [](const JinjaNamedFilter& entry, std::string_view n) { return entry.name < n; });
  return it != std::end(kFilters) && it->name == name ? it->filter : nullptr;
}

JinjaFilter FindJinjaFilter(std::string_view name) {
  const JinjaFilter filter = FindJinjaSequenceFilter(name);
  return filter != nullptr ? filter : FindJinjaTextFilter(name);
}

}  // namespace kvik::text
