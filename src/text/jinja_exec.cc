// SPDX-License-Identifier: Apache-2.0
// Statements. Scopes follow jinja2: for, macros, call, filter and set blocks, with and block open
// one, if does not.
#include <algorithm>

#include "text/jinja_interpreter.h"
#include "text/jinja_loop.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

// A macro as a value.
class MacroObject : public JinjaCallable {
 public:
  MacroObject(JinjaInterpreter& interpreter, const JinjaMacroDef& def,
              std::shared_ptr<JinjaScope> closure)
      : interpreter_(interpreter), def_(def), closure_(std::move(closure)) {}

  [[nodiscard]] std::string TypeName() const override { return "Macro"; }
  Result<std::optional<JinjaValue>> Attribute(JinjaRuntime& runtime,
                                              std::string_view name) override {
    std::optional<JinjaValue> value;
    if (name == "name") {
      value = def_.name.empty() ? JinjaValue() : JinjaValue::String(def_.name);
    } else if (name == "arguments") {
      std::vector<JinjaValue> names;
      names.reserve(def_.parameter_names.size());
      for (const std::string& parameter : def_.parameter_names) {
        names.push_back(JinjaValue::String(parameter));
      }
      KVIK_ASSIGN(value, runtime.Tuple(std::move(names)));
    } else if (name == "catch_kwargs") {
      value = JinjaValue::Bool(def_.uses_kwargs);
    } else if (name == "catch_varargs") {
      value = JinjaValue::Bool(def_.uses_varargs);
    } else if (name == "caller") {
      value = JinjaValue::Bool(def_.uses_caller);
    }
    return value;
  }
  Result<std::string> Repr(JinjaRuntime& /*runtime*/) const override {
    return def_.name.empty() ? "<Macro anonymous>" : "<Macro '" + def_.name + "'>";
  }
  Result<JinjaValue> Call(JinjaRuntime& /*runtime*/, JinjaArgs args) override {
    return interpreter_.CallMacro(def_, closure_, std::move(args));
  }

 private:
  JinjaInterpreter& interpreter_;
  const JinjaMacroDef& def_;
  const std::shared_ptr<JinjaScope> closure_;
};

