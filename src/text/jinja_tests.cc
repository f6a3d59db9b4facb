// SPDX-License-Identifier: Apache-2.0
// The tests of `value is name`.
#include <algorithm>
#include <iterator>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"

namespace kvik::text {
namespace {

// A test without arguments that looks at the value alone.
template <bool (*kHolds)(const JinjaValue&)>
Result<bool> Simple(JinjaRuntime& /*runtime*/, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("a test", args, {}));
  return kHolds(value);
}

bool IsDefined(const JinjaValue& v) { return !v.is_undefined(); }
bool IsUndefined(const JinjaValue& v) { return v.is_undefined(); }
bool IsNone(const JinjaValue& v) { return v.is_none(); }
bool IsBoolean(const JinjaValue& v) { return v.is_bool(); }
bool IsTrue(const JinjaValue& v) { return v.is_bool() && v.boolean(); }
bool IsFalse(const JinjaValue& v) { return v.is_bool() && !v.boolean(); }
bool IsInteger(const JinjaValue& v) { return v.is_int(); }
bool IsFloat(const JinjaValue& v) { return v.is_float(); }
bool IsNumber(const JinjaValue& v) { return v.is_int() || v.is_float() || v.is_bool(); }
bool IsString(const JinjaValue& v) { return v.is_string(); }
bool IsMapping(const JinjaValue& v) { return v.is_dict(); }
bool IsEscaped(const JinjaValue& v) { return v.is_markup(); }
// jinja2's Undefined has all the methods, if only to raise errors: it can be called and indexed.
bool IsCallable(const JinjaValue& v) { return v.is_undefined() || JinjaIsCallable(v); }
bool IsSequence(const JinjaValue& v) {
  if (v.is_object()) return dynamic_cast<JinjaRange*>(&v.object()) != nullptr;
  return JinjaIsIterable(v);
}

// value % number == remainder.
Result<bool> HasRemainder(JinjaRuntime& runtime, const JinjaValue& value, const JinjaValue& number,
                          int64_t remainder) {
  KVIK_ASSIGN(const JinjaValue rest, JinjaBinary(runtime, JinjaBinaryOp::kMod, value, number));
  return JinjaEqual(rest, JinjaValue::Int(remainder));
}

Result<bool> Odd(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("odd", args, {}));
  return HasRemainder(runtime, value, JinjaValue::Int(2), 1);
}

Result<bool> Even(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("even", args, {}));
  return HasRemainder(runtime, value, JinjaValue::Int(2), 0);
}

Result<bool> DivisibleBy(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("divisibleby", args, {"num"}, 1));
  return HasRemainder(runtime, value, bound[0], 0);
}

Result<bool> SameAs(JinjaRuntime& /*runtime*/, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("sameas", args, {"other"}, 1));
  return value.SameAs(bound[0]);
}

Result<bool> In(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("in", args, {"seq"}, 1));
  return JinjaContains(runtime, bound[0], value);
}

template <JinjaCompareOp kOp>
Result<bool> Compare(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("a comparison", args, {"/b"}, 1));
  return JinjaCompare(runtime, kOp, value, bound[0]);
}

// lower and upper: islower() and isupper() of str(value).
template <bool kUpper>
Result<bool> HasCase(JinjaRuntime& runtime, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("a case test", args, {}));
  KVIK_ASSIGN(std::string text, JinjaStr(runtime, value));
  const JinjaMethod method = FindJinjaStringMethod(kUpper ? "isupper" : "islower");
  KVIK_ASSIGN(const JinjaValue holds,
              method(runtime, JinjaValue::String(std::move(text)), JinjaArgs()));
  return holds.boolean();
}

// Names are looked up in a dictionary, so what cannot be a key is an error.
Result<void> CheckName(const JinjaValue& value) {
  if (JinjaDict::IsHashable(value)) return {};
  return Err(ErrorCode::kInvalidInput, "unhashable type: '%s'", JinjaTypeName(value).c_str());
}

Result<bool> NamesFilter(JinjaRuntime& /*runtime*/, const JinjaValue& value,
                         const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("filter", args, {}));
  KVIK_TRY(CheckName(value));
  return value.is_string() && FindJinjaFilter(value.text()) != nullptr;
}

Result<bool> NamesTest(JinjaRuntime& /*runtime*/, const JinjaValue& value, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("test", args, {}));
  KVIK_TRY(CheckName(value));
  return value.is_string() && FindJinjaTest(value.text()) != nullptr;
}

// Sorted by name.
constexpr JinjaNamedTest kTests[] = {
    {"!=", Compare<JinjaCompareOp::kNe>},
    {"<", Compare<JinjaCompareOp::kLt>},
    {"<=", Compare<JinjaCompareOp::kLe>},
    {"==", Compare<JinjaCompareOp::kEq>},
    {">", Compare<JinjaCompareOp::kGt>},
    {">=", Compare<JinjaCompareOp::kGe>},
    {"boolean", Simple<IsBoolean>},
    {"callable", Simple<IsCallable>},
    {"defined", Simple<IsDefined>},
    {"divisibleby", DivisibleBy},
    {"eq", Compare<JinjaCompareOp::kEq>},
    {"equalto", Compare<JinjaCompareOp::kEq>},
    {"escaped", Simple<IsEscaped>},
    {"even", Even},
    {"false", Simple<IsFalse>},
    {"filter", NamesFilter},
    {"float", Simple<IsFloat>},
    {"ge", Compare<JinjaCompareOp::kGe>},
    {"greaterthan", Compare<JinjaCompareOp::kGt>},
    {"gt", Compare<JinjaCompareOp::kGt>},
    {"in", In},
    {"integer", Simple<IsInteger>},
    {"iterable", Simple<JinjaIsIterable>},
    {"le", Compare<JinjaCompareOp::kLe>},
    {"lessthan", Compare<JinjaCompareOp::kLt>},
    {"lower", HasCase<false>},
    {"lt", Compare<JinjaCompareOp::kLt>},
    {"mapping", Simple<IsMapping>},
    {"ne", Compare<JinjaCompareOp::kNe>},
    {"none", Simple<IsNone>},
    {"number", Simple<IsNumber>},
    {"odd", Odd},
    {"sameas", SameAs},
    {"sequence", Simple<IsSequence>},
    {"string", Simple<IsString>},
    {"test", NamesTest},
    {"true", Simple<IsTrue>},
    {"undefined", Simple<IsUndefined>},
    {"upper", HasCase<true>},
};

}  // namespace

JinjaTest FindJinjaTest(std::string_view name) {
  const auto* it = std::lower_bound(
      std::begin(kTests), std::end(kTests), name,
      [](const JinjaNamedTest& entry, std::string_view n) { return entry.name < n; });
  return it != std::end(kTests) && it->name == name ? it->test : nullptr;
}

}  // namespace kvik::text
