// SPDX-License-Identifier: Apache-2.0
// text/jinja_scopes.h: which variables a block hides from its start.
#pragma once

#include "text/jinja_ast.h"

namespace kvik::text {

// Fills the `hidden` lists of the whole template; see JinjaStatement::hidden.
void JinjaFindHiddenNames(JinjaTemplate* parsed);

}  // namespace kvik::text
