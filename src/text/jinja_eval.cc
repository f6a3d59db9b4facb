// SPDX-License-Identifier: Apache-2.0
// Expressions.
#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_methods.h"
#include "text/jinja_ops.h"

namespace kvik::text {

const JinjaValue& JinjaInterpreter::Lookup(JinjaNameId name) {
  for (const JinjaScope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const JinjaValue* found = scope->Find(name)) return *found;
  }
  return LookupOuter(name);
}

const JinjaValue& JinjaInterpreter::LookupOuter(JinjaNameId name) {
  std::optional<JinjaValue>& outer = outer_[name];
  if (!outer) {
    const std::string& text = template_.names[name];
    const JinjaValue* found = context_.Find(text);
    outer = found != nullptr ? *found : FindJinjaGlobal(text);
  }
  return *outer;
}

Result<JinjaValue> JinjaInterpreter::Eval(const JinjaExpr& expr) {
  if (!runtime_.Enter()) return runtime_.Exhausted();
  Result<JinjaValue> value =
      runtime_.Step() ? EvalInner(expr) : Result<JinjaValue>(runtime_.Exhausted());
  runtime_.Leave();
  if (!value && error_line_ == 0) error_line_ = expr.line;
  return value;
}

Result<JinjaValue> JinjaInterpreter::EvalInner(const JinjaExpr& expr) {
  using Kind = JinjaExpr::Kind;
  switch (expr.kind) {
    case Kind::kConstant:
      return expr.constant;
    case Kind::kName:
    case Kind::kNamespaceRef:
      return Lookup(expr.name);
    case Kind::kList: {
      KVIK_ASSIGN(std::vector<JinjaValue> items, EvalAll(expr.children));
      return runtime_.List(std::move(items));
    }
    case Kind::kTuple: {
      KVIK_ASSIGN(std::vector<JinjaValue> items, EvalAll(expr.children));
      return runtime_.Tuple(std::move(items));
    }
    case Kind::kDict:
      return EvalDict(expr);
    case Kind::kAttribute: {
      KVIK_ASSIGN(const JinjaValue object, Eval(*expr.children[0]));
      return JinjaGetAttribute(runtime_, object, expr.text);
    }
    case Kind::kItem:
      return EvalItem(expr);
    case Kind::kSlice:
      return EvalSlice(expr);
    case Kind::kCall:
      return EvalCall(expr, nullptr);
    case Kind::kFilter:
      return EvalFilter(expr, nullptr);
    case Kind::kTest:
      return EvalTest(expr);
    case Kind::kUnary:
      return EvalUnary(expr);
    case Kind::kBinary: {
      KVIK_ASSIGN(const JinjaValue left, Eval(*expr.children[0]));
      KVIK_ASSIGN(const JinjaValue right, Eval(*expr.children[1]));
      return JinjaBinary(runtime_, expr.binary, left, right);
    }
    case Kind::kConcat:
      return EvalConcat(expr);
    case Kind::kCompare:
      return EvalCompare(expr);
    case Kind::kAnd:
    case Kind::kOr: {
      KVIK_ASSIGN(JinjaValue left, Eval(*expr.children[0]));
      if (JinjaTruth(left) == (expr.kind == Kind::kOr)) return left;
      return Eval(*expr.children[1]);
    }
    case Kind::kCondition:
      return EvalCondition(expr);
  }
  return JinjaValue();
}

Result<std::vector<JinjaValue>> JinjaInterpreter::EvalAll(const std::vector<JinjaExprPtr>& exprs) {
  std::vector<JinjaValue> values;
  values.reserve(exprs.size());
  for (const JinjaExprPtr& expr : exprs) {
    KVIK_ASSIGN(JinjaValue value, Eval(*expr));
    values.push_back(std::move(value));
  }
  return values;
}

