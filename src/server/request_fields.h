// SPDX-License-Identifier: Apache-2.0
// server/request_fields.h: reads the members of a JSON object of a request. Private to the module.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/types.h"
#include "server/api_error.h"
#include "text/jinja_value.h"

namespace kvik::server {

// Ordered: templates print tools and arguments in the client's order.
using Json = nlohmann::ordered_json;

inline ApiError BadField(std::string param, const std::string& what) {
  ApiError error;
  error.message = "Invalid value for '" + param + "': " + what;
  error.param = std::move(param);
  return error;
}

// An integer, or a float that is one (16.0).
inline std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? std::numeric_limits<int64_t>::max()
               : static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::fabs(number) < 9e15) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

inline std::string Quote(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) {
    text = text.substr(0, 60) + "...";
  }
  return text;
}

// Reads the members of one object. The first mistake sticks; readers after it give defaults, so a
// parser is a list of fields with one check at its end.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] const ApiError& error() const { return *error_; }

  void Fail(const std::string& name, const std::string& what) {
    if (!error_) {
      error_ = BadField(prefix_ + name, what);
    }
  }
  void Adopt(const Fields& other) {
    if (!error_ && other.error_) {
      error_ = other.error_;
    }
  }

  // nullptr when absent or null.
  [[nodiscard]] const Json* Find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  bool Bool(const char* name, bool default_value) {
    const Json* value = Find(name);
    if (value == nullptr) {
      return default_value;
    }
    if (!value->is_boolean()) {
      Fail(name, "must be true or false, not " + Quote(*value));
      return default_value;
    }
    return value->get<bool>();
  }

  std::optional<int64_t> OptionalInt(const char* name, int64_t low, int64_t high) {
    const Json* value = Find(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    const std::optional<int64_t> number = AsInteger(*value);
    if (!number) {
      Fail(name, "must be an integer, not " + Quote(*value));
    } else if (*number < low || *number > high) {
      Fail(name, "must be between " + std::to_string(low) + " and " + std::to_string(high) +
                     ", not " + Quote(*value));
      return std::nullopt;
    }
    return number;
  }
  int64_t Int(const char* name, int64_t default_value, int64_t low, int64_t high) {
    return OptionalInt(name, low, high).value_or(default_value);
  }
  int32_t Int32(const char* name, int32_t default_value, int32_t low, int32_t high) {
    return static_cast<int32_t>(Int(name, default_value, low, high));
  }

  // In [low, high], or (low, high] with `above_low`.
  float Float(const char* name, float default_value, float low, float high,
              bool above_low = false) {
    const Json* value = Find(name);
    if (value == nullptr) {
      return default_value;
    }
    if (!value->is_number()) {
      Fail(name, "must be a number, not " + Quote(*value));
      return default_value;
    }
    const auto number = value->get<float>();  // the limits are such
    if (!(above_low ? number > low : number >= low) || !(number <= high)) {
      Fail(name, Format("must be %s %g and at most %g, not ", above_low ? "above" : "at least",
                        static_cast<double>(low), static_cast<double>(high)) +
                     Quote(*value));
      return default_value;
    }
    return number;
  }

  std::string String(const char* name, size_t max_bytes) {
    const Json* value = Find(name);
    if (value == nullptr) {
      return {};
    }
    if (!value->is_string()) {
      Fail(name, "must be a string, not " + Quote(*value));
      return {};
    }
    const auto& text = value->get_ref<const std::string&>();
    if (text.size() > max_bytes) {
      Fail(name, "is longer than " + std::to_string(max_bytes) + " bytes");
      return {};
    }
    return text;
  }

  // A list of token ids; `what` names the elements in messages.
  std::vector<TokenId> TokenIds(const std::string& name, const Json& list) {
    std::vector<TokenId> ids;
    if (!list.is_array()) {
      Fail(name, "must be a list of token ids, not " + Quote(list));
      return ids;
    }
    ids.reserve(list.size());
    for (const Json& element : list) {
      const std::optional<int64_t> id =
          element.is_number_integer() ? AsInteger(element) : std::nullopt;
      if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
        Fail(name,
             "element " + std::to_string(ids.size()) + " is not a token id: " + Quote(element));
        return {};
      }
      ids.push_back(static_cast<TokenId>(*id));
    }
    return ids;
  }

  // Fields that are known and not done. Absent, null and `harmless` pass.
  void Reject(const char* name, const char* why = "is not supported",
              const Json& harmless = nullptr) {
    const Json* value = Find(name);
    if (value != nullptr && *value != harmless) {
      if (!error_) {
        error_ = ApiError();
        error_->message = "'" + prefix_ + name + "' " + why + ".";
        error_->param = prefix_ + name;
        error_->code = "unsupported_parameter";
      }
    }
  }

  text::JinjaValue ToJinja(const std::string& name, const Json& value) {
    Result<text::JinjaValue> converted = text::JinjaValue::FromJson(value.dump());
    if (!converted) {
      Fail(name, converted.error().message);
      return {};
    }
    return std::move(converted).value();
  }

 private:
  const Json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

}  // namespace kvik::server
