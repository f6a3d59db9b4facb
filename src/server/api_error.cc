// SPDX-License-Identifier: Apache-2.0
#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace kvik::server {

ApiError FromError(const Error& error, std::string param) {
  ApiError api;
  api.message = error.message;
  api.param = std::move(param);
  switch (error.code) {
    case ErrorCode::kInvalidInput:
    case ErrorCode::kUnsupported:
      break;
    case ErrorCode::kNotFound:
      api.status = 404;
      break;
    case ErrorCode::kUnavailable:
    case ErrorCode::kExhausted:
    case ErrorCode::kTimeout:
      api.status = 503;
      api.type = "service_unavailable_error";
      break;
    case ErrorCode::kCorrupt:
    case ErrorCode::kInternal:
      api.status = 500;
      api.type = "internal_error";
      break;
  }
  return api;
}

std::string FormatError(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json inner;
  inner["message"] = error.message;
  inner["type"] = error.type;
  inner["param"] = or_null(error.param);
  inner["code"] = or_null(error.code);
  nlohmann::ordered_json json;
  json["error"] = std::move(inner);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kvik::server
