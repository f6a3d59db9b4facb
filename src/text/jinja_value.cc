// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja_object.h"

namespace kvik::text {
namespace {

// Dictionaries up to this size are searched from end to end.
constexpr size_t kLinearDictSize = 8;
// Text counts towards a value's weight by this many bytes a step.
constexpr uint64_t kBytesPerStep = 64;

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  return a > std::numeric_limits<uint64_t>::max() - b ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

// Three-way comparison of numbers of any kind, exact also where a double cannot hold the integer.
// NaN is below every number here, so that the order is total.
int CompareNumbers(const JinjaValue& a, const JinjaValue& b) {
  const auto wide = [](const JinjaValue& v) -> long double {
    if (v.is_float()) return v.floating();
    return v.is_bool() ? static_cast<long double>(v.boolean())
                       : static_cast<long double>(v.integer());
  };
  const long double x = wide(a);
  const long double y = wide(b);
  const bool x_nan = std::isnan(x);
  const bool y_nan = std::isnan(y);
  if (x_nan || y_nan) return static_cast<int>(y_nan) - static_cast<int>(x_nan);
  return x < y ? -1 : static_cast<int>(x > y);
}

bool IsNumber(const JinjaValue& v) { return v.is_bool() || v.is_int() || v.is_float(); }

// Keys of different ranks are never equal.
int KeyRank(const JinjaValue& v) { return IsNumber(v) ? 0 : 1 + static_cast<int>(v.kind()); }

int CompareKeys(const JinjaValue& a, const JinjaValue& b) {
  const int rank_a = KeyRank(a);
  const int rank_b = KeyRank(b);
  if (rank_a != rank_b) return rank_a < rank_b ? -1 : 1;
  if (IsNumber(a)) return CompareNumbers(a, b);
  switch (a.kind()) {
    case JinjaValue::Kind::kString:
      return a.text().compare(b.text());
    case JinjaValue::Kind::kTuple: {
      const auto& x = a.items();
      const auto& y = b.items();
      for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
        if (const int order = CompareKeys(x[i], y[i]); order != 0) return order;
      }
      return x.size() < y.size() ? -1 : static_cast<int>(x.size() > y.size());
    }
    case JinjaValue::Kind::kObject: {
      const std::less<const JinjaObject*> less;
      const JinjaObject* x = &a.object();
      const JinjaObject* y = &b.object();
      return less(x, y) ? -1 : static_cast<int>(less(y, x));
    }
    default:
      return 0;  // None and Undefined equal themselves
  }
}

bool RangesEqual(const JinjaRange& a, const JinjaRange& b) {
  if (a.size != b.size) return false;
  if (a.size == 0) return true;
  return a.start == b.start && (a.size == 1 || a.step == b.step);
}

bool DictsEqual(const JinjaDict& a, const JinjaDict& b) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&](const JinjaDict::Entry& entry) {
    const JinjaValue* other = b.Find(entry.first);
    return other != nullptr && JinjaEqual(entry.second, *other);
  });
}

bool ObjectsEqual(const JinjaObject& a, const JinjaObject& b) {
  if (&a == &b) return true;
  const auto* range_a = dynamic_cast<const JinjaRange*>(&a);
  const auto* range_b = dynamic_cast<const JinjaRange*>(&b);
  return range_a != nullptr && range_b != nullptr && RangesEqual(*range_a, *range_b);
}

}  // namespace

JinjaValue JinjaValue::Undefined(std::string message) {
  JinjaValue v;
  v.data_ = UndefinedRep{std::make_shared<const std::string>(std::move(message))};
  return v;
}

JinjaValue JinjaValue::Bool(bool value) {
  JinjaValue v;
  v.data_ = value;
  return v;
}

JinjaValue JinjaValue::Int(int64_t value) {
  JinjaValue v;
  v.data_ = value;
  return v;
}

JinjaValue JinjaValue::Float(double value) {
  JinjaValue v;
  v.data_ = value;
  return v;
}

JinjaValue JinjaValue::String(std::string utf8) {
  JinjaValue v;
  v.data_ = std::make_shared<const StringRep>(StringRep{std::move(utf8), false});
  return v;
}

