// SPDX-License-Identifier: Apache-2.0
// Attributes, items, slices, lengths and iteration.
#include <algorithm>
#include <limits>

#include "text/jinja_methods.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

bool IsIntegral(const JinjaValue& v) { return v.is_int() || v.is_bool(); }
int64_t AsInt(const JinjaValue& v) { return v.is_bool() ? int64_t{v.boolean()} : v.integer(); }

template <typename T>
T* ObjectAs(const JinjaValue& value) {
  return value.is_object() ? dynamic_cast<T*>(&value.object()) : nullptr;
}

Result<JinjaValue> NoElement(JinjaRuntime& runtime, const JinjaValue& value,
                             const JinjaValue& key) {
  if (key.is_string()) return JinjaNoAttribute(value, key.text());
  KVIK_ASSIGN(const std::string repr, JinjaRepr(runtime, key));
  return JinjaValue::Undefined(JinjaTypeName(value) + " object has no element " + repr);
}

// Attributes that a dict has but the sandbox never gives out: Python's internals, and the methods
// that would change it. They hide members of the same name.
bool IsHiddenDictAttribute(std::string_view name) {
  return name.starts_with("__") || name == "clear" || name == "pop" || name == "popitem" ||
         name == "setdefault" || name == "update";
}

// Position of a possibly negative index, nullopt if out of range.
std::optional<size_t> Position(int64_t index, size_t size) {
  const auto length = static_cast<int64_t>(size);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return static_cast<size_t>(index);
}

// value[key] for what has items; nullopt where Python raises LookupError or TypeError.
Result<std::optional<JinjaValue>> OwnItem(JinjaRuntime& runtime, const JinjaValue& value,
                                          const JinjaValue& key) {
  if (value.is_dict()) {
    if (!JinjaDict::IsHashable(key)) return std::optional<JinjaValue>();
    if (!runtime.Step(key.weight())) return runtime.Exhausted();
    const JinjaValue* found = value.dict().Find(key);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  if (!IsIntegral(key)) return std::optional<JinjaValue>();
  const int64_t index = AsInt(key);
  if (value.is_list() || value.is_tuple()) {
    const std::optional<size_t> at = Position(index, value.items().size());
    return at ? std::optional(value.items()[*at]) : std::nullopt;
  }
  if (value.is_string()) {
    if (!runtime.Step(value.weight())) return runtime.Exhausted();
    const std::string& text = value.text();
    const std::optional<size_t> at = Position(index, CountCodePoints(text));
    if (!at) return std::optional<JinjaValue>();
    const size_t begin = OffsetOfCodePoint(text, *at);
    size_t end = begin;
    NextCodePoint(text, &end);
    return std::optional(JinjaValue::String(text.substr(begin, end - begin)));
  }
  if (const auto* range = ObjectAs<JinjaRange>(value)) {
    const std::optional<size_t> at = Position(index, range->size);
    return at ? std::optional(range->At(*at)) : std::nullopt;
  }
  return std::optional<JinjaValue>();
}

struct SliceBounds {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  size_t count = 0;
};

// Python's slice.indices(size).
Result<SliceBounds> BoundsOf(const JinjaValue& start, const JinjaValue& stop,
                             const JinjaValue& step, size_t size) {
  const auto length = static_cast<int64_t>(size);
  SliceBounds bounds;
  if (!step.is_none()) {
    KVIK_ASSIGN(bounds.step, JinjaIndex(step, "a slice step"));
    if (bounds.step == 0) return Err(ErrorCode::kInvalidInput, "slice step cannot be zero");
    bounds.step = std::max(bounds.step, -std::numeric_limits<int64_t>::max());
  }
  const bool backwards = bounds.step < 0;
  const int64_t low = backwards ? -1 : 0;
  const int64_t high = backwards ? length - 1 : length;
  const auto place = [&](const JinjaValue& v, int64_t absent) -> Result<int64_t> {
    if (v.is_none()) return absent;
    KVIK_ASSIGN(int64_t index, JinjaIndex(v, "a slice index"));
    if (index < 0) index = std::max(index, -length - 1) + length;
    return std::clamp(index, low, high);
  };
  KVIK_ASSIGN(bounds.start, place(start, backwards ? high : low));
  KVIK_ASSIGN(bounds.stop, place(stop, backwards ? low : high));
  const int64_t distance = backwards ? bounds.start - bounds.stop : bounds.stop - bounds.start;
  if (distance > 0) {
    const int64_t stride = backwards ? -bounds.step : bounds.step;
    bounds.count = static_cast<size_t>((distance - 1) / stride + 1);
  }
  return bounds;
}

Result<JinjaValue> SliceString(JinjaRuntime& runtime, const JinjaValue& value,
                               const SliceBounds& bounds, bool ascii) {
  const std::string& text = value.text();
  std::string out;
  if (ascii) {
    if (!runtime.Use(bounds.count)) return runtime.Exhausted();
    if (bounds.step == 1) {
      out = text.substr(static_cast<size_t>(bounds.start), bounds.count);
    } else {
      out.reserve(bounds.count);
      for (size_t i = 0; i < bounds.count; ++i) {
        out.push_back(
            text[static_cast<size_t>(bounds.start + static_cast<int64_t>(i) * bounds.step)]);
      }
    }
  } else if (bounds.step == 1) {
    const auto skip = static_cast<size_t>(bounds.start);
    const size_t begin = OffsetOfCodePoint(text, skip);
    const size_t length = OffsetOfCodePoint(std::string_view(text).substr(begin), bounds.count);
    if (!runtime.Use(length)) return runtime.Exhausted();
    out = text.substr(begin, length);
  } else {
    if (!runtime.Use(text.size() * sizeof(char32_t))) return runtime.Exhausted();
    const std::u32string wide = ToUtf32(text);
    for (size_t i = 0; i < bounds.count; ++i) {
      AppendUtf8(wide[static_cast<size_t>(bounds.start + static_cast<int64_t>(i) * bounds.step)],
                 &out);
    }
  }
  return value.is_markup() ? JinjaValue::Markup(std::move(out))
                           : JinjaValue::String(std::move(out));
}

}  // namespace

