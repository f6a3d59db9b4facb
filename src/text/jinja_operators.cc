// SPDX-License-Identifier: Apache-2.0
// Arithmetic, comparison, containment and sorting.
//
// Integers are 64 bits wide here; where Python's would grow beyond, the operation fails.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "text/jinja_format.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

const char* OpName(JinjaBinaryOp op) {
  switch (op) {
    case JinjaBinaryOp::kAdd:
      return "+";
    case JinjaBinaryOp::kSub:
      return "-";
    case JinjaBinaryOp::kMul:
      return "*";
    case JinjaBinaryOp::kDiv:
      return "/";
    case JinjaBinaryOp::kFloorDiv:
      return "//";
    case JinjaBinaryOp::kMod:
      return "%";
    case JinjaBinaryOp::kPow:
      return "**";
  }
  return "?";
}

const char* OpName(JinjaCompareOp op) {
  switch (op) {
    case JinjaCompareOp::kLt:
      return "<";
    case JinjaCompareOp::kLe:
      return "<=";
    case JinjaCompareOp::kGt:
      return ">";
    case JinjaCompareOp::kGe:
      return ">=";
    default:
      return "==";
  }
}

bool IsIntegral(const JinjaValue& v) { return v.is_int() || v.is_bool(); }
bool IsNumber(const JinjaValue& v) { return IsIntegral(v) || v.is_float(); }
int64_t AsInt(const JinjaValue& v) { return v.is_bool() ? int64_t{v.boolean()} : v.integer(); }
double AsDouble(const JinjaValue& v) {
  return v.is_float() ? v.floating() : static_cast<double>(AsInt(v));
}

Error TooLarge() { return Err(ErrorCode::kInvalidInput, "an integer result does not fit 64 bits"); }
Error DivisionByZero() { return Err(ErrorCode::kInvalidInput, "division by zero"); }

int64_t FloorDiv(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

Result<JinjaValue> IntPower(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return TooLarge();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return TooLarge();
  }
  return JinjaValue::Int(result);
}

Result<JinjaValue> IntBinary(JinjaBinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case JinjaBinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return TooLarge();
      return JinjaValue::Int(result);
    case JinjaBinaryOp::kSub:
      if (__builtin_sub_overflow(a, b, &result)) return TooLarge();
      return JinjaValue::Int(result);
    case JinjaBinaryOp::kMul:
      if (__builtin_mul_overflow(a, b, &result)) return TooLarge();
      return JinjaValue::Int(result);
    case JinjaBinaryOp::kDiv:
      if (b == 0) return DivisionByZero();
      return JinjaValue::Float(static_cast<double>(a) / static_cast<double>(b));
    case JinjaBinaryOp::kFloorDiv:
    case JinjaBinaryOp::kMod:
      if (b == 0) return DivisionByZero();
      if (b == -1) {  // the one quotient that can overflow
        if (op == JinjaBinaryOp::kMod) return JinjaValue::Int(0);
        if (__builtin_sub_overflow(int64_t{0}, a, &result)) return TooLarge();
        return JinjaValue::Int(result);
      }
      return JinjaValue::Int(op == JinjaBinaryOp::kMod ? a - FloorDiv(a, b) * b : FloorDiv(a, b));
    case JinjaBinaryOp::kPow:
      if (b >= 0) return IntPower(a, b);
      if (a == 0) return DivisionByZero();
      return JinjaValue::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  return TooLarge();
}

double FloatMod(double a, double b) {
  double m = std::fmod(a, b);
  if (m != 0) {
    if ((b < 0) != (m < 0)) m += b;
  } else {
    m = std::copysign(0.0, b);
  }
  return m;
}

double FloatFloorDiv(double a, double b) {
  const double mod = FloatMod(a, b);
  const double quotient = (a - mod) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Result<JinjaValue> FloatBinary(JinjaBinaryOp op, double a, double b) {
  switch (op) {
    case JinjaBinaryOp::kAdd:
      return JinjaValue::Float(a + b);
    case JinjaBinaryOp::kSub:
      return JinjaValue::Float(a - b);
    case JinjaBinaryOp::kMul:
      return JinjaValue::Float(a * b);
    case JinjaBinaryOp::kDiv:
      if (b == 0) return DivisionByZero();
      return JinjaValue::Float(a / b);
    case JinjaBinaryOp::kFloorDiv:
      if (b == 0) return DivisionByZero();
      return JinjaValue::Float(FloatFloorDiv(a, b));
    case JinjaBinaryOp::kMod:
      if (b == 0) return DivisionByZero();
      return JinjaValue::Float(FloatMod(a, b));
    case JinjaBinaryOp::kPow: {
      if (a == 0 && b < 0) return DivisionByZero();
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) {
        return Err(ErrorCode::kUnsupported, "a power is not a real number");
      }
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
        return Err(ErrorCode::kInvalidInput, "a power is too large");
      }
      return JinjaValue::Float(power);
    }
  }
  return TooLarge();
}

