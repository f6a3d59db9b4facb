// SPDX-License-Identifier: Apache-2.0
// text/jinja_ast.h: a parsed template. Built by jinja_parser, immutable afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja_ops.h"
#include "text/jinja_value.h"

namespace kvik::text {

// Variables are numbers: indices into JinjaTemplate::names.
using JinjaNameId = uint32_t;

struct JinjaExpr;
using JinjaExprPtr = std::unique_ptr<JinjaExpr>;

// The arguments of a call, filter or test, as written.
struct JinjaCallArgs {
  std::vector<JinjaExprPtr> positional;
  std::vector<std::pair<std::string, JinjaExprPtr>> named;
  JinjaExprPtr star;         // *args
  JinjaExprPtr double_star;  // **kwargs
};

// One node of an expression. `kind` says which fields it uses:
struct JinjaExpr {
  enum class Kind {
    kConstant,      // constant
    kName,          // name
    kNamespaceRef,  // name, text: `ns.attr` as the target of a set
    kList,          // children
    kTuple,         // children
    kDict,          // children: key, value, key, value, ...
    kAttribute,     // children[0], text
    kItem,          // children[0], children[1]
    kSlice,         // children[0], children[1..3] (start, stop, step; null where left out)
    kCall,          // children[0], args
    kFilter,        // children[0] (null in a filter block), text, args
    kTest,          // children[0], text, args
    kUnary,         // children[0], op: '-' '+' '!'
    kBinary,        // children[0], children[1], binary
    kConcat,        // children
    kCompare,       // children[0], children[i + 1] compared by comparisons[i]
    kAnd,           // children[0], children[1]
    kOr,            // children[0], children[1]
    kCondition,     // children: test, then, else (null: undefined)
  };

  Kind kind = Kind::kConstant;
  char op = 0;
  JinjaBinaryOp binary = JinjaBinaryOp::kAdd;
  JinjaNameId name = 0;
  int line = 1;
  int depth = 1;  // 1 + the deepest child
  std::string text;
  JinjaValue constant;
  std::vector<JinjaExprPtr> children;
  std::vector<JinjaCompareOp> comparisons;
  JinjaCallArgs args;
};

struct JinjaStatement;
using JinjaBody = std::vector<std::unique_ptr<JinjaStatement>>;

// Parameters and body of a macro or a call block.
struct JinjaMacroDef {
  std::string name;  // empty for a call block
  std::vector<std::string> parameter_names;
  std::vector<JinjaNameId> parameters;
  std::vector<JinjaExprPtr> defaults;  // of the last defaults.size() parameters
  // The body uses these names, so calls may pass them.
  bool uses_caller = false;
  bool uses_kwargs = false;
  bool uses_varargs = false;
  JinjaBody body;
  std::vector<JinjaNameId> hidden;  // as JinjaStatement::hidden
};

// One statement. `kind` says which fields it uses:
struct JinjaStatement {
  enum class Kind {
    kText,       // text
    kOutput,     // exprs
    kIf,         // exprs[i] guards bodies[i]; one more body is the else
    kFor,        // target, exprs[0] iterable, filter (may be null), recursive, bodies[0], [1] else
    kSet,        // target, exprs[0]
    kSetBlock,   // target, filter (may be null), bodies[0]
    kMacro,      // macro, name
    kCallBlock,  // macro, exprs[0] the call
    kFilterBlock,  // filter, bodies[0]
    kWith,         // targets, exprs, bodies[0]
    kScope,        // bodies[0]: {% block %} and {% generation %}
    kAutoescape,   // exprs[0], bodies[0]
    kBreak,
    kContinue,
    kUnsupported,  // text: a tag that needs other templates
  };

  Kind kind = Kind::kText;
  bool recursive = false;
  bool isolated = false;  // kScope: sees only the template's own variables ({% block %})
  JinjaNameId name = 0;
  int line = 1;
  std::string text;
  JinjaExprPtr target;
  std::vector<JinjaExprPtr> targets;
  std::vector<JinjaExprPtr> exprs;
  JinjaExprPtr filter;
  std::vector<JinjaBody> bodies;
  // Per body that is a scope: names that are undefined in it until it sets them, even if the
  // context knows them (jinja_scopes.cc).
  std::vector<std::vector<JinjaNameId>> hidden;
  std::unique_ptr<JinjaMacroDef> macro;
};

struct JinjaTemplate {
  JinjaBody body;
  std::vector<JinjaNameId> hidden;  // as JinjaStatement::hidden
  std::vector<std::string> names;
};

}  // namespace kvik::text