Result<std::optional<JinjaValue>> JinjaOwnAttribute(JinjaRuntime& runtime, const JinjaValue& value,
                                                    std::string_view name) {
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (value.is_object()) return value.object().Attribute(runtime, name);
  const JinjaMethod method = FindJinjaMethod(value, name);
  if (method == nullptr) return std::optional<JinjaValue>();
  auto function = std::make_shared<JinjaFunction>(
      std::string(name),
      [value, method](JinjaRuntime& at, const JinjaArgs& args) { return method(at, value, args); },
      value);
  KVIK_ASSIGN(JinjaValue bound, runtime.Object(std::move(function)));
  return std::optional(std::move(bound));
}

Result<JinjaValue> JinjaGetAttribute(JinjaRuntime& runtime, const JinjaValue& value,
                                     const std::string& name) {
  KVIK_ASSIGN(const std::optional<JinjaValue> attribute, JinjaOwnAttribute(runtime, value, name));
  if (attribute) return *attribute;
  if (value.is_dict() && !IsHiddenDictAttribute(name)) {
    const JinjaValue* found = value.dict().Find(std::string_view(name));
    if (found != nullptr) return *found;
  }
  return JinjaNoAttribute(value, name);
}

Result<JinjaValue> JinjaGetItem(JinjaRuntime& runtime, const JinjaValue& value,
                                const JinjaValue& key) {
  if (value.is_undefined()) return JinjaUndefinedError(value);
  KVIK_ASSIGN(const std::optional<JinjaValue> item, OwnItem(runtime, value, key));
  if (item) return *item;
  if (key.is_string()) {
    KVIK_ASSIGN(const std::optional<JinjaValue> attribute,
                JinjaOwnAttribute(runtime, value, key.text()));
    if (attribute) return *attribute;
  }
  return NoElement(runtime, value, key);
}

Result<JinjaValue> JinjaSlice(JinjaRuntime& runtime, const JinjaValue& value,
                              const JinjaValue& start, const JinjaValue& stop,
                              const JinjaValue& step) {
  if (value.is_undefined()) return JinjaUndefinedError(value);
  if (!runtime.Step(value.is_string() ? value.weight() : 1)) return runtime.Exhausted();
  if (value.is_string()) {
    const bool ascii = IsAscii(value.text());
    const size_t size = ascii ? value.text().size() : CountCodePoints(value.text());
    KVIK_ASSIGN(const SliceBounds bounds, BoundsOf(start, stop, step, size));
    return SliceString(runtime, value, bounds, ascii);
  }
  if (value.is_list() || value.is_tuple()) {
    KVIK_ASSIGN(const SliceBounds bounds, BoundsOf(start, stop, step, value.items().size()));
    if (!runtime.Use(bounds.count * sizeof(JinjaValue))) return runtime.Exhausted();
    std::vector<JinjaValue> items;
    items.reserve(bounds.count);
    for (size_t i = 0; i < bounds.count; ++i) {
      items.push_back(
          value.items()[static_cast<size_t>(bounds.start + static_cast<int64_t>(i) * bounds.step)]);
    }
    return value.is_list() ? runtime.List(std::move(items)) : runtime.Tuple(std::move(items));
  }
  if (const auto* range = ObjectAs<JinjaRange>(value)) {
    KVIK_ASSIGN(const SliceBounds bounds, BoundsOf(start, stop, step, range->size));
    int64_t stride = 0;
    if (__builtin_mul_overflow(range->step, bounds.step, &stride)) {
      return Err(ErrorCode::kInvalidInput, "a range step does not fit 64 bits");
    }
    const int64_t first = range->start + bounds.start * range->step;
    const int64_t last = range->start + bounds.stop * range->step;
    return runtime.Object(std::make_shared<JinjaRange>(first, last, stride, bounds.count));
  }
  return Err(ErrorCode::kInvalidInput, "'%s' cannot be sliced", JinjaTypeName(value).c_str());
}

