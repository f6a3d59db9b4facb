// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_args.h"

#include "text/jinja_ops.h"

namespace kvik::text {

Result<JinjaBoundArgs> JinjaBoundArgs::Bind(std::string_view function, const JinjaArgs& args,
                                            std::initializer_list<std::string_view> parameters,
                                            size_t required) {
  const std::string name(function);
  JinjaBoundArgs bound;
  bound.function_ = function;
  bound.values_.resize(parameters.size());
  if (args.positional.size() > parameters.size()) {
    return Err(ErrorCode::kInvalidInput, "%s() takes at most %zu arguments, %zu given",
               name.c_str(), parameters.size(), args.positional.size());
  }
  for (size_t i = 0; i < args.positional.size(); ++i) bound.values_[i] = args.positional[i];
  for (const auto& [keyword, value] : args.named) {
    size_t i = 0;
    while (i < parameters.size() && parameters.begin()[i] != keyword) ++i;
    if (i == parameters.size()) {
      return Err(ErrorCode::kInvalidInput, "%s() has no argument named '%s'", name.c_str(),
                 keyword.c_str());
    }
    if (bound.values_[i]) {
      return Err(ErrorCode::kInvalidInput, "%s() got two values for '%s'", name.c_str(),
                 keyword.c_str());
    }
    bound.values_[i] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound.values_[i]) {
      return Err(ErrorCode::kInvalidInput, "%s() needs its argument number %zu", name.c_str(),
                 i + 1);
    }
  }
  return bound;
}

Result<int64_t> JinjaBoundArgs::Int(size_t i, int64_t fallback) const {
  if (!values_[i]) return fallback;
  return JinjaIndex(*values_[i], std::string(function_).c_str());
}

Result<std::string> JinjaBoundArgs::Text(size_t i, std::string fallback) const {
  if (!values_[i]) return fallback;
  const JinjaValue& value = *values_[i];
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return JinjaUndefinedError(value);
  return Err(ErrorCode::kInvalidInput, "%s() needs a string, not '%s'",
             std::string(function_).c_str(), JinjaTypeName(value).c_str());
}

}  // namespace kvik::text