Result<JinjaValue> Repeat(JinjaRuntime& runtime, const JinjaValue& sequence, int64_t count) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const uint64_t unit = sequence.is_string() ? sequence.text().size() : sequence.items().size();
  uint64_t total = 0;
  if (__builtin_mul_overflow(unit, times, &total) || !runtime.Use(total) ||
      !runtime.Step(total / 64)) {
    return Err(ErrorCode::kExhausted, "a repetition is too large");
  }
  if (sequence.is_string()) {
    std::string text;
    text.reserve(total);
    if (unit == 1) {
      text.assign(times, sequence.text()[0]);
    } else if (unit > 0) {
      for (uint64_t i = 0; i < times; ++i) text.append(sequence.text());
    }
    return sequence.is_markup() ? JinjaValue::Markup(std::move(text))
                                : JinjaValue::String(std::move(text));
  }
  if (!runtime.Step(total) || !runtime.Use(total * sizeof(JinjaValue))) return runtime.Exhausted();
  std::vector<JinjaValue> items;
  items.reserve(total);
  if (unit > 0) {
    for (uint64_t i = 0; i < times; ++i) {
      items.insert(items.end(), sequence.items().begin(), sequence.items().end());
    }
  }
  return sequence.is_list() ? runtime.List(std::move(items)) : runtime.Tuple(std::move(items));
}

Result<JinjaValue> AddStrings(JinjaRuntime& runtime, const JinjaValue& a, const JinjaValue& b) {
  const bool markup = a.is_markup() || b.is_markup();
  // Markup escapes what plain text is added to it.
  const std::string left = markup && !a.is_markup() ? JinjaEscapeHtml(a.text()) : std::string();
  const std::string right = markup && !b.is_markup() ? JinjaEscapeHtml(b.text()) : std::string();
  const std::string& x = markup && !a.is_markup() ? left : a.text();
  const std::string& y = markup && !b.is_markup() ? right : b.text();
  if (!runtime.Use(x.size() + y.size())) return runtime.Exhausted();
  std::string sum;
  sum.reserve(x.size() + y.size());
  sum.append(x).append(y);
  return markup ? JinjaValue::Markup(std::move(sum)) : JinjaValue::String(std::move(sum));
}

Result<JinjaValue> AddItems(JinjaRuntime& runtime, const JinjaValue& a, const JinjaValue& b) {
  if (!runtime.Use((a.items().size() + b.items().size()) * sizeof(JinjaValue))) {
    return runtime.Exhausted();
  }
  std::vector<JinjaValue> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is_list() ? runtime.List(std::move(items)) : runtime.Tuple(std::move(items));
}

bool IsSequence(const JinjaValue& v) { return v.is_string() || v.is_list() || v.is_tuple(); }

// -1, 0, 1, or 2 where NaN makes every comparison false.
int OrderOfNumbers(const JinjaValue& a, const JinjaValue& b) {
  const auto wide = [](const JinjaValue& v) -> long double {
    return v.is_float() ? static_cast<long double>(v.floating())
                        : static_cast<long double>(AsInt(v));
  };
  const long double x = wide(a);
  const long double y = wide(b);
  if (x < y) return -1;
  if (x > y) return 1;
  return x == y ? 0 : 2;
}

bool HoldsFor(JinjaCompareOp op, int order) {
  switch (op) {
    case JinjaCompareOp::kLt:
      return order == -1;
    case JinjaCompareOp::kLe:
      return order == -1 || order == 0;
    case JinjaCompareOp::kGt:
      return order == 1;
    case JinjaCompareOp::kGe:
      return order == 1 || order == 0;
    default:
      return false;
  }
}

