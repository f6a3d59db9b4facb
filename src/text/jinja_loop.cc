// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_loop.h"

#include "text/jinja_args.h"

namespace kvik::text {

using MaybeValue = std::optional<JinjaValue>;

Result<MaybeValue> JinjaLoop::Fetch(JinjaRuntime& runtime) {
  while (true) {
    KVIK_ASSIGN(MaybeValue item, cursor_.Next(runtime));
    if (!item || statement_.filter == nullptr) return item;
    KVIK_ASSIGN(const bool passes, interpreter_.PassesFilter(statement_, scope_, *item));
    if (passes) return item;
  }
}

Result<MaybeValue> JinjaLoop::Peek(JinjaRuntime& runtime) {
  if (fetched_at_ == fetched_.size()) {
    KVIK_ASSIGN(MaybeValue item, Fetch(runtime));
    if (!item) return item;
    fetched_.clear();
    fetched_at_ = 0;
    fetched_.push_back(*std::move(item));
  }
  return MaybeValue(fetched_[fetched_at_]);
}

Result<MaybeValue> JinjaLoop::Next(JinjaRuntime& runtime) {
  MaybeValue item;
  if (fetched_at_ < fetched_.size()) {
    item = fetched_[fetched_at_++];
  } else {
    KVIK_ASSIGN(item, Fetch(runtime));
  }
  if (!item) return item;
  ++index0_;
  before_ = std::exchange(current_, item);
  return item;
}

Result<int64_t> JinjaLoop::Size(JinjaRuntime& runtime) {
  if (!size_ && statement_.filter == nullptr) {
    if (const std::optional<size_t> known = cursor_.Size()) size_ = static_cast<int64_t>(*known);
  }
  if (!size_) {  // only walking to the end tells
    fetched_.erase(fetched_.begin(), fetched_.begin() + static_cast<ptrdiff_t>(fetched_at_));
    fetched_at_ = 0;
    while (true) {
      KVIK_ASSIGN(MaybeValue item, Fetch(runtime));
      if (!item) break;
      if (!runtime.Use(2 * sizeof(JinjaValue))) return runtime.Exhausted();
      fetched_.push_back(*std::move(item));
    }
    size_ = index0_ + 1 + static_cast<int64_t>(fetched_.size());
  }
  return *size_;
}

Result<std::optional<size_t>> JinjaLoop::Length(JinjaRuntime& runtime) {
  KVIK_ASSIGN(const int64_t size, Size(runtime));
  return std::optional(static_cast<size_t>(size));
}

Result<std::string> JinjaLoop::Repr(JinjaRuntime& /*runtime*/) const {
  return "<LoopContext " + std::to_string(index0_ + 1) + ">";
}

Result<MaybeValue> JinjaLoop::Attribute(JinjaRuntime& runtime, std::string_view name) {
  const auto integer = [](int64_t value) { return MaybeValue(JinjaValue::Int(value)); };
  if (name == "index0") return integer(index0_);
  if (name == "index") return integer(index0_ + 1);
  if (name == "first") return MaybeValue(JinjaValue::Bool(index0_ == 0));
  if (name == "last") {
    KVIK_ASSIGN(const MaybeValue next, Peek(runtime));
    return MaybeValue(JinjaValue::Bool(!next));
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    KVIK_ASSIGN(const int64_t size, Size(runtime));
    return integer(name == "length" ? size : size - index0_ - (name == "revindex" ? 0 : 1));
  }
  if (name == "depth0") return integer(depth0_);
  if (name == "depth") return integer(depth0_ + 1);
  if (name == "previtem") {
    return MaybeValue(before_ ? *before_ : JinjaValue::Undefined("there is no previous item"));
  }
  if (name == "nextitem") {
    KVIK_ASSIGN(const MaybeValue next, Peek(runtime));
    return MaybeValue(next ? *next : JinjaValue::Undefined("there is no next item"));
  }
  if (name == "cycle" || name == "changed") {
    KVIK_ASSIGN(JinjaValue method, Method(runtime, name));
    return MaybeValue(std::move(method));
  }
  return MaybeValue();
}

Result<JinjaValue> JinjaLoop::Method(JinjaRuntime& runtime, std::string_view name) {
  const bool cycle = name == "cycle";
  return runtime.Object(std::make_shared<JinjaFunction>(
      std::string(name),
      [self = shared_from_this(), cycle](JinjaRuntime& at, const JinjaArgs& args) {
        return cycle ? self->Cycle(args) : self->Changed(at, args);
      },
      JinjaValue::Object(shared_from_this())));
}

Result<JinjaValue> JinjaLoop::Cycle(const JinjaArgs& args) const {
  if (args.positional.empty() || !args.named.empty()) {
    return Err(ErrorCode::kInvalidInput, "loop.cycle() needs items");
  }
  return args.positional[static_cast<size_t>(index0_) % args.positional.size()];
}

Result<JinjaValue> JinjaLoop::Changed(JinjaRuntime& runtime, const JinjaArgs& args) {
  KVIK_ASSIGN(JinjaValue value, runtime.Tuple(args.positional));
  if (changed_) {
    KVIK_ASSIGN(const bool equal, JinjaCompare(runtime, JinjaCompareOp::kEq, *changed_, value));
    if (equal) return JinjaValue::Bool(false);
  } else {
    interpreter_.KeepForCleanup(shared_from_this());
  }
  changed_ = std::move(value);
  return JinjaValue::Bool(true);
}

Result<JinjaValue> JinjaLoop::Call(JinjaRuntime& /*runtime*/, JinjaArgs args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("loop", args, {"iterable"}, 1));
  if (!statement_.recursive) {
    return Err(ErrorCode::kInvalidInput, "only a loop marked 'recursive' can be called");
  }
  return interpreter_.CallLoop(statement_, scope_, bound[0], depth0_ + 1);
}

}  // namespace kvik::text
