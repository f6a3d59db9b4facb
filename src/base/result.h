// SPDX-License-Identifier: Apache-2.0
// base/result.h: the one error channel for what can happen in the field.
//
// Result<T> holds a T or an Error. Shaped like std::expected (value(), error(), has_value(),
// operator*), so that a later swap is one alias; unlike it, a dropped Result warns.
// What cannot happen is KVIK_CHECK (base/check.h); normal absence is std::optional.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace kvik {

// Few codes: each asks the caller for a different reaction.
enum class ErrorCode {
  kNotFound,      // the thing named does not exist
  kInvalidInput,  // the caller's data is wrong: tell the user, do not retry
  kCorrupt,       // stored or received bytes are damaged: treat as a miss or refuse the file
  kUnavailable,   // try again later
  kTimeout,       // the deadline passed
  kExhausted,     // out of memory, disk, blocks
  kUnsupported,   // well formed, but this build cannot do it
  kInternal,      // a bug that was contained
};

// "not found", "invalid input", ... for messages and metrics labels.
const char* ErrorCodeName(ErrorCode code);

// One sentence a user can act on: what was wrong, where, what to do.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  // The same error, told with where it happened: "<context>: <message>".
  [[nodiscard]] Error Wrap(const std::string& context) const {
    return Error{code, context + ": " + message};
  }
};

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  // REQUIRES: has_value().
  [[nodiscard]] T& value() & {
    KVIK_CHECK(has_value(), "Result has no value: %s", std::get<1>(state_).message.c_str());
    return std::get<0>(state_);
  }
  [[nodiscard]] const T& value() const& {
    KVIK_CHECK(has_value(), "Result has no value: %s", std::get<1>(state_).message.c_str());
    return std::get<0>(state_);
  }
  [[nodiscard]] T&& value() && {
    KVIK_CHECK(has_value(), "Result has no value: %s", std::get<1>(state_).message.c_str());
    return std::get<0>(std::move(state_));
  }
  // REQUIRES: !has_value().
  [[nodiscard]] const Error& error() const& {
    KVIK_CHECK(!has_value(), "Result has a value, not an error");
    return std::get<1>(state_);
  }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : failed_(true), error_(std::move(error)) {}  // NOLINT
  [[nodiscard]] bool has_value() const { return !failed_; }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] const Error& error() const {
    KVIK_CHECK(failed_, "Result has a value, not an error");
    return error_;
  }

 private:
  bool failed_ = false;
  Error error_;
};

// `return Err(ErrorCode::kCorrupt, "...")` from any function that returns a Result.
// The format is printf's.
[[nodiscard]] Error Err(ErrorCode code, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

}  // namespace kvik

// KVIK_TRY(expr): leaves the function with the error of a Result<void> (or any Result).
#define KVIK_TRY(expr)                  \
  do {                                  \
    auto kvik_try_result = (expr);      \
    if (!kvik_try_result.has_value()) { \
      return kvik_try_result.error();   \
    }                                   \
  } while (false)

#define KVIK_CONCAT_INNER(a, b) a##b
#define KVIK_CONCAT(a, b) KVIK_CONCAT_INNER(a, b)

// KVIK_ASSIGN(auto x, expr): declares x from a Result's value or leaves with its error.
#define KVIK_ASSIGN(lhs, expr) KVIK_ASSIGN_INNER(KVIK_CONCAT(kvik_result_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration and a new name take no parentheses
#define KVIK_ASSIGN_INNER(result, lhs, expr) \
  auto result = (expr);                      \
  if (!result.has_value()) {                 \
    return result.error();                   \
  }                                          \
  lhs = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)
