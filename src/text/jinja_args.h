// SPDX-License-Identifier: Apache-2.0
// text/jinja_args.h: how built-in functions, methods, filters and tests take their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_object.h"
#include "text/jinja_value.h"

namespace kvik::text {

// The arguments of one call, matched to parameter names as Python does.
class JinjaBoundArgs {
 public:
  // `function` names the callee in errors. `parameters` in order; a name that starts with '/' is
  // positional only. The first `required` must be given.
  static Result<JinjaBoundArgs> Bind(std::string_view function, const JinjaArgs& args,
                                     std::initializer_list<std::string_view> parameters,
                                     size_t required = 0);

  [[nodiscard]] bool Has(size_t i) const { return values_[i].has_value(); }
  // REQUIRES: Has(i).
  [[nodiscard]] const JinjaValue& operator[](size_t i) const { return *values_[i]; }
  // The argument, or None.
  [[nodiscard]] JinjaValue Or(size_t i, const JinjaValue& fallback = {}) const {
    return values_[i].has_value() ? *values_[i] : fallback;
  }
  // bool(argument).
  [[nodiscard]] bool Flag(size_t i, bool fallback) const {
    return values_[i].has_value() ? JinjaTruth(*values_[i]) : fallback;
  }
  // An int argument; `fallback` if absent.
  [[nodiscard]] Result<int64_t> Int(size_t i, int64_t fallback) const;
  // A str argument; `fallback` if absent.
  [[nodiscard]] Result<std::string> Text(size_t i, std::string fallback) const;

 private:
  std::string_view function_;
  std::vector<std::optional<JinjaValue>> values_;
};

}  // namespace kvik::text