JinjaValue JinjaValue::Markup(std::string utf8) {
  JinjaValue v;
  v.data_ = std::make_shared<const StringRep>(StringRep{std::move(utf8), true});
  return v;
}

std::shared_ptr<const JinjaValue::ListRep> JinjaValue::MakeListRep(std::vector<JinjaValue> items) {
  ListRep rep;
  for (const JinjaValue& item : items) {
    rep.nesting = std::max(rep.nesting, item.nesting() + 1);
    rep.weight = SaturatingAdd(rep.weight, item.weight());
  }
  KVIK_CHECK(rep.nesting <= kMaxNesting, "a list nests %d deep", rep.nesting);
  rep.items = std::move(items);
  return std::make_shared<const ListRep>(std::move(rep));
}

JinjaValue JinjaValue::List(std::vector<JinjaValue> items) {
  JinjaValue v;
  v.data_ = MakeListRep(std::move(items));
  return v;
}

JinjaValue JinjaValue::Tuple(std::vector<JinjaValue> items) {
  JinjaValue v;
  v.data_ = TupleTag{MakeListRep(std::move(items))};
  return v;
}

JinjaValue JinjaValue::Dict(JinjaDict dict) {
  KVIK_CHECK(dict.nesting() <= kMaxNesting, "a dict nests %d deep", dict.nesting());
  JinjaValue v;
  v.data_ = std::make_shared<const JinjaDict>(std::move(dict));
  return v;
}

JinjaValue JinjaValue::Object(std::shared_ptr<JinjaObject> object) {
  JinjaValue v;
  v.data_ = std::move(object);
  return v;
}

const std::string& JinjaValue::text() const {
  return std::get<std::shared_ptr<const StringRep>>(data_)->text;
}

bool JinjaValue::is_markup() const {
  return is_string() && std::get<std::shared_ptr<const StringRep>>(data_)->markup;
}

const std::vector<JinjaValue>& JinjaValue::items() const {
  if (is_tuple()) return std::get<TupleTag>(data_).list->items;
  return std::get<std::shared_ptr<const ListRep>>(data_)->items;
}

const JinjaDict& JinjaValue::dict() const {
  return *std::get<std::shared_ptr<const JinjaDict>>(data_);
}

JinjaObject& JinjaValue::object() const { return *std::get<std::shared_ptr<JinjaObject>>(data_); }

const std::shared_ptr<JinjaObject>& JinjaValue::object_ptr() const {
  return std::get<std::shared_ptr<JinjaObject>>(data_);
}

const std::string& JinjaValue::undefined_message() const {
  return *std::get<UndefinedRep>(data_).message;
}

const JinjaValue* JinjaValue::Find(std::string_view key) const {
  return is_dict() ? dict().Find(key) : nullptr;
}

int JinjaValue::nesting() const {
  switch (kind()) {
    case Kind::kList:
      return std::get<std::shared_ptr<const ListRep>>(data_)->nesting;
    case Kind::kTuple:
      return std::get<TupleTag>(data_).list->nesting;
    case Kind::kDict:
      return dict().nesting();
    case Kind::kObject:
      return object().nesting();
    default:
      return 0;
  }
}

uint64_t JinjaValue::weight() const {
  switch (kind()) {
    case Kind::kString:
      return 1 + text().size() / kBytesPerStep;
    case Kind::kList:
      return std::get<std::shared_ptr<const ListRep>>(data_)->weight;
    case Kind::kTuple:
      return std::get<TupleTag>(data_).list->weight;
    case Kind::kDict:
      return dict().weight();
    case Kind::kObject:
      return object().weight();
    default:
      return 1;
  }
}

bool JinjaValue::SameAs(const JinjaValue& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kString:
      // Python keeps one copy of short equal strings in a template; contents stand for identity.
      return text() == other.text();
    case Kind::kList:
      return std::get<std::shared_ptr<const ListRep>>(data_) ==
             std::get<std::shared_ptr<const ListRep>>(other.data_);
    case Kind::kTuple:
      return std::get<TupleTag>(data_).list == std::get<TupleTag>(other.data_).list;
    case Kind::kDict:
      return &dict() == &other.dict();
    case Kind::kObject:
      return &object() == &other.object();
    case Kind::kUndefined:
      return std::get<UndefinedRep>(data_).message == std::get<UndefinedRep>(other.data_).message;
    default:
      return CompareKeys(*this, other) == 0;
  }
}

