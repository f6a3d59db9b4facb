// SPDX-License-Identifier: Apache-2.0
// base/json_parse.h: JSON from outside: its shape is checked before a tree is built from it.
//
// A tree of JSON is copied, printed and destroyed by recursion, so its nesting must be bounded; and
// inserting into an object that keeps the order of its members is linear, so their number must be.
// Code that reads events and builds no tree (SAX) has no need of this. Pure functions.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvik {

struct JsonLimits {
  size_t max_bytes = std::numeric_limits<size_t>::max();
  int max_nesting = 64;                                     // of objects and arrays
  size_t max_members = std::numeric_limits<size_t>::max();  // of one object
};

// Nothing if `text` is within the limits; else a clause like "nests deeper than 64 levels". Text
// that is not JSON gets either. O(size), no recursion, memory for max_nesting counters.
std::optional<std::string> JsonExcess(std::string_view text, const JsonLimits& limits);

// `what` of an exception of nlohmann's library: without the library's tag in front, and since it
// quotes the text, at most 200 bytes and printable ASCII.
std::string JsonExceptionText(std::string_view what);

// Parses all of `text`. kInvalidInput with a clause that wants a subject: "nests deeper than 64
// levels", "is not valid JSON: parse error at line 1, column 5: ...". `Json` is nlohmann::json or
// nlohmann::ordered_json, which the caller includes.
template <typename Json>
Result<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  if (std::optional<std::string> excess = JsonExcess(text, limits)) {
    return Error{ErrorCode::kInvalidInput, *std::move(excess)};
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const typename Json::exception& e) {
    return Error{ErrorCode::kInvalidInput, "is not valid JSON: " + JsonExceptionText(e.what())};
  }
}

}  // namespace kvik
