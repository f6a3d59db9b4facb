// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_runtime.h"

#include <algorithm>

namespace kvik::text {
namespace {

int DeepestOf(const std::vector<JinjaValue>& items) {
  int deepest = 0;
  for (const JinjaValue& item : items) deepest = std::max(deepest, item.nesting());
  return deepest;
}

Error TooNested() {
  return Err(ErrorCode::kExhausted, "values nest deeper than %d levels", JinjaValue::kMaxNesting);
}

}  // namespace

JinjaRuntime::~JinjaRuntime() {
  for (const auto& ns : namespaces_) ns->attributes = JinjaDict();
}

Error JinjaRuntime::Exhausted() const {
  return Err(ErrorCode::kExhausted, "the template %s", refusal_);
}

Result<JinjaValue> JinjaRuntime::String(std::string text) {
  if (!Use(sizeof(std::string) + text.size())) return Exhausted();
  return JinjaValue::String(std::move(text));
}

Result<JinjaValue> JinjaRuntime::List(std::vector<JinjaValue> items) {
  if (!Step(items.size()) || !Use((items.size() + 4) * sizeof(JinjaValue))) return Exhausted();
  if (DeepestOf(items) >= JinjaValue::kMaxNesting) return TooNested();
  return JinjaValue::List(std::move(items));
}

Result<JinjaValue> JinjaRuntime::Tuple(std::vector<JinjaValue> items) {
  if (!Step(items.size()) || !Use((items.size() + 4) * sizeof(JinjaValue))) return Exhausted();
  if (DeepestOf(items) >= JinjaValue::kMaxNesting) return TooNested();
  return JinjaValue::Tuple(std::move(items));
}

Result<JinjaValue> JinjaRuntime::Dict(JinjaDict dict) {
  // An entry also costs a node of the index.
  constexpr size_t kEntryBytes = 4 * sizeof(JinjaValue) + 64;
  if (!Step(dict.size()) || !Use((dict.size() + 2) * kEntryBytes)) return Exhausted();
  if (dict.nesting() > JinjaValue::kMaxNesting) return TooNested();
  return JinjaValue::Dict(std::move(dict));
}

Result<JinjaValue> JinjaRuntime::Object(std::shared_ptr<JinjaObject> object) {
  constexpr size_t kObjectBytes = 256;
  if (!Use(kObjectBytes)) return Exhausted();
  if (object->nesting() > JinjaValue::kMaxNesting) return TooNested();
  return JinjaValue::Object(std::move(object));
}

Result<JinjaValue> JinjaRuntime::Iterator(std::string type_name, std::vector<JinjaValue> items,
                                          std::optional<Error> error) {
  if (!Step(items.size()) || !Use(items.size() * sizeof(JinjaValue))) return Exhausted();
  const int nesting = DeepestOf(items) + 1;
  return Object(std::make_shared<JinjaIterator>(std::move(type_name), std::move(items),
                                                std::move(error), nesting, 1));
}

Result<JinjaValue> JinjaRuntime::Namespace(JinjaDict attributes) {
  auto ns = std::make_shared<JinjaNamespace>();
  ns->attributes = std::move(attributes);
  namespaces_.push_back(ns);
  return Object(std::move(ns));
}

}  // namespace kvik::text