bool JinjaKeyLess::operator()(const JinjaValue& a, const JinjaValue& b) const {
  return CompareKeys(a, b) < 0;
}

std::optional<size_t> JinjaDict::IndexOf(const JinjaValue& key) const {
  if (!index_.empty()) {
    const auto it = index_.find(key);
    return it == index_.end() ? std::nullopt : std::optional(it->second);
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (CompareKeys(entries_[i].first, key) == 0) return i;
  }
  return std::nullopt;
}

void JinjaDict::Set(JinjaValue key, JinjaValue value) {
  nesting_ = std::max({nesting_, key.nesting() + 1, value.nesting() + 1});
  weight_ = SaturatingAdd(weight_, SaturatingAdd(key.weight(), value.weight()));
  if (const std::optional<size_t> found = IndexOf(key)) {
    entries_[*found].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (!index_.empty()) {
    index_.emplace(entries_.back().first, entries_.size() - 1);
  } else if (entries_.size() > kLinearDictSize) {
    for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].first, i);
  }
}

void JinjaDict::Set(std::string key, JinjaValue value) {
  Set(JinjaValue::String(std::move(key)), std::move(value));
}

const JinjaValue* JinjaDict::Find(std::string_view key) const {
  if (!index_.empty()) return Find(JinjaValue::String(std::string(key)));
  for (const Entry& entry : entries_) {
    if (entry.first.is_string() && entry.first.text() == key) return &entry.second;
  }
  return nullptr;
}

const JinjaValue* JinjaDict::Find(const JinjaValue& key) const {
  const std::optional<size_t> found = IndexOf(key);
  return found ? &entries_[*found].second : nullptr;
}

bool JinjaDict::IsHashable(const JinjaValue& key) {
  if (key.is_list() || key.is_dict()) return false;
  if (key.is_tuple()) {
    return std::all_of(key.items().begin(), key.items().end(), IsHashable);
  }
  return true;
}

bool JinjaEqual(const JinjaValue& a, const JinjaValue& b) {
  if (IsNumber(a) && IsNumber(b)) {
    const bool nan =
        (a.is_float() && std::isnan(a.floating())) || (b.is_float() && std::isnan(b.floating()));
    return !nan && CompareNumbers(a, b) == 0;
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case JinjaValue::Kind::kUndefined:
    case JinjaValue::Kind::kNone:
      return true;
    case JinjaValue::Kind::kString:
      return a.text() == b.text();
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple:
      // Items that are the same object count as equal without a look inside, as in Python.
      return std::equal(
          a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
          [](const JinjaValue& x, const JinjaValue& y) { return x.SameAs(y) || JinjaEqual(x, y); });
    case JinjaValue::Kind::kDict:
      return a.SameAs(b) || DictsEqual(a.dict(), b.dict());
    case JinjaValue::Kind::kObject:
      return ObjectsEqual(a.object(), b.object());
    default:
      return false;
  }
}

bool JinjaTruth(const JinjaValue& value) {
  switch (value.kind()) {
    case JinjaValue::Kind::kUndefined:
    case JinjaValue::Kind::kNone:
      return false;
    case JinjaValue::Kind::kBool:
      return value.boolean();
    case JinjaValue::Kind::kInt:
      return value.integer() != 0;
    case JinjaValue::Kind::kFloat:
      return value.floating() != 0;
    case JinjaValue::Kind::kString:
      return !value.text().empty();
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple:
      return !value.items().empty();
    case JinjaValue::Kind::kDict:
      return value.dict().size() != 0;
    case JinjaValue::Kind::kObject: {
      if (const auto* range = dynamic_cast<const JinjaRange*>(&value.object())) {
        return range->size != 0;
      }
      if (const auto* view = dynamic_cast<const JinjaDictView*>(&value.object())) {
        return view->size() != 0;
      }
      return true;
    }
  }
  return false;
}

}  // namespace kvik::text