// <, <=, > and >=.
Result<bool> CompareOrder(JinjaRuntime& runtime, JinjaCompareOp op, const JinjaValue& a,
                          const JinjaValue& b) {
  if (a.is_undefined()) return JinjaUndefinedError(a);
  if (b.is_undefined()) return JinjaUndefinedError(b);
  if (IsNumber(a) && IsNumber(b)) return HoldsFor(op, OrderOfNumbers(a, b));
  if (a.is_string() && b.is_string()) {
    // UTF-8 sorts like its code points.
    const int order = a.text().compare(b.text());
    return HoldsFor(op, order < 0 ? -1 : static_cast<int>(order > 0));
  }
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    const auto& x = a.items();
    const auto& y = b.items();
    // The first items that differ decide; if there are none, the lengths do.
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!x[i].SameAs(y[i]) && !JinjaEqual(x[i], y[i]))
        return CompareOrder(runtime, op, x[i], y[i]);
    }
    return HoldsFor(op, x.size() < y.size() ? -1 : static_cast<int>(x.size() > y.size()));
  }
  return Err(ErrorCode::kInvalidInput, "'%s' not supported between '%s' and '%s'", OpName(op),
             JinjaTypeName(a).c_str(), JinjaTypeName(b).c_str());
}

// Accounts for a comparison of the two.
bool StepCompare(JinjaRuntime& runtime, const JinjaValue& a, const JinjaValue& b) {
  return runtime.Step(std::min(a.weight(), b.weight()));
}

bool ContainsSubstring(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::string JinjaTypeName(const JinjaValue& value) {
  switch (value.kind()) {
    case JinjaValue::Kind::kUndefined:
      return "Undefined";
    case JinjaValue::Kind::kNone:
      return "NoneType";
    case JinjaValue::Kind::kBool:
      return "bool";
    case JinjaValue::Kind::kInt:
      return "int";
    case JinjaValue::Kind::kFloat:
      return "float";
    case JinjaValue::Kind::kString:
      return value.is_markup() ? "Markup" : "str";
    case JinjaValue::Kind::kList:
      return "list";
    case JinjaValue::Kind::kTuple:
      return "tuple";
    case JinjaValue::Kind::kDict:
      return "dict";
    case JinjaValue::Kind::kObject:
      return value.object().TypeName();
  }
  return "?";
}

std::string JinjaQuote(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  return out.append(1, '\'').append(text).append(1, '\'');
}

JinjaValue JinjaNoAttribute(const JinjaValue& value, std::string_view name) {
  const std::string type = value.is_none() ? "None" : JinjaTypeName(value) + " object";
  return JinjaValue::Undefined(JinjaQuote(type) + " has no attribute " + JinjaQuote(name));
}

Error JinjaUndefinedError(const JinjaValue& undefined) {
  return Error{ErrorCode::kInvalidInput, undefined.undefined_message()};
}

Result<JinjaValue> JinjaBinary(JinjaRuntime& runtime, JinjaBinaryOp op, const JinjaValue& a,
                               const JinjaValue& b) {
  if (IsIntegral(a) && IsIntegral(b)) return IntBinary(op, AsInt(a), AsInt(b));
  if (IsNumber(a) && IsNumber(b)) return FloatBinary(op, AsDouble(a), AsDouble(b));
  if (op == JinjaBinaryOp::kMod && a.is_string()) return JinjaFormatPercent(runtime, a, b);
  if (a.is_undefined()) return JinjaUndefinedError(a);
  if (b.is_undefined()) return JinjaUndefinedError(b);
  if (op == JinjaBinaryOp::kAdd) {
    if (a.is_string() && b.is_string()) return AddStrings(runtime, a, b);
    if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
      return AddItems(runtime, a, b);
    }
  }
  if (op == JinjaBinaryOp::kMul) {
    if (IsSequence(a) && IsIntegral(b)) return Repeat(runtime, a, AsInt(b));
    if (IsIntegral(a) && IsSequence(b)) return Repeat(runtime, b, AsInt(a));
  }
  return Err(ErrorCode::kInvalidInput, "unsupported operand types for %s: '%s' and '%s'",
             OpName(op), JinjaTypeName(a).c_str(), JinjaTypeName(b).c_str());
}

Result<JinjaValue> JinjaNegate(const JinjaValue& value) {
  if (IsIntegral(value)) return IntBinary(JinjaBinaryOp::kSub, 0, AsInt(value));
  if (value.is_float()) return JinjaValue::Float(-value.floating());
  if (value.is_undefined()) return JinjaUndefinedError(value);
  return Err(ErrorCode::kInvalidInput, "bad operand type for unary -: '%s'",
             JinjaTypeName(value).c_str());
}