Result<size_t> JinjaLength(JinjaRuntime& runtime, const JinjaValue& value) {
  switch (value.kind()) {
    case JinjaValue::Kind::kUndefined:
      return size_t{0};
    case JinjaValue::Kind::kString:
      if (!runtime.Step(value.weight())) return runtime.Exhausted();
      return CountCodePoints(value.text());
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple:
      return value.items().size();
    case JinjaValue::Kind::kDict:
      return value.dict().size();
    default:
      break;
  }
  if (value.is_object()) {
    KVIK_ASSIGN(const std::optional<size_t> length, value.object().Length(runtime));
    if (length) return *length;
  }
  return Err(ErrorCode::kInvalidInput, "object of type '%s' has no length",
             JinjaTypeName(value).c_str());
}

bool JinjaIsIterable(const JinjaValue& value) {
  switch (value.kind()) {
    case JinjaValue::Kind::kUndefined:
    case JinjaValue::Kind::kString:
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple:
    case JinjaValue::Kind::kDict:
      return true;
    case JinjaValue::Kind::kObject:
      return ObjectAs<JinjaRange>(value) != nullptr || ObjectAs<JinjaDictView>(value) != nullptr ||
             ObjectAs<JinjaIterator>(value) != nullptr;
    default:
      return false;
  }
}

bool JinjaIsCallable(const JinjaValue& value) { return ObjectAs<JinjaCallable>(value) != nullptr; }

Result<JinjaValue> JinjaCall(JinjaRuntime& runtime, const JinjaValue& callee, JinjaArgs args) {
  if (callee.is_undefined()) return JinjaUndefinedError(callee);
  auto* callable = ObjectAs<JinjaCallable>(callee);
  if (callable == nullptr) {
    return Err(ErrorCode::kInvalidInput, "'%s' object is not callable",
               JinjaTypeName(callee).c_str());
  }
  const JinjaDepth depth(runtime);
  if (!depth.ok() || !runtime.Step()) return runtime.Exhausted();
  return callable->Call(runtime, std::move(args));
}

Result<std::vector<JinjaValue>> JinjaCollect(JinjaRuntime& runtime, const JinjaValue& value) {
  if (value.is_list() || value.is_tuple()) {
    if (!runtime.Step(value.items().size()) ||
        !runtime.Use(value.items().size() * sizeof(JinjaValue))) {
      return runtime.Exhausted();
    }
    return value.items();
  }
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(value));
  std::vector<JinjaValue> items;
  while (true) {
    KVIK_ASSIGN(std::optional<JinjaValue> next, cursor.Next(runtime));
    if (!next) return items;
    if (!runtime.Use(2 * sizeof(JinjaValue))) return runtime.Exhausted();
    items.push_back(*std::move(next));
  }
}

Result<JinjaCursor> JinjaCursor::Open(const JinjaValue& iterable) {
  if (!JinjaIsIterable(iterable)) {
    return Err(ErrorCode::kInvalidInput, "'%s' object is not iterable",
               JinjaTypeName(iterable).c_str());
  }
  return JinjaCursor(iterable);
}

Result<std::optional<JinjaValue>> JinjaCursor::Next(JinjaRuntime& runtime) {
  if (!runtime.Step()) return runtime.Exhausted();
  const std::optional<JinjaValue> end;
  switch (iterable_.kind()) {
    case JinjaValue::Kind::kString: {
      const std::string& text = iterable_.text();
      if (position_ >= text.size()) return end;
      const size_t begin = position_;
      NextCodePoint(text, &position_);
      KVIK_ASSIGN(JinjaValue character, runtime.String(text.substr(begin, position_ - begin)));
      return std::optional(std::move(character));
    }
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple:
      if (position_ >= iterable_.items().size()) return end;
      return std::optional(iterable_.items()[position_++]);
    case JinjaValue::Kind::kDict:
      if (position_ >= iterable_.dict().size()) return end;
      return std::optional(iterable_.dict().entries()[position_++].first);
    case JinjaValue::Kind::kObject: {
      if (auto* iterator = ObjectAs<JinjaIterator>(iterable_)) return iterator->Next();
      if (const auto* range = ObjectAs<JinjaRange>(iterable_)) {
        if (position_ >= range->size) return end;
        return std::optional(range->At(position_++));
      }
      const auto* view = ObjectAs<JinjaDictView>(iterable_);
      if (position_ >= view->size()) return end;
      return std::optional(view->At(position_++));
    }
    default:  // Undefined is empty
      return end;
  }
}

std::optional<size_t> JinjaCursor::Size() const {
  switch (iterable_.kind()) {
    case JinjaValue::Kind::kString:
      return CountCodePoints(iterable_.text());
    case JinjaValue::Kind::kList:
    case JinjaValue::Kind::kTuple:
      return iterable_.items().size();
    case JinjaValue::Kind::kDict:
      return iterable_.dict().size();
    case JinjaValue::Kind::kObject:
      if (const auto* range = ObjectAs<JinjaRange>(iterable_)) return range->size;
      if (const auto* view = ObjectAs<JinjaDictView>(iterable_)) return view->size();
      return std::nullopt;
    default:
      return size_t{0};
  }
}

}  // namespace kvik::text
