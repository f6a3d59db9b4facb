// SPDX-License-Identifier: Apache-2.0
// text/jinja_runtime.h: what one rendering may still use, and how it makes values.
//
// Every loop over values or text that a template can make long asks Step or Use first. Both count
// up for the whole rendering, so the limits bound time and memory however the work is spread.
// Owned by the thread that renders.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/jinja_object.h"
#include "text/jinja_value.h"

namespace kvik::text {

class JinjaRuntime {
 public:
  JinjaRuntime(const JinjaLimits& limits, int64_t now_s) : limits_(limits), now_s_(now_s) {}
  JinjaRuntime(const JinjaRuntime&) = delete;
  JinjaRuntime& operator=(const JinjaRuntime&) = delete;
  // Takes apart the namespaces, so that values which hold each other are freed.
  ~JinjaRuntime();

  // Accounts for work. False when the limit is reached: return Exhausted().
  [[nodiscard]] bool Step(uint64_t steps = 1) {
    if (steps > limits_.max_steps - steps_) return Refuse("takes too many steps");
    steps_ += steps;
    return true;
  }
  // Accounts for memory about to be allocated.
  [[nodiscard]] bool Use(uint64_t bytes) {
    if (bytes > limits_.max_working_bytes - bytes_) return Refuse("needs too much memory");
    bytes_ += bytes;
    return true;
  }
  // Enters a nested evaluation; each true is followed by one Leave.
  [[nodiscard]] bool Enter() {
    if (depth_ >= limits_.max_depth) return Refuse("is nested too deeply");
    ++depth_;
    return true;
  }
  void Leave() { --depth_; }
  [[nodiscard]] Error Exhausted() const;

  // Values, accounted for.
  Result<JinjaValue> String(std::string text);
  Result<JinjaValue> List(std::vector<JinjaValue> items);
  Result<JinjaValue> Tuple(std::vector<JinjaValue> items);
  Result<JinjaValue> Dict(JinjaDict dict);
  Result<JinjaValue> Object(std::shared_ptr<JinjaObject> object);
  Result<JinjaValue> Iterator(std::string type_name, std::vector<JinjaValue> items,
                              std::optional<Error> error = std::nullopt);
  Result<JinjaValue> Namespace(JinjaDict attributes);

  [[nodiscard]] const JinjaLimits& limits() const { return limits_; }
  [[nodiscard]] int64_t now_s() const { return now_s_; }

 private:
  bool Refuse(const char* why) {
    refusal_ = why;
    return false;
  }

  const JinjaLimits limits_;
  const int64_t now_s_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
  int depth_ = 0;
  const char* refusal_ = "";
  std::vector<std::shared_ptr<JinjaNamespace>> namespaces_;
};

// Leaves one nested evaluation on destruction. `ok()` is false if it could not be entered.
class JinjaDepth {
 public:
  explicit JinjaDepth(JinjaRuntime& runtime) : runtime_(runtime), ok_(runtime.Enter()) {}
  ~JinjaDepth() {
    if (ok_) runtime_.Leave();
  }
  JinjaDepth(const JinjaDepth&) = delete;
  JinjaDepth& operator=(const JinjaDepth&) = delete;
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  JinjaRuntime& runtime_;
  const bool ok_;
};

}  // namespace kvik::text
