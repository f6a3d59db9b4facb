// SPDX-License-Identifier: Apache-2.0
// text/jinja_interpreter.h: renders a parsed template by walking its tree.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/jinja_ast.h"
#include "text/jinja_object.h"
#include "text/jinja_runtime.h"
#include "text/jinja_value.h"

namespace kvik::text {

// Renders `parsed` with the variables in `context` (a dict). Errors start with the line.
Result<std::string> JinjaRender(const JinjaTemplate& parsed, const JinjaValue& context,
                                const JinjaLimits& limits, int64_t now_s);

// The variables of one block of the template. A name is looked up from the innermost scope outwards
// and set in the innermost.
struct JinjaScope {
  std::shared_ptr<JinjaScope> parent;
  std::vector<std::pair<JinjaNameId, JinjaValue>> variables;
  bool captured = false;  // a macro or recursive loop holds it

  [[nodiscard]] const JinjaValue* Find(JinjaNameId name) const;
  void Set(JinjaNameId name, JinjaValue value);
};

class JinjaLoop;

class JinjaInterpreter {
 public:
  JinjaInterpreter(const JinjaTemplate& parsed, const JinjaValue& context,
                   const JinjaLimits& limits, int64_t now_s);
  JinjaInterpreter(const JinjaInterpreter&) = delete;
  JinjaInterpreter& operator=(const JinjaInterpreter&) = delete;
  // Takes apart what macros and loops captured, so that values which hold each other are freed.
  ~JinjaInterpreter();

  Result<std::string> Run();

  // Calls the macro `def`, defined in `closure`.
  Result<JinjaValue> CallMacro(const JinjaMacroDef& def, const std::shared_ptr<JinjaScope>& closure,
                               JinjaArgs args);
  // Runs the recursive loop `statement` over `iterable`, in `scope`; gives what it writes.
  Result<JinjaValue> CallLoop(const JinjaStatement& statement,
                              const std::shared_ptr<JinjaScope>& scope, const JinjaValue& iterable,
                              int64_t depth);
  // Whether `item`, assigned to the loop's target, passes the loop's `if`.
  Result<bool> PassesFilter(const JinjaStatement& loop, const std::shared_ptr<JinjaScope>& scope,
                            const JinjaValue& item);
  // `loop` holds a value that may hold `loop`; see the destructor.
  void KeepForCleanup(std::shared_ptr<JinjaLoop> loop);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // --- jinja_exec.cc
  Result<Flow> ExecBody(const JinjaBody& body);
  Result<Flow> Exec(const JinjaStatement& statement);
  Result<Flow> ExecInner(const JinjaStatement& statement);
  Result<Flow> ExecIf(const JinjaStatement& statement);
  Result<Flow> ExecFor(const JinjaStatement& statement);
  Result<Flow> RunLoop(const JinjaStatement& statement, const JinjaValue& iterable, int64_t depth0);
  Result<Flow> ExecSetBlock(const JinjaStatement& statement);
  Result<Flow> ExecCallBlock(const JinjaStatement& statement);
  Result<Flow> ExecFilterBlock(const JinjaStatement& statement);
  Result<Flow> ExecWith(const JinjaStatement& statement);
  // Body `i` of the statement, in a new scope inside `parent`.
  Result<Flow> ExecScoped(const JinjaStatement& statement, size_t i,
                          std::shared_ptr<JinjaScope> parent);
  // The first body in a new scope, written to `text` instead of the output.
  Result<Flow> ExecCaptured(const JinjaStatement& statement, std::string* text);
  // Makes the names undefined in the current scope.
  void Hide(const std::vector<JinjaNameId>& names);
  Result<void> Write(std::string_view text);
  Result<void> WriteValue(const JinjaValue& value);
  Result<void> Assign(const JinjaExpr& target, JinjaValue value);
  Result<JinjaValue> MakeMacro(const JinjaMacroDef& def);
  void Capture(const std::shared_ptr<JinjaScope>& scope);

  // --- jinja_eval.cc
  Result<JinjaValue> Eval(const JinjaExpr& expr);
  Result<JinjaValue> EvalInner(const JinjaExpr& expr);
  Result<std::vector<JinjaValue>> EvalAll(const std::vector<JinjaExprPtr>& exprs);
  Result<JinjaArgs> EvalArgs(const JinjaCallArgs& args);
  Result<JinjaValue> EvalDict(const JinjaExpr& expr);
  Result<JinjaValue> EvalItem(const JinjaExpr& expr);
  Result<JinjaValue> EvalSlice(const JinjaExpr& expr);
  // `caller`: passed as the argument of that name if not null.
  Result<JinjaValue> EvalCall(const JinjaExpr& expr, const JinjaValue* caller);
  // `input`: the value of a filter that has no operand.
  Result<JinjaValue> EvalFilter(const JinjaExpr& expr, const JinjaValue* input);
  Result<JinjaValue> EvalTest(const JinjaExpr& expr);
  Result<JinjaValue> EvalUnary(const JinjaExpr& expr);
  Result<JinjaValue> EvalConcat(const JinjaExpr& expr);
  Result<JinjaValue> EvalCompare(const JinjaExpr& expr);
  Result<JinjaValue> EvalCondition(const JinjaExpr& expr);
  const JinjaValue& Lookup(JinjaNameId name);
  // The variable of the context, or global, of this name.
  const JinjaValue& LookupOuter(JinjaNameId name);

  const JinjaTemplate& template_;
  const JinjaValue& context_;
  JinjaRuntime runtime_;
  std::shared_ptr<JinjaScope> root_ = std::make_shared<JinjaScope>();
  std::shared_ptr<JinjaScope> scope_ = root_;
  std::string* out_ = nullptr;
  int error_line_ = 0;
  // Variables of the context and globals, by name, once they were looked up.
  std::vector<std::optional<JinjaValue>> outer_;
  std::optional<JinjaNameId> loop_name_;
  std::vector<std::shared_ptr<JinjaScope>> captured_;
  std::vector<std::shared_ptr<JinjaLoop>> kept_loops_;
};

}  // namespace kvik::text
