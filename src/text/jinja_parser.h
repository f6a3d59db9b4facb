// SPDX-License-Identifier: Apache-2.0
// text/jinja_parser.h: template text to syntax tree.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "text/jinja_ast.h"

namespace kvik::text {

// Fails with kInvalidInput where jinja2 raises TemplateSyntaxError, and on nesting beyond what the
// interpreter's stack is meant for.
Result<std::shared_ptr<const JinjaTemplate>> JinjaParse(std::string_view source);

}  // namespace kvik::text
