// SPDX-License-Identifier: Apache-2.0
// text/jinja_format.h: Python's two ways to format text, JSON output and HTML escapes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/jinja_object.h"
#include "text/jinja_runtime.h"
#include "text/jinja_value.h"

namespace kvik::text {

// `format % values`: values is a tuple, a dict for %(name)s, or one value.
Result<JinjaValue> JinjaFormatPercent(JinjaRuntime& runtime, const JinjaValue& format,
                                      const JinjaValue& values);
// format.format(*args, **kwargs).
Result<JinjaValue> JinjaFormatBraces(JinjaRuntime& runtime, std::string_view format,
                                     const JinjaArgs& args);

struct JinjaJsonOptions {
  std::optional<std::string> indent;  // one level's; unset writes one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
// json.dumps(value).
Result<std::string> JinjaToJson(JinjaRuntime& runtime, const JinjaValue& value,
                                const JinjaJsonOptions& options);

// & < > ' " as character references.
std::string JinjaEscapeHtml(std::string_view text);

// strftime(format) of the UTC time `now_s` seconds after 1970.
Result<std::string> JinjaStrftime(JinjaRuntime& runtime, const std::string& format, int64_t now_s);

}  // namespace kvik::text