// Sets a variable for a block of C++ and puts the old value back.
template <typename T>
class Restore {
 public:
  Restore(T& variable, T value) : variable_(variable), old_(std::move(variable)) {
    variable_ = std::move(value);
  }
  ~Restore() { variable_ = std::move(old_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& variable_;
  T old_;
};

std::shared_ptr<JinjaScope> NewScope(std::shared_ptr<JinjaScope> parent) {
  auto scope = std::make_shared<JinjaScope>();
  scope->parent = std::move(parent);
  return scope;
}

// Messages quote what the template and its variables say; an error is still one line of bounded
// length.
std::string OneLine(const std::string& message) {
  constexpr size_t kMaxCodePoints = 1000;
  std::string line = message.substr(0, OffsetOfCodePoint(message, kMaxCodePoints));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

// Takes the argument `name` out of the named ones.
std::optional<JinjaValue> TakeNamed(JinjaArgs* args, std::string_view name) {
  const auto it = std::find_if(args->named.begin(), args->named.end(),
                               [name](const auto& argument) { return argument.first == name; });
  if (it == args->named.end()) return std::nullopt;
  std::optional<JinjaValue> value = std::move(it->second);
  args->named.erase(it);
  return value;
}

}  // namespace

const JinjaValue* JinjaScope::Find(JinjaNameId name) const {
  for (const auto& [variable, value] : variables) {
    if (variable == name) return &value;
  }
  return nullptr;
}

void JinjaScope::Set(JinjaNameId name, JinjaValue value) {
  for (auto& [variable, old] : variables) {
    if (variable == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

JinjaInterpreter::JinjaInterpreter(const JinjaTemplate& parsed, const JinjaValue& context,
                                   const JinjaLimits& limits, int64_t now_s)
    : template_(parsed), context_(context), runtime_(limits, now_s), outer_(parsed.names.size()) {
  const auto it = std::find(parsed.names.begin(), parsed.names.end(), "loop");
  if (it != parsed.names.end()) {
    loop_name_ = static_cast<JinjaNameId>(it - parsed.names.begin());
  }
}

JinjaInterpreter::~JinjaInterpreter() {
  for (const auto& loop : kept_loops_) loop->Forget();
  for (const auto& scope : captured_) scope->variables.clear();
  for (const auto& scope : captured_) scope->parent.reset();
}

Result<std::string> JinjaInterpreter::Run() {
  std::string text;
  out_ = &text;
  Hide(template_.hidden);
  const Result<Flow> flow = ExecBody(template_.body);
  if (!flow) {
    std::string message = OneLine(flow.error().message);
    if (error_line_ != 0) message.insert(0, "line " + std::to_string(error_line_) + ": ");
    return Error{flow.error().code, std::move(message)};
  }
  return text;
}

void JinjaInterpreter::Capture(const std::shared_ptr<JinjaScope>& scope) {
  // Holding a scope keeps those around it alive, and they may be left by then: all are noted, so
  // that taking them apart never recurses from one to the next.
  for (std::shared_ptr<JinjaScope> at = scope; at != nullptr && !at->captured; at = at->parent) {
    at->captured = true;
    captured_.push_back(at);
  }
}

void JinjaInterpreter::KeepForCleanup(std::shared_ptr<JinjaLoop> loop) {
  kept_loops_.push_back(std::move(loop));
}

Result<void> JinjaInterpreter::Write(std::string_view text) {
  if (text.size() > runtime_.limits().max_output_bytes - out_->size()) {
    return Err(ErrorCode::kExhausted, "the template writes too much text");
  }
  if (!runtime_.Use(text.size())) return runtime_.Exhausted();
  out_->append(text);
  return {};
}

Result<void> JinjaInterpreter::WriteValue(const JinjaValue& value) {
  if (value.is_string()) return Write(value.text());
  KVIK_ASSIGN(const std::string text, JinjaStr(runtime_, value));
  return Write(text);
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecBody(const JinjaBody& body) {
  for (const auto& statement : body) {
    KVIK_ASSIGN(const Flow flow, Exec(*statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::Exec(const JinjaStatement& statement) {
  Result<Flow> flow = [&]() -> Result<Flow> {
    const JinjaDepth depth(runtime_);
    if (!depth.ok() || !runtime_.Step()) return runtime_.Exhausted();
    return ExecInner(statement);
  }();
  if (!flow && error_line_ == 0) error_line_ = statement.line;
  return flow;
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecInner(const JinjaStatement& statement) {
  using Kind = JinjaStatement::Kind;
  switch (statement.kind) {
    case Kind::kText:
      KVIK_TRY(Write(statement.text));
      return Flow::kNext;
    case Kind::kOutput:
      for (const JinjaExprPtr& expr : statement.exprs) {
        KVIK_ASSIGN(const JinjaValue value, Eval(*expr));
        KVIK_TRY(WriteValue(value));
      }
      return Flow::kNext;
    case Kind::kIf:
      return ExecIf(statement);
    case Kind::kFor:
      return ExecFor(statement);
    case Kind::kSet: {
      KVIK_ASSIGN(JinjaValue value, Eval(*statement.exprs[0]));
      KVIK_TRY(Assign(*statement.target, std::move(value)));
      return Flow::kNext;
    }
    case Kind::kSetBlock:
      return ExecSetBlock(statement);
    case Kind::kMacro: {
      KVIK_ASSIGN(JinjaValue macro, MakeMacro(*statement.macro));
      scope_->Set(statement.name, std::move(macro));
      return Flow::kNext;
    }
    case Kind::kCallBlock:
      return ExecCallBlock(statement);
    case Kind::kFilterBlock:
      return ExecFilterBlock(statement);
    case Kind::kWith:
      return ExecWith(statement);
    case Kind::kScope:
      return ExecScoped(statement, 0, statement.isolated ? root_ : scope_);
    case Kind::kAutoescape: {
      KVIK_ASSIGN(const JinjaValue on, Eval(*statement.exprs[0]));
      if (JinjaTruth(on)) {
        return Err(ErrorCode::kUnsupported, "autoescape is not supported in chat templates");
      }
      return ExecScoped(statement, 0, scope_);
    }
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
    case Kind::kUnsupported:
      return Err(ErrorCode::kUnsupported,
                 "'%s' needs another template, and a chat template stands alone",
                 statement.text.c_str());
  }
  return Flow::kNext;
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecIf(const JinjaStatement& statement) {
  for (size_t i = 0; i < statement.exprs.size(); ++i) {
    KVIK_ASSIGN(const JinjaValue test, Eval(*statement.exprs[i]));
    if (JinjaTruth(test)) return ExecBody(statement.bodies[i]);
  }
  if (statement.bodies.size() > statement.exprs.size()) return ExecBody(statement.bodies.back());
  return Flow::kNext;
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecFor(const JinjaStatement& statement) {
  KVIK_ASSIGN(const JinjaValue iterable, Eval(*statement.exprs[0]));
  if (!statement.recursive) return RunLoop(statement, iterable, 0);
  KVIK_ASSIGN(const JinjaValue text, CallLoop(statement, scope_, iterable, 0));
  KVIK_TRY(Write(text.text()));
  return Flow::kNext;
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::RunLoop(const JinjaStatement& statement,
                                                         const JinjaValue& iterable,
                                                         int64_t depth0) {
  KVIK_ASSIGN(JinjaCursor cursor, JinjaCursor::Open(iterable));
  auto loop = std::make_shared<JinjaLoop>(*this, statement, scope_, std::move(cursor),
                                          iterable.nesting(), depth0);
  KVIK_ASSIGN(const JinjaValue loop_value, runtime_.Object(loop));
  const std::shared_ptr<JinjaScope> parent = scope_;
  if (statement.recursive) Capture(parent);
  // jinja2's `else` runs if no iteration reached the end of the body.
  bool reached_end = false;
  {
    Restore<std::shared_ptr<JinjaScope>> restore(scope_, nullptr);
    while (true) {
      KVIK_ASSIGN(std::optional<JinjaValue> item, loop->Next(runtime_));
      if (!item) break;
      // Every iteration starts with fresh variables; the scope itself is reused unless it is held.
      if (scope_ == nullptr || scope_.use_count() > 1) {
        scope_ = NewScope(parent);
      } else {
        scope_->variables.clear();
      }
      Hide(statement.hidden[0]);
      if (loop_name_) scope_->Set(*loop_name_, loop_value);
      KVIK_TRY(Assign(*statement.target, *std::move(item)));
      KVIK_ASSIGN(const Flow flow, ExecBody(statement.bodies[0]));
      if (flow == Flow::kBreak) break;
      if (flow == Flow::kNext) reached_end = true;
    }
  }
  if (!reached_end && statement.bodies.size() > 1) return ExecScoped(statement, 1, parent);
  return Flow::kNext;
}

Result<JinjaValue> JinjaInterpreter::CallLoop(const JinjaStatement& statement,
                                              const std::shared_ptr<JinjaScope>& scope,
                                              const JinjaValue& iterable, int64_t depth) {
  std::string text;
  {
    const Restore<std::shared_ptr<JinjaScope>> in_scope(scope_, scope);
    const Restore<std::string*> into(out_, &text);
    KVIK_TRY(RunLoop(statement, iterable, depth));
  }
  return runtime_.String(std::move(text));
}

Result<bool> JinjaInterpreter::PassesFilter(const JinjaStatement& loop,
                                            const std::shared_ptr<JinjaScope>& scope,
                                            const JinjaValue& item) {
  const Restore<std::shared_ptr<JinjaScope>> in_scope(scope_, NewScope(scope));
  KVIK_TRY(Assign(*loop.target, item));
  KVIK_ASSIGN(const JinjaValue test, Eval(*loop.filter));
  return JinjaTruth(test);
}

void JinjaInterpreter::Hide(const std::vector<JinjaNameId>& names) {
  for (const JinjaNameId name : names) {
    // What neither the context nor the globals know is undefined anyway.
    if (LookupOuter(name).is_undefined()) continue;
    scope_->Set(name, JinjaValue::Undefined(JinjaQuote(template_.names[name]) + " is undefined"));
  }
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecScoped(const JinjaStatement& statement,
                                                            size_t i,
                                                            std::shared_ptr<JinjaScope> parent) {
  const Restore<std::shared_ptr<JinjaScope>> in_scope(scope_, NewScope(std::move(parent)));
  Hide(statement.hidden[i]);
  return ExecBody(statement.bodies[i]);
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecCaptured(const JinjaStatement& statement,
                                                              std::string* text) {
  const Restore<std::string*> into(out_, text);
  return ExecScoped(statement, 0, scope_);
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecSetBlock(const JinjaStatement& statement) {
  std::string text;
  KVIK_ASSIGN(const Flow flow, ExecCaptured(statement, &text));
  if (flow != Flow::kNext) return flow;
  JinjaValue value = JinjaValue::String(std::move(text));
  if (statement.filter != nullptr) {
    KVIK_ASSIGN(value, EvalFilter(*statement.filter, &value));
  }
  KVIK_TRY(Assign(*statement.target, std::move(value)));
  return Flow::kNext;
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecFilterBlock(const JinjaStatement& statement) {
  std::string text;
  KVIK_ASSIGN(const Flow flow, ExecCaptured(statement, &text));
  if (flow != Flow::kNext) return flow;
  const JinjaValue input = JinjaValue::String(std::move(text));
  KVIK_ASSIGN(const JinjaValue value, EvalFilter(*statement.filter, &input));
  KVIK_TRY(WriteValue(value));
  return Flow::kNext;
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecCallBlock(const JinjaStatement& statement) {
  KVIK_ASSIGN(const JinjaValue caller, MakeMacro(*statement.macro));
  KVIK_ASSIGN(const JinjaValue value, EvalCall(*statement.exprs[0], &caller));
  KVIK_TRY(WriteValue(value));
  return Flow::kNext;
}

Result<JinjaInterpreter::Flow> JinjaInterpreter::ExecWith(const JinjaStatement& statement) {
  KVIK_ASSIGN(std::vector<JinjaValue> values, EvalAll(statement.exprs));
  const Restore<std::shared_ptr<JinjaScope>> in_scope(scope_, NewScope(scope_));
  for (size_t i = 0; i < values.size(); ++i) {
    KVIK_TRY(Assign(*statement.targets[i], std::move(values[i])));
  }
  Hide(statement.hidden[0]);
  return ExecBody(statement.bodies[0]);
}

Result<void> JinjaInterpreter::Assign(const JinjaExpr& target, JinjaValue value) {
  switch (target.kind) {
    case JinjaExpr::Kind::kName:
      scope_->Set(target.name, std::move(value));
      return {};
    case JinjaExpr::Kind::kNamespaceRef: {
      const JinjaValue& ns = Lookup(target.name);
      auto* object = ns.is_object() ? dynamic_cast<JinjaNamespace*>(&ns.object()) : nullptr;
      if (object == nullptr) {
        return Err(ErrorCode::kInvalidInput, "cannot assign attribute on non-namespace object");
      }
      if (!runtime_.Use(4 * sizeof(JinjaValue))) return runtime_.Exhausted();
      object->attributes.Set(target.text, std::move(value));
      return {};
    }
    default:
      break;
  }
  KVIK_ASSIGN(std::vector<JinjaValue> items, JinjaCollect(runtime_, value));
  if (items.size() != target.children.size()) {
    return Err(ErrorCode::kInvalidInput, "cannot unpack %zu values into %zu names", items.size(),
               target.children.size());
  }
  for (size_t i = 0; i < items.size(); ++i) {
    KVIK_TRY(Assign(*target.children[i], std::move(items[i])));
  }
  return {};
}

Result<JinjaValue> JinjaInterpreter::MakeMacro(const JinjaMacroDef& def) {
  Capture(scope_);
  return runtime_.Object(std::make_shared<MacroObject>(*this, def, scope_));
}

Result<JinjaValue> JinjaInterpreter::CallMacro(const JinjaMacroDef& def,
                                               const std::shared_ptr<JinjaScope>& closure,
                                               JinjaArgs args) {
  const Restore<std::shared_ptr<JinjaScope>> in_scope(scope_, NewScope(closure));
  Hide(def.hidden);
  const size_t count = def.parameters.size();
  const auto names_parameter = [&def](std::string_view name) {
    return std::find(def.parameter_names.begin(), def.parameter_names.end(), name) !=
           def.parameter_names.end();
  };
  const auto id = [this](std::string_view name) {
    const auto it = std::find(template_.names.begin(), template_.names.end(), name);
    return static_cast<JinjaNameId>(it - template_.names.begin());
  };
  // The names that a body may use without declaring them.
  if (def.uses_caller && !names_parameter("caller")) {
    const std::optional<JinjaValue> caller = TakeNamed(&args, "caller");
    scope_->Set(id("caller"), caller ? *caller : JinjaValue::Undefined("No caller defined"));
  }
  if (def.uses_varargs && !names_parameter("varargs")) {
    std::vector<JinjaValue> rest;
    if (args.positional.size() > count) {
      rest.assign(args.positional.begin() + static_cast<ptrdiff_t>(count), args.positional.end());
      args.positional.resize(count);
    }
    KVIK_ASSIGN(JinjaValue tuple, runtime_.Tuple(std::move(rest)));
    scope_->Set(id("varargs"), std::move(tuple));
  }
  if (args.positional.size() > count) {
    return Err(ErrorCode::kInvalidInput, "macro '%s' takes not more than %zu arguments",
               def.name.c_str(), count);
  }
  const size_t without_default = count - def.defaults.size();
  std::vector<std::optional<JinjaValue>> given(count);
  for (size_t i = 0; i < count; ++i) {
    given[i] = i < args.positional.size() ? std::optional(args.positional[i])
                                          : TakeNamed(&args, def.parameter_names[i]);
  }
  if (def.uses_kwargs && !names_parameter("kwargs")) {
    JinjaDict rest;
    for (auto& [name, value] : args.named) rest.Set(name, std::move(value));
    args.named.clear();
    KVIK_ASSIGN(JinjaValue dict, runtime_.Dict(std::move(rest)));
    scope_->Set(id("kwargs"), std::move(dict));
  }
  if (!args.named.empty()) {
    return Err(ErrorCode::kInvalidInput, "macro '%s' has no parameter '%s'", def.name.c_str(),
               args.named[0].first.c_str());
  }
  // Defaults are evaluated in order and see the parameters before them.
  for (size_t i = 0; i < count; ++i) {
    if (!given[i] && i >= without_default) {
      KVIK_ASSIGN(given[i], Eval(*def.defaults[i - without_default]));
    }
    scope_->Set(def.parameters[i],
                given[i] ? *given[i]
                         : JinjaValue::Undefined("parameter '" + def.parameter_names[i] +
                                                 "' was not provided"));
  }
  std::string text;
  {
    const Restore<std::string*> into(out_, &text);
    KVIK_TRY(ExecBody(def.body));
  }
  return runtime_.String(std::move(text));
}

Result<std::string> JinjaRender(const JinjaTemplate& parsed, const JinjaValue& context,
                                const JinjaLimits& limits, int64_t now_s) {
  return JinjaInterpreter(parsed, context, limits, now_s).Run();
}

}  // namespace kvik::text
