// SPDX-License-Identifier: Apache-2.0
// text/jinja_value.h: the values a chat template computes with.
//
// A JinjaValue is a small immutable handle with Python's semantics where a template can see them:
// `True` prints "True", `1.0` is not `1`, dictionaries keep insertion order. Copies share their
// contents, nothing can change a value after it was made, so values are safe to read and copy from
// many threads at once. Strings are UTF-8; length and indices count code points, as in Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace kvik::text {

class JinjaDict;
class JinjaObject;

class JinjaValue {
 public:
  // kObject is what only a running template can make: functions, macros, namespaces, iterators.
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kObject
  };

  // Containers nest at most this deep, so that walking or destroying one cannot exhaust the stack.
  static constexpr int kMaxNesting = 100;

  // None.
  JinjaValue() = default;

  // The result of looking up what is not there. It prints as nothing, is false and empty; any other
  // use of it is an error whose text is `message` ("'x' is undefined").
  static JinjaValue Undefined(std::string message);
  static JinjaValue Bool(bool value);
  static JinjaValue Int(int64_t value);
  static JinjaValue Float(double value);
  static JinjaValue String(std::string utf8);
  // A string that is marked as safe HTML (Python's Markup).
  static JinjaValue Markup(std::string utf8);
  // REQUIRES: every item has nesting() < kMaxNesting (List, Tuple, Dict).
  static JinjaValue List(std::vector<JinjaValue> items);
  static JinjaValue Tuple(std::vector<JinjaValue> items);
  static JinjaValue Dict(JinjaDict dict);
  static JinjaValue Object(std::shared_ptr<JinjaObject> object);

  // Parses one JSON text; members keep their order, of equal names the last one wins. Fails with
  // kInvalidInput on what is not JSON, not UTF-8, nested deeper than kMaxNesting, or holds an
  // integer outside int64.
  static Result<JinjaValue> FromJson(std::string_view json);

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is_undefined() const { return kind() == Kind::kUndefined; }
  [[nodiscard]] bool is_none() const { return kind() == Kind::kNone; }
  [[nodiscard]] bool is_bool() const { return kind() == Kind::kBool; }
  [[nodiscard]] bool is_int() const { return kind() == Kind::kInt; }
  [[nodiscard]] bool is_float() const { return kind() == Kind::kFloat; }
  [[nodiscard]] bool is_string() const { return kind() == Kind::kString; }
  [[nodiscard]] bool is_list() const { return kind() == Kind::kList; }
  [[nodiscard]] bool is_tuple() const { return kind() == Kind::kTuple; }
  [[nodiscard]] bool is_dict() const { return kind() == Kind::kDict; }
  [[nodiscard]] bool is_object() const { return kind() == Kind::kObject; }

  // REQUIRES: the kind asked for. References live as long as a copy of this value.
  [[nodiscard]] bool boolean() const { return std::get<bool>(data_); }
  [[nodiscard]] int64_t integer() const { return std::get<int64_t>(data_); }
  [[nodiscard]] double floating() const { return std::get<double>(data_); }
  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] bool is_markup() const;                        // also false for non-strings
  [[nodiscard]] const std::vector<JinjaValue>& items() const;  // list or tuple
  [[nodiscard]] const JinjaDict& dict() const;
  [[nodiscard]] JinjaObject& object() const;
  [[nodiscard]] const std::shared_ptr<JinjaObject>& object_ptr() const;
  [[nodiscard]] const std::string& undefined_message() const;

  // The member `key` of a dict; nullptr if this is no dict or has no such member.
  [[nodiscard]] const JinjaValue* Find(std::string_view key) const;

  // 0 for scalars and objects, 1 + the deepest item for containers.
  [[nodiscard]] int nesting() const;
  // About how many steps it takes to walk this value (shared parts count each time; saturates).
  [[nodiscard]] uint64_t weight() const;
  // True if both are the same object in memory, or equal scalars: what `is` would say in Python.
  [[nodiscard]] bool SameAs(const JinjaValue& other) const;

 private:
  struct StringRep {
    std::string text;
    bool markup = false;
  };
  struct UndefinedRep {
    std::shared_ptr<const std::string> message;
  };
  struct ListRep {
    std::vector<JinjaValue> items;
    int nesting = 1;
    uint64_t weight = 1;
  };
  struct TupleTag {
    std::shared_ptr<const ListRep> list;
  };
  // Indexed by Kind.
  using Data =
      std::variant<UndefinedRep, std::monostate, bool, int64_t, double,
                   std::shared_ptr<const StringRep>, std::shared_ptr<const ListRep>, TupleTag,
                   std::shared_ptr<const JinjaDict>, std::shared_ptr<JinjaObject>>;
  static std::shared_ptr<const ListRep> MakeListRep(std::vector<JinjaValue> items);

  Data data_ = std::monostate();
};

// A total order on hashable values in which equal keys (1, 1.0 and True) are equivalent.
struct JinjaKeyLess {
  bool operator()(const JinjaValue& a, const JinjaValue& b) const;
};

// An insertion-ordered dictionary under construction; JinjaValue::Dict freezes it.
class JinjaDict {
 public:
  using Entry = std::pair<JinjaValue, JinjaValue>;

  // Inserts, or replaces the value and keeps the place. O(log size).
  // REQUIRES: IsHashable(key).
  void Set(JinjaValue key, JinjaValue value);
  void Set(std::string key, JinjaValue value);

  [[nodiscard]] const JinjaValue* Find(std::string_view key) const;
  [[nodiscard]] const JinjaValue* Find(const JinjaValue& key) const;
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] int nesting() const { return nesting_; }
  [[nodiscard]] uint64_t weight() const { return weight_; }

  // False for lists, dicts and tuples that hold one.
  static bool IsHashable(const JinjaValue& key);

 private:
  std::optional<size_t> IndexOf(const JinjaValue& key) const;

  std::vector<Entry> entries_;
  std::map<JinjaValue, size_t, JinjaKeyLess> index_;  // empty while the dict is small
  int nesting_ = 1;
  uint64_t weight_ = 1;
};

// Python's == for values. Walks at most min(a.weight(), b.weight()) values.
bool JinjaEqual(const JinjaValue& a, const JinjaValue& b);
// Python's bool(value).
bool JinjaTruth(const JinjaValue& value);

}  // namespace kvik::text
