// SPDX-License-Identifier: Apache-2.0
// text/jinja_ops.h: Python's operators on template values.
//
// All fail with kInvalidInput where Python raises (TypeError, ZeroDivisionError, jinja2's
// UndefinedError, ...), and with kExhausted at the runtime's limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_object.h"
#include "text/jinja_runtime.h"
#include "text/jinja_value.h"

namespace kvik::text {

enum class JinjaBinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class JinjaCompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

// "str", "int", "NoneType", ...: type(value).__name__.
std::string JinjaTypeName(const JinjaValue& value);
// 'text', for messages.
std::string JinjaQuote(std::string_view text);
// The Undefined that jinja2 gives for a missing attribute.
JinjaValue JinjaNoAttribute(const JinjaValue& value, std::string_view name);
// kInvalidInput; the message of the undefined value.
Error JinjaUndefinedError(const JinjaValue& undefined);

// --- jinja_repr.cc
Result<std::string> JinjaStr(JinjaRuntime& runtime, const JinjaValue& value);
Result<std::string> JinjaRepr(JinjaRuntime& runtime, const JinjaValue& value);
// repr(float): the shortest digits that read back as `value`.
std::string JinjaFloatRepr(double value);
// repr(str), quotes and escapes included.
std::string JinjaStringRepr(std::string_view text);

// --- jinja_operators.cc
Result<JinjaValue> JinjaBinary(JinjaRuntime& runtime, JinjaBinaryOp op, const JinjaValue& a,
                               const JinjaValue& b);
Result<JinjaValue> JinjaNegate(const JinjaValue& value);
Result<JinjaValue> JinjaPlus(const JinjaValue& value);
Result<bool> JinjaCompare(JinjaRuntime& runtime, JinjaCompareOp op, const JinjaValue& a,
                          const JinjaValue& b);
Result<bool> JinjaContains(JinjaRuntime& runtime, const JinjaValue& container,
                           const JinjaValue& item);
// `value` as an index or count; `what` names it in the error.
Result<int64_t> JinjaIndex(const JinjaValue& value, const char* what);
// sorted(items): stable, by `keys` (one per item).
Result<std::vector<JinjaValue>> JinjaSort(JinjaRuntime& runtime, std::vector<JinjaValue> items,
                                          const std::vector<JinjaValue>& keys, bool reverse);
// The keys' stable order: indices into `keys`.
Result<std::vector<size_t>> JinjaSortedOrder(JinjaRuntime& runtime,
                                             const std::vector<JinjaValue>& keys, bool reverse);

// --- jinja_access.cc
// `value.name`: the attribute, else the item; Undefined if neither is there.
Result<JinjaValue> JinjaGetAttribute(JinjaRuntime& runtime, const JinjaValue& value,
                                     const std::string& name);
// The attribute alone, nullopt if there is none.
Result<std::optional<JinjaValue>> JinjaOwnAttribute(JinjaRuntime& runtime, const JinjaValue& value,
                                                    std::string_view name);
// `value[key]`: the item, else the attribute; Undefined if neither is there.
Result<JinjaValue> JinjaGetItem(JinjaRuntime& runtime, const JinjaValue& value,
                                const JinjaValue& key);
// `value[start:stop:step]`; None where left out.
Result<JinjaValue> JinjaSlice(JinjaRuntime& runtime, const JinjaValue& value,
                              const JinjaValue& start, const JinjaValue& stop,
                              const JinjaValue& step);
// len(value); fails for what has no length.
Result<size_t> JinjaLength(JinjaRuntime& runtime, const JinjaValue& value);
// list(value).
Result<std::vector<JinjaValue>> JinjaCollect(JinjaRuntime& runtime, const JinjaValue& value);
Result<JinjaValue> JinjaCall(JinjaRuntime& runtime, const JinjaValue& callee, JinjaArgs args);
bool JinjaIsCallable(const JinjaValue& value);
bool JinjaIsIterable(const JinjaValue& value);

// Walks an iterable one value at a time, as `for` does.
class JinjaCursor {
 public:
  // Fails if `iterable` cannot be iterated.
  static Result<JinjaCursor> Open(const JinjaValue& iterable);
  // The next value, nullopt at the end.
  Result<std::optional<JinjaValue>> Next(JinjaRuntime& runtime);
  // How many values are there in all; nullopt if only walking tells.
  [[nodiscard]] std::optional<size_t> Size() const;

 private:
  explicit JinjaCursor(JinjaValue iterable) : iterable_(std::move(iterable)) {}
  JinjaValue iterable_;
  size_t position_ = 0;  // bytes in a string, else items
};

}  // namespace kvik::text
