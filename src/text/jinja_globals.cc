// SPDX-License-Identifier: Apache-2.0
// The functions that every template knows.
#include <algorithm>
#include <ctime>
#include <limits>
#include <unordered_map>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_format.h"
#include "text/jinja_ops.h"

namespace kvik::text {
namespace {

using MaybeValue = std::optional<JinjaValue>;

// The sandbox's bound on the size of a range.
constexpr uint64_t kMaxRange = 100'000;
// What one strftime may write.
constexpr size_t kMaxTimeBytes = size_t{1} << 16;

Result<JinjaValue> Range(JinjaRuntime& runtime, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("range", args, {"/start", "/stop", "/step"}, 1));
  int64_t start = 0;
  int64_t stop = 0;
  if (bound.Has(1)) {
    KVIK_ASSIGN(start, bound.Int(0, 0));
    KVIK_ASSIGN(stop, bound.Int(1, 0));
  } else {
    KVIK_ASSIGN(stop, bound.Int(0, 0));
  }
  KVIK_ASSIGN(const int64_t step, bound.Int(2, 1));
  if (step == 0) return Err(ErrorCode::kInvalidInput, "range() needs a step other than zero");
  uint64_t size = 0;
  if (step > 0 ? start < stop : start > stop) {
    // Differences of int64 fit uint64.
    const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                       : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    const uint64_t stride =
        step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
    size = (distance - 1) / stride + 1;
  }
  if (size > kMaxRange) {
    return Err(ErrorCode::kInvalidInput, "range() is larger than %llu",
               static_cast<unsigned long long>(kMaxRange));
  }
  return runtime.Object(std::make_shared<JinjaRange>(start, stop, step, size));
}

// dict(mapping or pairs, **named).
Result<JinjaDict> BuildDict(JinjaRuntime& runtime, const JinjaArgs& args) {
  JinjaDict dict;
  if (args.positional.size() > 1) {
    return Err(ErrorCode::kInvalidInput, "dict() takes at most one positional argument");
  }
  if (!args.positional.empty()) {
    const JinjaValue& source = args.positional[0];
    if (source.is_dict()) {
      if (!runtime.Step(source.dict().size()) ||
          !runtime.Use(source.dict().size() * 4 * sizeof(JinjaValue))) {
        return runtime.Exhausted();
      }
      dict = source.dict();
    } else {
      KVIK_ASSIGN(const std::vector<JinjaValue> pairs, JinjaCollect(runtime, source));
      for (const JinjaValue& pair : pairs) {
        KVIK_ASSIGN(const std::vector<JinjaValue> parts, JinjaCollect(runtime, pair));
        if (parts.size() != 2) {
          return Err(ErrorCode::kInvalidInput, "dict() needs pairs, not %zu values", parts.size());
        }
        if (!JinjaDict::IsHashable(parts[0])) {
          return Err(ErrorCode::kInvalidInput, "unhashable type: '%s'",
                     JinjaTypeName(parts[0]).c_str());
        }
        dict.Set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) dict.Set(name, value);
  return dict;
}

Result<JinjaValue> Dict(JinjaRuntime& runtime, const JinjaArgs& args) {
  KVIK_ASSIGN(JinjaDict dict, BuildDict(runtime, args));
  return runtime.Dict(std::move(dict));
}

Result<JinjaValue> Namespace(JinjaRuntime& runtime, const JinjaArgs& args) {
  KVIK_ASSIGN(JinjaDict dict, BuildDict(runtime, args));
  return runtime.Namespace(std::move(dict));
}

int DeepestOf(const std::vector<JinjaValue>& items) {
  int deepest = 0;
  for (const JinjaValue& item : items) deepest = std::max(deepest, item.nesting());
  return deepest;
}

// cycler(a, b, ...): next() gives one after the other, round and round.
class Cycler : public JinjaObject, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<JinjaValue> items)
      : JinjaObject(DeepestOf(items) + 1), items_(std::move(items)) {}

  [[nodiscard]] std::string TypeName() const override { return "Cycler"; }
  Result<std::string> Repr(JinjaRuntime& /*runtime*/) const override {
    return std::string("<Cycler object>");
  }
  Result<MaybeValue> Attribute(JinjaRuntime& runtime, std::string_view name) override {
    if (name == "current") return MaybeValue(items_[position_]);
    if (name != "next" && name != "reset") return MaybeValue();
    const bool next = name == "next";
    KVIK_ASSIGN(JinjaValue method,
                runtime.Object(std::make_shared<JinjaFunction>(
                    std::string(name),
                    [self = shared_from_this(), next](JinjaRuntime&, const JinjaArgs& args) {
                      return self->Move(args, next);
                    },
                    JinjaValue::Object(shared_from_this()))));
    return MaybeValue(std::move(method));
  }

 private:
  Result<JinjaValue> Move(const JinjaArgs& args, bool next) {
    KVIK_TRY(JinjaBoundArgs::Bind("cycler", args, {}));
    if (!next) {
      position_ = 0;
      return JinjaValue();
    }
    const size_t at = position_;
    position_ = (position_ + 1) % items_.size();
    return items_[at];
  }

  const std::vector<JinjaValue> items_;
  size_t position_ = 0;
};

Result<JinjaValue> MakeCycler(JinjaRuntime& runtime, const JinjaArgs& args) {
  if (args.positional.empty() || !args.named.empty()) {
    return Err(ErrorCode::kInvalidInput, "cycler() needs at least one item");
  }
  return runtime.Object(std::make_shared<Cycler>(args.positional));
}

// joiner(separator): gives "" the first time it is called, then the separator.
Result<JinjaValue> MakeJoiner(JinjaRuntime& runtime, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound, JinjaBoundArgs::Bind("joiner", args, {"sep"}));
  const JinjaValue separator = bound.Or(0, JinjaValue::String(", "));
  return runtime.Object(std::make_shared<JinjaFunction>(
      "joiner",
      [separator, used = std::make_shared<bool>(false)](
          JinjaRuntime&, const JinjaArgs& call) -> Result<JinjaValue> {
        KVIK_TRY(JinjaBoundArgs::Bind("joiner", call, {}));
        return std::exchange(*used, true) ? separator : JinjaValue::String("");
      },
      separator));
}