Result<JinjaArgs> JinjaInterpreter::EvalArgs(const JinjaCallArgs& args) {
  JinjaArgs values;
  KVIK_ASSIGN(values.positional, EvalAll(args.positional));
  values.named.reserve(args.named.size());
  for (const auto& [name, expr] : args.named) {
    KVIK_ASSIGN(JinjaValue value, Eval(*expr));
    values.named.emplace_back(name, std::move(value));
  }
  if (args.star != nullptr) {
    KVIK_ASSIGN(const JinjaValue star, Eval(*args.star));
    KVIK_ASSIGN(const std::vector<JinjaValue> rest, JinjaCollect(runtime_, star));
    values.positional.insert(values.positional.end(), rest.begin(), rest.end());
  }
  if (args.double_star != nullptr) {
    KVIK_ASSIGN(const JinjaValue named, Eval(*args.double_star));
    if (!named.is_dict()) {
      return Err(ErrorCode::kInvalidInput, "the argument after ** must be a mapping, not '%s'",
                 JinjaTypeName(named).c_str());
    }
    for (const auto& [key, value] : named.dict().entries()) {
      if (!key.is_string()) return Err(ErrorCode::kInvalidInput, "keywords must be strings");
      for (const auto& [name, unused] : values.named) {
        if (name == key.text()) {
          return Err(ErrorCode::kInvalidInput, "argument '%s' is given twice", name.c_str());
        }
      }
      if (!runtime_.Step(1 + values.named.size())) return runtime_.Exhausted();
      values.named.emplace_back(key.text(), value);
    }
  }
  return values;
}

Result<JinjaValue> JinjaInterpreter::EvalDict(const JinjaExpr& expr) {
  JinjaDict dict;
  for (size_t i = 0; i < expr.children.size(); i += 2) {
    KVIK_ASSIGN(JinjaValue key, Eval(*expr.children[i]));
    KVIK_ASSIGN(JinjaValue value, Eval(*expr.children[i + 1]));
    if (!JinjaDict::IsHashable(key)) {
      return Err(ErrorCode::kInvalidInput, "unhashable type: '%s'", JinjaTypeName(key).c_str());
    }
    dict.Set(std::move(key), std::move(value));
  }
  return runtime_.Dict(std::move(dict));
}

Result<JinjaValue> JinjaInterpreter::EvalItem(const JinjaExpr& expr) {
  KVIK_ASSIGN(const JinjaValue object, Eval(*expr.children[0]));
  KVIK_ASSIGN(const JinjaValue key, Eval(*expr.children[1]));
  return JinjaGetItem(runtime_, object, key);
}

Result<JinjaValue> JinjaInterpreter::EvalSlice(const JinjaExpr& expr) {
  KVIK_ASSIGN(const JinjaValue object, Eval(*expr.children[0]));
  JinjaValue bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1] == nullptr) continue;
    KVIK_ASSIGN(bounds[i], Eval(*expr.children[i + 1]));
  }
  return JinjaSlice(runtime_, object, bounds[0], bounds[1], bounds[2]);
}

Result<JinjaValue> JinjaInterpreter::EvalCall(const JinjaExpr& expr, const JinjaValue* caller) {
  const JinjaExpr& callee_expr = *expr.children[0];
  if (callee_expr.kind == JinjaExpr::Kind::kAttribute && caller == nullptr) {
    // A method is called without making a value of it first.
    KVIK_ASSIGN(const JinjaValue object, Eval(*callee_expr.children[0]));
    if (!object.is_object() && !object.is_undefined()) {
      if (const JinjaMethod method = FindJinjaMethod(object, callee_expr.text)) {
        KVIK_ASSIGN(const JinjaArgs args, EvalArgs(expr.args));
        return method(runtime_, object, args);
      }
    }
    KVIK_ASSIGN(const JinjaValue callee, JinjaGetAttribute(runtime_, object, callee_expr.text));
    KVIK_ASSIGN(JinjaArgs args, EvalArgs(expr.args));
    return JinjaCall(runtime_, callee, std::move(args));
  }
  KVIK_ASSIGN(const JinjaValue callee, Eval(callee_expr));
  KVIK_ASSIGN(JinjaArgs args, EvalArgs(expr.args));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  return JinjaCall(runtime_, callee, std::move(args));
}

