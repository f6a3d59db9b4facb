// SPDX-License-Identifier: Apache-2.0
// server/api_error.h: errors as OpenAI's API tells them.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/result.h"

namespace kvik::server {

// {"error": {"message", "type", "param", "code"}} with an HTTP status.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field at fault, "messages[2].content"; empty = null
  std::string code;   // "context_length_exceeded", ...; empty = null
};

// A value, or what to tell the client.
template <typename T>
using ApiResult = std::variant<T, ApiError>;

template <typename T>
[[nodiscard]] bool Failed(const ApiResult<T>& result) {
  return std::holds_alternative<ApiError>(result);
}

// The error of something that went wrong inside: kInvalidInput and kUnsupported are the client's
// (400), kUnavailable and kExhausted pass (503), the rest is ours (500).
ApiError FromError(const Error& error, std::string param = "");

// The JSON body.
std::string FormatError(const ApiError& error);

}  // namespace kvik::server
