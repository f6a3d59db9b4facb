// SPDX-License-Identifier: Apache-2.0
// text/jinja_lexer.h: template text to tokens, with trim_blocks and lstrip_blocks on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvik::text {

enum class JinjaTokenType {
  kData,           // template text, white space control already applied
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct JinjaToken {
  JinjaTokenType type = JinjaTokenType::kEnd;
  int line = 1;
  std::string text;  // data; name; string value; operator
  int64_t integer = 0;
  double floating = 0;

  [[nodiscard]] bool IsOperator(std::string_view op) const {
    return type == JinjaTokenType::kOperator && text == op;
  }
  [[nodiscard]] bool IsName(std::string_view name) const {
    return type == JinjaTokenType::kName && text == name;
  }
};

// "line 3: message", the form of all errors of a template.
Error JinjaSyntaxError(int line, const std::string& message);

// The tokens of `source`, the last one kEnd. Fails with kInvalidInput on what no token starts with.
// Time and memory are linear in source.size().
Result<std::vector<JinjaToken>> JinjaTokenize(std::string_view source);

}  // namespace kvik::text