Result<JinjaValue> JinjaInterpreter::EvalFilter(const JinjaExpr& expr, const JinjaValue* input) {
  const JinjaFilter filter = FindJinjaFilter(expr.text);
  if (filter == nullptr) {
    return Err(ErrorCode::kInvalidInput, "no filter named '%s'", expr.text.c_str());
  }
  JinjaValue value;
  const JinjaExpr* operand = expr.children[0].get();
  if (operand == nullptr) {
    value = *input;
  } else if (input != nullptr && operand->kind == JinjaExpr::Kind::kFilter) {
    // The operand-less filter is at the start of this chain.
    const JinjaDepth depth(runtime_);
    if (!depth.ok()) return runtime_.Exhausted();
    KVIK_ASSIGN(value, EvalFilter(*operand, input));
  } else {
    KVIK_ASSIGN(value, Eval(*operand));
  }
  KVIK_ASSIGN(const JinjaArgs args, EvalArgs(expr.args));
  return filter(runtime_, value, args);
}

Result<JinjaValue> JinjaInterpreter::EvalTest(const JinjaExpr& expr) {
  const JinjaTest test = FindJinjaTest(expr.text);
  if (test == nullptr) {
    return Err(ErrorCode::kInvalidInput, "no test named '%s'", expr.text.c_str());
  }
  KVIK_ASSIGN(const JinjaValue value, Eval(*expr.children[0]));
  KVIK_ASSIGN(const JinjaArgs args, EvalArgs(expr.args));
  KVIK_ASSIGN(const bool holds, test(runtime_, value, args));
  return JinjaValue::Bool(holds);
}

Result<JinjaValue> JinjaInterpreter::EvalUnary(const JinjaExpr& expr) {
  KVIK_ASSIGN(const JinjaValue value, Eval(*expr.children[0]));
  if (expr.op == '!') return JinjaValue::Bool(!JinjaTruth(value));
  return expr.op == '-' ? JinjaNegate(value) : JinjaPlus(value);
}

Result<JinjaValue> JinjaInterpreter::EvalConcat(const JinjaExpr& expr) {
  std::string text;
  for (const JinjaExprPtr& child : expr.children) {
    KVIK_ASSIGN(const JinjaValue value, Eval(*child));
    if (value.is_string()) {
      if (!runtime_.Use(value.text().size())) return runtime_.Exhausted();
      text += value.text();
      continue;
    }
    KVIK_ASSIGN(const std::string part, JinjaStr(runtime_, value));
    text += part;
  }
  return runtime_.String(std::move(text));
}

Result<JinjaValue> JinjaInterpreter::EvalCompare(const JinjaExpr& expr) {
  KVIK_ASSIGN(JinjaValue left, Eval(*expr.children[0]));
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    KVIK_ASSIGN(JinjaValue right, Eval(*expr.children[i + 1]));
    KVIK_ASSIGN(const bool holds, JinjaCompare(runtime_, expr.comparisons[i], left, right));
    if (!holds) return JinjaValue::Bool(false);
    left = std::move(right);
  }
  return JinjaValue::Bool(true);
}

Result<JinjaValue> JinjaInterpreter::EvalCondition(const JinjaExpr& expr) {
  KVIK_ASSIGN(const JinjaValue test, Eval(*expr.children[0]));
  if (JinjaTruth(test)) return Eval(*expr.children[1]);
  if (expr.children[2] != nullptr) return Eval(*expr.children[2]);
  return JinjaValue::Undefined("the inline if-expression on line " + std::to_string(expr.line) +
                               " evaluated to false and no else section was defined");
}

}  // namespace kvik::text
