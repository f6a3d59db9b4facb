// SPDX-License-Identifier: Apache-2.0
// text/jinja_expression_parser.h: expressions of a template, from its tokens to syntax trees.
//
// The statement parser (jinja_parser.cc) owns the tokens and calls this where an expression stands.
// Every parsing function takes the tokens of what it parses and leaves the one after current; fails
// with kInvalidInput where jinja2 raises TemplateSyntaxError. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja_ast.h"
#include "text/jinja_token_stream.h"

namespace kvik::text {

class JinjaExpressionParser {
 public:
  // Both must outlive the parser; `names` grows by the variables that occur.
  JinjaExpressionParser(JinjaTokenStream& tokens, std::vector<std::string>& names)
      : tokens_(tokens), names_(names) {}

  Result<JinjaExprPtr> Expression(bool with_condition = true);

  struct TupleOptions {
    bool names_only = false;         // assignment targets: names and literals
    bool with_condition = true;      // allow `x if y else z`
    bool parenthesized = false;      // allow the empty tuple
    bool with_namespace = false;     // allow ns.attr
    std::string_view end_name = {};  // a name that ends the tuple
  };
  // One expression, or a tuple if there is a comma.
  Result<JinjaExprPtr> TupleOrExpression(const TupleOptions& options);

  // One or more filters with nothing in front, the first named by the current token.
  Result<JinjaExprPtr> FilterChain();

  JinjaNameId NameId(const std::string& name);

  // Until LeaveMacro, `macro` is told which of the names it may be passed occur.
  void EnterMacro(JinjaMacroDef* macro) { macros_.push_back(macro); }
  void LeaveMacro() { macros_.pop_back(); }

  // The first use of a filter or test that does not exist. jinja2 refuses the template, unless the
  // use stands directly in an `if`: then it is an error only when it is reached.
  [[nodiscard]] const std::optional<Error>& unknown() const { return unknown_; }
  // Whether what follows stands directly in an `if`. Returns what was set before.
  bool SetLenient(bool lenient) { return std::exchange(lenient_, lenient); }

 private:
  Result<JinjaExprPtr> Condition();
  Result<JinjaExprPtr> Or();
  Result<JinjaExprPtr> And();
  Result<JinjaExprPtr> Not();
  Result<JinjaExprPtr> Comparison();
  std::optional<JinjaCompareOp> TakeComparison();
  Result<JinjaExprPtr> Sum();
  Result<JinjaExprPtr> Concat();
  Result<JinjaExprPtr> Product();
  std::optional<JinjaBinaryOp> TakeProductOp();
  Result<JinjaExprPtr> Power();
  Result<JinjaExprPtr> Unary(bool with_filter);

  Result<JinjaExprPtr> Primary(bool with_namespace);
  Result<JinjaExprPtr> NameOrLiteral(bool with_namespace);
  Result<JinjaExprPtr> ListLiteral(int line);
  Result<JinjaExprPtr> DictLiteral(int line);
  [[nodiscard]] bool AtTupleEnd(const TupleOptions& options) const;

  Result<JinjaExprPtr> Postfix(JinjaExprPtr expr);
  Result<JinjaExprPtr> Dotted(JinjaExprPtr object);
  Result<JinjaExprPtr> Subscript(JinjaExprPtr object);
  Result<JinjaExprPtr> SubscriptKey();
  Result<JinjaExprPtr> Call(JinjaExprPtr callee);
  Result<JinjaCallArgs> CallArgs();

  Result<JinjaExprPtr> FiltersAndTests(JinjaExprPtr expr);
  Result<JinjaExprPtr> Filter(JinjaExprPtr value);
  Result<JinjaExprPtr> Test(JinjaExprPtr value);
  [[nodiscard]] bool AtTestArgument() const;
  Result<std::string> DottedName();
  void NoteUnknown(int line, const std::string& message);

  JinjaTokenStream& tokens_;
  std::vector<std::string>& names_;
  std::unordered_map<std::string, JinjaNameId> name_ids_;
  std::vector<JinjaMacroDef*> macros_;  // being parsed, outermost first
  std::optional<Error> unknown_;
  bool lenient_ = false;  // directly in an `if`
};

}  // namespace kvik::text