Result<JinjaValue> RaiseException(JinjaRuntime& runtime, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("raise_exception", args, {"message"}, 1));
  KVIK_ASSIGN(std::string message, JinjaStr(runtime, bound[0]));
  return Error{ErrorCode::kInvalidInput, std::move(message)};
}

Result<JinjaValue> StrftimeNow(JinjaRuntime& runtime, const JinjaArgs& args) {
  KVIK_ASSIGN(const JinjaBoundArgs bound,
              JinjaBoundArgs::Bind("strftime_now", args, {"format"}, 1));
  KVIK_ASSIGN(const std::string format, bound.Text(0, ""));
  KVIK_ASSIGN(std::string text, JinjaStrftime(runtime, format, runtime.now_s()));
  return runtime.String(std::move(text));
}

using GlobalFunction = Result<JinjaValue> (*)(JinjaRuntime&, const JinjaArgs&);

}  // namespace

Result<std::string> JinjaStrftime(JinjaRuntime& runtime, const std::string& format, int64_t now_s) {
  const auto seconds = static_cast<std::time_t>(now_s);
  std::tm time = {};
  if (gmtime_r(&seconds, &time) == nullptr) {
    return Err(ErrorCode::kInvalidInput, "strftime_now: the time is out of range");
  }
  if (format.size() > kMaxTimeBytes || !runtime.Use(kMaxTimeBytes)) return runtime.Exhausted();
  // strftime returns 0 for "does not fit" and for "is empty": a mark at the end tells them apart.
  const std::string marked = format + ".";
  std::string out(kMaxTimeBytes, '\0');
  const size_t length = std::strftime(out.data(), out.size(), marked.c_str(), &time);
  if (length == 0) return Err(ErrorCode::kInvalidInput, "strftime_now: the result is too long");
  out.resize(length - 1);
  return out;
}

JinjaValue FindJinjaGlobal(std::string_view name) {
  static const std::unordered_map<std::string_view, GlobalFunction> kGlobals = {
      {"range", Range},
      {"dict", Dict},
      {"namespace", Namespace},
      {"cycler", MakeCycler},
      {"joiner", MakeJoiner},
      {"raise_exception", RaiseException},
      {"strftime_now", StrftimeNow},
  };
  const auto it = kGlobals.find(name);
  if (it == kGlobals.end()) {
    return JinjaValue::Undefined(JinjaQuote(name) + " is undefined");
  }
  return JinjaValue::Object(std::make_shared<JinjaFunction>(std::string(name), it->second));
}

}  // namespace kvik::text
