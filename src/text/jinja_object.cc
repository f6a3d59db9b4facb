// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_object.h"

#include "text/jinja_ops.h"
#include "text/jinja_runtime.h"

namespace kvik::text {
namespace {

using MaybeValue = std::optional<JinjaValue>;

std::string OpaqueRepr(const std::string& type_name) { return "<" + type_name + " object>"; }

}  // namespace

Result<std::optional<size_t>> JinjaObject::Length(JinjaRuntime& /*runtime*/) {
  return std::optional<size_t>();
}

Result<MaybeValue> JinjaFunction::Attribute(JinjaRuntime& /*runtime*/, std::string_view /*name*/) {
  return MaybeValue();
}

Result<std::string> JinjaFunction::Repr(JinjaRuntime& /*runtime*/) const {
  return "<function " + name_ + ">";
}

Result<MaybeValue> JinjaNamespace::Attribute(JinjaRuntime& /*runtime*/, std::string_view name) {
  const JinjaValue* found = name.starts_with("_") ? nullptr : attributes.Find(name);
  return found != nullptr ? MaybeValue(*found) : MaybeValue();
}

Result<std::string> JinjaNamespace::Repr(JinjaRuntime& runtime) const {
  std::string out = "<Namespace {";
  for (size_t i = 0; i < attributes.size(); ++i) {
    if (i > 0) out += ", ";
    KVIK_ASSIGN(const std::string key, JinjaRepr(runtime, attributes.entries()[i].first));
    KVIK_ASSIGN(const std::string value, JinjaRepr(runtime, attributes.entries()[i].second));
    out += key;
    out += ": ";
    out += value;
  }
  return out + "}>";
}

Result<MaybeValue> JinjaRange::Attribute(JinjaRuntime& /*runtime*/, std::string_view name) {
  if (name == "start") return MaybeValue(JinjaValue::Int(start));
  if (name == "stop") return MaybeValue(JinjaValue::Int(stop));
  if (name == "step") return MaybeValue(JinjaValue::Int(step));
  return MaybeValue();
}

Result<std::string> JinjaRange::Repr(JinjaRuntime& /*runtime*/) const {
  std::string out = "range(" + std::to_string(start) + ", " + std::to_string(stop);
  if (step != 1) out += ", " + std::to_string(step);
  return out + ")";
}

Result<std::optional<size_t>> JinjaRange::Length(JinjaRuntime& /*runtime*/) {
  return std::optional(size);
}

std::string JinjaDictView::TypeName() const {
  switch (part) {
    case Part::kKeys:
      return "dict_keys";
    case Part::kValues:
      return "dict_values";
    case Part::kItems:
      break;
  }
  return "dict_items";
}

Result<MaybeValue> JinjaDictView::Attribute(JinjaRuntime& /*runtime*/, std::string_view /*name*/) {
  return MaybeValue();
}

JinjaValue JinjaDictView::At(size_t index) const {
  const JinjaDict::Entry& entry = dict.dict().entries()[index];
  switch (part) {
    case Part::kKeys:
      return entry.first;
    case Part::kValues:
      return entry.second;
    case Part::kItems:
      break;
  }
  return JinjaValue::Tuple({entry.first, entry.second});
}

Result<std::string> JinjaDictView::Repr(JinjaRuntime& runtime) const {
  std::vector<JinjaValue> items;
  items.reserve(size());
  for (size_t i = 0; i < size(); ++i) items.push_back(At(i));
  KVIK_ASSIGN(const JinjaValue list, runtime.List(std::move(items)));
  KVIK_ASSIGN(const std::string repr, JinjaRepr(runtime, list));
  return TypeName() + "(" + repr + ")";
}

Result<std::optional<size_t>> JinjaDictView::Length(JinjaRuntime& /*runtime*/) {
  return std::optional(size());
}

Result<MaybeValue> JinjaIterator::Attribute(JinjaRuntime& /*runtime*/, std::string_view /*name*/) {
  return MaybeValue();
}

Result<std::string> JinjaIterator::Repr(JinjaRuntime& /*runtime*/) const {
  return OpaqueRepr(type_name_);
}

Result<MaybeValue> JinjaIterator::Next() {
  if (position_ < items_.size()) return MaybeValue(items_[position_++]);
  if (error_) return *std::exchange(error_, std::nullopt);
  return MaybeValue();
}

}  // namespace kvik::text
