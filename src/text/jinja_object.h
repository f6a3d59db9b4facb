// SPDX-License-Identifier: Apache-2.0
// text/jinja_object.h: base of the values that only a running template has: functions, macros,
// namespaces, loops, ranges, iterators, views of dictionaries.
//
// Unlike the other values, objects may have state (a namespace's attributes, an iterator's
// position). They belong to one rendering and its thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja_value.h"

namespace kvik::text {

class JinjaRuntime;

// The arguments of one call, in the order written.
struct JinjaArgs {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;
};

class JinjaObject {
 public:
  // `nesting` and `weight` count what the object holds and cannot let go before it dies; see
  // JinjaValue. Objects that the runtime takes apart itself (namespaces, macros) pass 0.
  explicit JinjaObject(int nesting = 0, uint64_t weight = 1) : nesting_(nesting), weight_(weight) {}
  JinjaObject(const JinjaObject&) = delete;
  JinjaObject& operator=(const JinjaObject&) = delete;
  virtual ~JinjaObject() = default;

  // Python's name of the type, for messages.
  [[nodiscard]] virtual std::string TypeName() const = 0;
  // The attribute `name`, or nullopt.
  virtual Result<std::optional<JinjaValue>> Attribute(JinjaRuntime& runtime,
                                                      std::string_view name) = 0;
  // repr(object).
  virtual Result<std::string> Repr(JinjaRuntime& runtime) const = 0;
  // len(object), nullopt if the type has no length.
  virtual Result<std::optional<size_t>> Length(JinjaRuntime& runtime);

  [[nodiscard]] int nesting() const { return nesting_; }
  [[nodiscard]] uint64_t weight() const { return weight_; }

 private:
  int nesting_;
  uint64_t weight_;
};

// What can be called: functions, bound methods, macros, recursive loops.
class JinjaCallable : public JinjaObject {
 public:
  using JinjaObject::JinjaObject;
  virtual Result<JinjaValue> Call(JinjaRuntime& runtime, JinjaArgs args) = 0;
};

// A global function, or a method bound to its value.
class JinjaFunction : public JinjaCallable {
 public:
  using Body = std::function<Result<JinjaValue>(JinjaRuntime&, JinjaArgs)>;
  // `holds`: the value a method is bound to.
  JinjaFunction(std::string name, Body body, const JinjaValue& holds = {})
      : JinjaCallable(holds.nesting() + 1), name_(std::move(name)), body_(std::move(body)) {}

  [[nodiscard]] std::string TypeName() const override { return "function"; }
  Result<std::optional<JinjaValue>> Attribute(JinjaRuntime& runtime,
                                              std::string_view name) override;
  Result<std::string> Repr(JinjaRuntime& runtime) const override;
  Result<JinjaValue> Call(JinjaRuntime& runtime, JinjaArgs args) override {
    return body_(runtime, std::move(args));
  }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string name_;
  Body body_;
};

// namespace(...): attributes that `{% set ns.name = ... %}` changes.
class JinjaNamespace : public JinjaObject {
 public:
  [[nodiscard]] std::string TypeName() const override { return "Namespace"; }
  Result<std::optional<JinjaValue>> Attribute(JinjaRuntime& runtime,
                                              std::string_view name) override;
  Result<std::string> Repr(JinjaRuntime& runtime) const override;
  JinjaDict attributes;
};

// range(start, stop, step): a sequence that is never written out.
class JinjaRange : public JinjaObject {
 public:
  // REQUIRES: step != 0, and the values fit int64.
  JinjaRange(int64_t first, int64_t end, int64_t stride, size_t count)
      : start(first), stop(end), step(stride), size(count) {}
  [[nodiscard]] std::string TypeName() const override { return "range"; }
  Result<std::optional<JinjaValue>> Attribute(JinjaRuntime& runtime,
                                              std::string_view name) override;
  Result<std::string> Repr(JinjaRuntime& runtime) const override;
  Result<std::optional<size_t>> Length(JinjaRuntime& runtime) override;
  [[nodiscard]] JinjaValue At(size_t index) const {
    return JinjaValue::Int(start + static_cast<int64_t>(index) * step);
  }
  const int64_t start;
  const int64_t stop;
  const int64_t step;
  const size_t size;
};

// keys(), values() or items() of a dictionary.
class JinjaDictView : public JinjaObject {
 public:
  enum class Part { kKeys, kValues, kItems };
  JinjaDictView(JinjaValue of, Part which)
      : JinjaObject(of.nesting() + 1, of.weight()), dict(std::move(of)), part(which) {}
  [[nodiscard]] std::string TypeName() const override;
  Result<std::optional<JinjaValue>> Attribute(JinjaRuntime& runtime,
                                              std::string_view name) override;
  Result<std::string> Repr(JinjaRuntime& runtime) const override;
  Result<std::optional<size_t>> Length(JinjaRuntime& runtime) override;
  [[nodiscard]] JinjaValue At(size_t index) const;
  [[nodiscard]] size_t size() const { return dict.dict().size(); }
  const JinjaValue dict;
  const Part part;
};

// A one-way iterator, Python's generator: the values it will give, and the error it ends in, if
// any. The values were computed when it was made; as templates cannot change values, only the
// place of an error would tell, and that is kept.
class JinjaIterator : public JinjaObject {
 public:
  JinjaIterator(std::string type_name, std::vector<JinjaValue> items, std::optional<Error> error,
                int nesting, uint64_t weight)
      : JinjaObject(nesting, weight),
        type_name_(std::move(type_name)),
        items_(std::move(items)),
        error_(std::move(error)) {}
  [[nodiscard]] std::string TypeName() const override { return type_name_; }
  Result<std::optional<JinjaValue>> Attribute(JinjaRuntime& runtime,
                                              std::string_view name) override;
  Result<std::string> Repr(JinjaRuntime& runtime) const override;
  // The next value, nullopt at the end.
  Result<std::optional<JinjaValue>> Next();
  [[nodiscard]] size_t remaining() const { return items_.size() - position_; }

 private:
  std::string type_name_;
  std::vector<JinjaValue> items_;
  std::optional<Error> error_;
  size_t position_ = 0;
};

}  // namespace kvik::text
