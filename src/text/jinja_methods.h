// SPDX-License-Identifier: Apache-2.0
// text/jinja_methods.h: the methods of strings, lists, tuples, dictionaries and numbers.
//
// Only what changes nothing: jinja2's immutable sandbox hides append(), update() and their like.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/jinja_object.h"
#include "text/jinja_runtime.h"
#include "text/jinja_value.h"

namespace kvik::text {

using JinjaMethod = Result<JinjaValue> (*)(JinjaRuntime& runtime, const JinjaValue& self,
                                           const JinjaArgs& args);

// The method `name` of values of self's kind, or nullptr.
JinjaMethod FindJinjaMethod(const JinjaValue& self, std::string_view name);
// The same for one kind (jinja_string_methods.cc, jinja_methods.cc).
JinjaMethod FindJinjaStringMethod(std::string_view name);

// str.split(separator, limit) and rsplit; `separator` null splits at white space. A negative limit
// is none.
Result<JinjaValue> JinjaSplit(JinjaRuntime& runtime, const JinjaValue& text,
                              const std::string_view* separator, int64_t limit, bool from_right);
// str.splitlines().
std::vector<std::string_view> JinjaSplitLines(std::string_view text, bool keep_ends);
// str.replace(old, new, count); a negative count replaces all.
Result<std::string> JinjaReplace(JinjaRuntime& runtime, std::string_view text,
                                 std::string_view old_part, std::string_view new_part,
                                 int64_t count);
// separator.join(items): items must be strings.
Result<JinjaValue> JinjaJoin(JinjaRuntime& runtime, std::string_view separator,
                             const std::vector<JinjaValue>& items);
// str.center(width, fill).
Result<std::string> JinjaCenter(JinjaRuntime& runtime, std::string_view text, int64_t width,
                                std::string_view fill);
// The first occurrence of `part` at or after byte `from`, or npos. Accounts for the work.
Result<size_t> JinjaFindBytes(JinjaRuntime& runtime, std::string_view text, std::string_view part,
                              size_t from);
// The last occurrence of `part`, or npos. Accounts for the work.
Result<size_t> JinjaFindLastBytes(JinjaRuntime& runtime, std::string_view text,
                                  std::string_view part);

}  // namespace kvik::text
