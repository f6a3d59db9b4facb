// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <cstdarg>
#include <cstdio>
#include <vector>

namespace kvik {

const char* ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kInvalidInput:
      return "invalid input";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kExhausted:
      return "exhausted";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

Error Err(ErrorCode code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string message;
  if (length > 0) {
    message.resize(static_cast<size_t>(length));
    std::vsnprintf(message.data(), message.size() + 1, format, again);
  }
  va_end(again);
  return Error{code, std::move(message)};
}

}  // namespace kvik