Result<JinjaValue> JinjaPlus(const JinjaValue& value) {
  if (IsIntegral(value)) return JinjaValue::Int(AsInt(value));
  if (value.is_float()) return value;
  if (value.is_undefined()) return JinjaUndefinedError(value);
  return Err(ErrorCode::kInvalidInput, "bad operand type for unary +: '%s'",
             JinjaTypeName(value).c_str());
}

Result<bool> JinjaCompare(JinjaRuntime& runtime, JinjaCompareOp op, const JinjaValue& a,
                          const JinjaValue& b) {
  if (op == JinjaCompareOp::kIn || op == JinjaCompareOp::kNotIn) {
    KVIK_ASSIGN(const bool found, JinjaContains(runtime, b, a));
    return found == (op == JinjaCompareOp::kIn);
  }
  if (!StepCompare(runtime, a, b)) return runtime.Exhausted();
  if (op == JinjaCompareOp::kEq) return JinjaEqual(a, b);
  if (op == JinjaCompareOp::kNe) return !JinjaEqual(a, b);
  return CompareOrder(runtime, op, a, b);
}

Result<bool> JinjaContains(JinjaRuntime& runtime, const JinjaValue& container,
                           const JinjaValue& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      return Err(ErrorCode::kInvalidInput, "'in <string>' requires a string, not '%s'",
                 JinjaTypeName(item).c_str());
    }
    if (!runtime.Step(container.weight())) return runtime.Exhausted();
    return ContainsSubstring(container.text(), item.text());
  }
  const auto* view =
      container.is_object() ? dynamic_cast<JinjaDictView*>(&container.object()) : nullptr;
  const bool keys = view != nullptr && view->part == JinjaDictView::Part::kKeys;
  if (container.is_dict() || keys) {
    if (!JinjaDict::IsHashable(item)) {
      return Err(ErrorCode::kInvalidInput, "unhashable type: '%s'", JinjaTypeName(item).c_str());
    }
    if (!runtime.Step(item.weight())) return runtime.Exhausted();
    const JinjaDict& dict = keys ? view->dict.dict() : container.dict();
    return dict.Find(item) != nullptr;
  }
  if (!JinjaIsIterable(container)) {
    return Err(ErrorCode::kInvalidInput, "argument of type '%s' is not iterable",
               JinjaTypeName(container).c_str());
  }
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(container));
  while (true) {
    KVIK_ASSIGN(const std::optional<JinjaValue> next, cursor.Next(runtime));
    if (!next) return false;
    if (!StepCompare(runtime, *next, item)) return runtime.Exhausted();
    if (next->SameAs(item) || JinjaEqual(*next, item)) return true;
  }
}

Result<int64_t> JinjaIndex(const JinjaValue& value, const char* what) {
  if (IsIntegral(value)) return AsInt(value);
  if (value.is_undefined()) return JinjaUndefinedError(value);
  return Err(ErrorCode::kInvalidInput, "%s must be an integer, not '%s'", what,
             JinjaTypeName(value).c_str());
}

Result<std::vector<size_t>> JinjaSortedOrder(JinjaRuntime& runtime,
                                             const std::vector<JinjaValue>& keys, bool reverse) {
  // A merge sort of its own: comparisons can fail, and NaN is no order std::sort could trust.
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Python reverses by sorting the reversed list and reversing the result: equal items keep order.
  if (reverse) std::reverse(order.begin(), order.end());
  std::vector<size_t> merged(order.size());
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size());
      const size_t end = std::min(begin + 2 * width, order.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle;
        if (left < middle && right < end) {
          KVIK_ASSIGN(take_right, JinjaCompare(runtime, JinjaCompareOp::kLt, keys[order[right]],
                                               keys[order[left]]));
        }
        merged[out] = take_right ? order[right++] : order[left++];
      }
    }
    order.swap(merged);
  }
  if (reverse) std::reverse(order.begin(), order.end());
  return order;
}

Result<std::vector<JinjaValue>> JinjaSort(JinjaRuntime& runtime, std::vector<JinjaValue> items,
                                          const std::vector<JinjaValue>& keys, bool reverse) {
  KVIK_ASSIGN(const std::vector<size_t> order, JinjaSortedOrder(runtime, keys, reverse));
  std::vector<JinjaValue> sorted;
  sorted.reserve(items.size());
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

}  // namespace kvik::text
