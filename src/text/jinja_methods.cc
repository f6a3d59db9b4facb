// SPDX-License-Identifier: Apache-2.0
// The methods of lists, tuples, dictionaries and floats.
#include "text/jinja_methods.h"

#include <algorithm>
#include <cmath>

#include "text/jinja_args.h"
#include "text/jinja_ops.h"

namespace kvik::text {
namespace {

// --- lists and tuples

Result<JinjaValue> ItemIndex(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("index", args, {"/value", "/start", "/stop"}, 1));
  const auto size = static_cast<int64_t>(self.items().size());
  KVIK_ASSIGN(int64_t start, bound.Int(1, 0));
  KVIK_ASSIGN(int64_t stop, bound.Int(2, size));
  if (start < 0) start = std::max<int64_t>(0, std::max(start, -size) + size);
  if (stop < 0) stop = std::max(stop, -size) + size;
  for (int64_t i = start; i < std::min(stop, size); ++i) {
    const JinjaValue& item = self.items()[static_cast<size_t>(i)];
    KVIK_ASSIGN(const bool equal, JinjaCompare(runtime, JinjaCompareOp::kEq, item, bound[0]));
    if (equal) return JinjaValue::Int(i);
  }
  return Err(ErrorCode::kInvalidInput, "index(): the value is not in the %s",
             JinjaTypeName(self).c_str());
}

Result<JinjaValue> ItemCount(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("count", args, {"/value"}, 1));
  int64_t count = 0;
  for (const JinjaValue& item : self.items()) {
    KVIK_ASSIGN(const bool equal, JinjaCompare(runtime, JinjaCompareOp::kEq, item, bound[0]));
    count += static_cast<int64_t>(equal);
  }
  return JinjaValue::Int(count);
}

// Values never change, so a copy is the value.
Result<JinjaValue> Copy(JinjaRuntime& /*runtime*/, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("copy", args, {}));
  return self;
}

// --- dictionaries

template <JinjaDictView::Part kPart>
Result<JinjaValue> View(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("a dict view", args, {}));
  return runtime.Object(std::make_shared<JinjaDictView>(self, kPart));
}

Result<JinjaValue> Get(JinjaRuntime& runtime, const JinjaValue& self, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("get", args, {"/key", "/default"}, 1));
  if (!JinjaDict::IsHashable(bound[0])) {
    return Err(ErrorCode::kInvalidInput, "unhashable type: '%s'", JinjaTypeName(bound[0]).c_str());
  }
  if (!runtime.Step(bound[0].weight())) return runtime.Exhausted();
  const JinjaValue* found = self.dict().Find(bound[0]);
  return found != nullptr ? *found : bound.Or(1);
}

Result<JinjaValue> FloatIsInteger(JinjaRuntime& /*runtime*/, const JinjaValue& self,
                                  const JinjaArgs& args) {
  KVIK_TRY(JinjaBoundArgs::Bind("is_integer", args, {}));
  return JinjaValue::Bool(std::isfinite(self.floating()) &&
                          std::trunc(self.floating()) == self.floating());
}

JinjaMethod FindListMethod(std::string_view name) {
  if (name == "index") return ItemIndex;
  if (name == "count") return ItemCount;
  return nullptr;
}

JinjaMethod FindDictMethod(std::string_view name) {
  if (name == "items") return View<JinjaDictView::Part::kItems>;
  if (name == "get") return Get;
  if (name == "keys") return View<JinjaDictView::Part::kKeys>;
  if (name == "values") return View<JinjaDictView::Part::kValues>;
  if (name == "copy") return Copy;
  return nullptr;
}

}  // namespace

JinjaMethod FindJinjaMethod(const JinjaValue& self, std::string_view name) {
  switch (self.kind()) {
    case JinjaValue::Kind::kString:
      return FindJinjaStringMethod(name);
    case JinjaValue::Kind::kList:
      return name == "copy" ? Copy : FindListMethod(name);
    case JinjaValue::Kind::kTuple:
      return FindListMethod(name);
    case JinjaValue::Kind::kDict:
      return FindDictMethod(name);
    case JinjaValue::Kind::kFloat:
      return name == "is_integer" ? FloatIsInteger : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace kvik::text
