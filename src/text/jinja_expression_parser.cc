// SPDX-License-Identifier: Apache-2.0
// Recursive descent, one function per level of precedence, loosest first:
//   x if c else y, or, and, not, comparisons, + -, ~, * / // %, **, unary, postfix, filters, tests.
#include "text/jinja_expression_parser.h"

#include <algorithm>
#include <utility>

#include "text/jinja_builtins.h"

namespace kvik::text {
namespace {

using Kind = JinjaExpr::Kind;
using ExprResult = Result<JinjaExprPtr>;

// How long a chain of operators may be: it is walked recursively.
constexpr int kMaxExprDepth = 400;

JinjaExprPtr New(Kind kind, int line) {
  auto expr = std::make_unique<JinjaExpr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

JinjaExprPtr New(Kind kind, int line, JinjaExprPtr first, JinjaExprPtr second = nullptr) {
  JinjaExprPtr expr = New(kind, line);
  expr->children.push_back(std::move(first));
  if (second != nullptr) expr->children.push_back(std::move(second));
  return expr;
}

// Completes a node: its depth is that of its children and one.
ExprResult Done(JinjaExprPtr expr) {
  int deepest = 0;
  const auto look = [&deepest](const JinjaExprPtr& child) {
    if (child != nullptr) deepest = std::max(deepest, child->depth);
  };
  for (const JinjaExprPtr& child : expr->children) look(child);
  for (const JinjaExprPtr& child : expr->args.positional) look(child);
  for (const auto& [name, child] : expr->args.named) look(child);
  look(expr->args.star);
  look(expr->args.double_star);
  expr->depth = deepest + 1;
  if (expr->depth > kMaxExprDepth) return JinjaSyntaxError(expr->line, "too long an expression");
  return expr;
}

ExprResult Constant(JinjaValue value, int line) {
  JinjaExprPtr expr = New(Kind::kConstant, line);
  expr->constant = std::move(value);
  return expr;
}

}  // namespace

JinjaNameId JinjaExpressionParser::NameId(const std::string& name) {
  const auto [it, added] = name_ids_.emplace(name, static_cast<JinjaNameId>(names_.size()));
  if (added) names_.push_back(name);
  return it->second;
}

ExprResult JinjaExpressionParser::Expression(bool with_condition) {
  const JinjaTokenStream::Level level(tokens_);
  if (level.too_deep()) return tokens_.Fail("expressions nest too deeply");
  return with_condition ? Condition() : Or();
}

ExprResult JinjaExpressionParser::Condition() {
  const int line = tokens_.Current().line;
  const std::optional<Error> unknown_before = unknown_;
  KVIK_ASSIGN(JinjaExprPtr then, Or());
  while (tokens_.SkipName("if")) {
    KVIK_ASSIGN(JinjaExprPtr test, Or());
    JinjaExprPtr otherwise;
    if (tokens_.SkipName("else")) {
      const JinjaTokenStream::Level level(tokens_);
      if (level.too_deep()) return tokens_.Fail("expressions nest too deeply");
      KVIK_ASSIGN(otherwise, Condition());
    }
    JinjaExprPtr expr = New(Kind::kCondition, line);
    expr->children.push_back(std::move(test));
    expr->children.push_back(std::move(then));
    expr->children.push_back(std::move(otherwise));
    KVIK_ASSIGN(then, Done(std::move(expr)));
    unknown_ = unknown_before;
  }
  return then;
}

ExprResult JinjaExpressionParser::Or() {
  KVIK_ASSIGN(JinjaExprPtr left, And());
  while (tokens_.Current().IsName("or")) {
    const int line = tokens_.Take().line;
    KVIK_ASSIGN(JinjaExprPtr right, And());
    KVIK_ASSIGN(left, Done(New(Kind::kOr, line, std::move(left), std::move(right))));
  }
  return left;
}

ExprResult JinjaExpressionParser::And() {
  KVIK_ASSIGN(JinjaExprPtr left, Not());
  while (tokens_.Current().IsName("and")) {
    const int line = tokens_.Take().line;
    KVIK_ASSIGN(JinjaExprPtr right, Not());
    KVIK_ASSIGN(left, Done(New(Kind::kAnd, line, std::move(left), std::move(right))));
  }
  return left;
}

ExprResult JinjaExpressionParser::Not() {
  if (!tokens_.Current().IsName("not")) return Comparison();
  const JinjaTokenStream::Level level(tokens_);
  if (level.too_deep()) return tokens_.Fail("expressions nest too deeply");
  const int line = tokens_.Take().line;
  KVIK_ASSIGN(JinjaExprPtr operand, Not());
  JinjaExprPtr expr = New(Kind::kUnary, line, std::move(operand));
  expr->op = '!';
  return Done(std::move(expr));
}

std::optional<JinjaCompareOp> JinjaExpressionParser::TakeComparison() {
  static constexpr std::pair<std::string_view, JinjaCompareOp> kOps[] = {
      {"==", JinjaCompareOp::kEq}, {"!=", JinjaCompareOp::kNe}, {"<", JinjaCompareOp::kLt},
      {"<=", JinjaCompareOp::kLe}, {">", JinjaCompareOp::kGt},  {">=", JinjaCompareOp::kGe}};
  for (const auto& [text, op] : kOps) {
    if (tokens_.SkipOperator(text)) return op;
  }
  if (tokens_.SkipName("in")) return JinjaCompareOp::kIn;
  if (tokens_.Current().IsName("not") && tokens_.Ahead().IsName("in")) {
    tokens_.Take();
    tokens_.Take();
    return JinjaCompareOp::kNotIn;
  }
  return std::nullopt;
}

ExprResult JinjaExpressionParser::Comparison() {
  const int line = tokens_.Current().line;
  KVIK_ASSIGN(JinjaExprPtr first, Sum());
  std::optional<JinjaCompareOp> op = TakeComparison();
  if (!op) return first;
  JinjaExprPtr expr = New(Kind::kCompare, line, std::move(first));
  for (; op; op = TakeComparison()) {
    KVIK_ASSIGN(JinjaExprPtr operand, Sum());
    expr->comparisons.push_back(*op);
    expr->children.push_back(std::move(operand));
  }
  return Done(std::move(expr));
}

ExprResult JinjaExpressionParser::Sum() {
  KVIK_ASSIGN(JinjaExprPtr left, Concat());
  while (tokens_.Current().IsOperator("+") || tokens_.Current().IsOperator("-")) {
    const bool add = tokens_.Current().IsOperator("+");
    const int line = tokens_.Take().line;
    KVIK_ASSIGN(JinjaExprPtr right, Concat());
    JinjaExprPtr expr = New(Kind::kBinary, line, std::move(left), std::move(right));
    expr->binary = add ? JinjaBinaryOp::kAdd : JinjaBinaryOp::kSub;
    KVIK_ASSIGN(left, Done(std::move(expr)));
  }
  return left;
}

ExprResult JinjaExpressionParser::Concat() {
  const int line = tokens_.Current().line;
  KVIK_ASSIGN(JinjaExprPtr first, Product());
  if (!tokens_.Current().IsOperator("~")) return first;
  JinjaExprPtr expr = New(Kind::kConcat, line, std::move(first));
  while (tokens_.SkipOperator("~")) {
    KVIK_ASSIGN(JinjaExprPtr operand, Product());
    expr->children.push_back(std::move(operand));
  }
  return Done(std::move(expr));
}

std::optional<JinjaBinaryOp> JinjaExpressionParser::TakeProductOp() {
  if (tokens_.SkipOperator("*")) return JinjaBinaryOp::kMul;
  if (tokens_.SkipOperator("/")) return JinjaBinaryOp::kDiv;
  if (tokens_.SkipOperator("//")) return JinjaBinaryOp::kFloorDiv;
  if (tokens_.SkipOperator("%")) return JinjaBinaryOp::kMod;
  return std::nullopt;
}

ExprResult JinjaExpressionParser::Product() {
  KVIK_ASSIGN(JinjaExprPtr left, Power());
  while (true) {
    const int line = tokens_.Current().line;
    const std::optional<JinjaBinaryOp> op = TakeProductOp();
    if (!op) return left;
    KVIK_ASSIGN(JinjaExprPtr right, Power());
    JinjaExprPtr expr = New(Kind::kBinary, line, std::move(left), std::move(right));
    expr->binary = *op;
    KVIK_ASSIGN(left, Done(std::move(expr)));
  }
}

ExprResult JinjaExpressionParser::Power() {
  KVIK_ASSIGN(JinjaExprPtr left, Unary(true));
  while (tokens_.Current().IsOperator("**")) {
    const int line = tokens_.Take().line;
    KVIK_ASSIGN(JinjaExprPtr right, Unary(true));
    JinjaExprPtr expr = New(Kind::kBinary, line, std::move(left), std::move(right));
    expr->binary = JinjaBinaryOp::kPow;
    KVIK_ASSIGN(left, Done(std::move(expr)));
  }
  return left;
}

ExprResult JinjaExpressionParser::Unary(bool with_filter) {
  const JinjaTokenStream::Level level(tokens_);
  if (level.too_deep()) return tokens_.Fail("expressions nest too deeply");
  JinjaExprPtr expr;
  if (tokens_.Current().IsOperator("-") || tokens_.Current().IsOperator("+")) {
    const char op = tokens_.Current().text[0];
    const int line = tokens_.Take().line;
    KVIK_ASSIGN(JinjaExprPtr operand, Unary(false));
    expr = New(Kind::kUnary, line, std::move(operand));
    expr->op = op;
    KVIK_ASSIGN(expr, Done(std::move(expr)));
  } else {
    KVIK_ASSIGN(expr, Primary(false));
  }
  KVIK_ASSIGN(expr, Postfix(std::move(expr)));
  if (!with_filter) return expr;
  return FiltersAndTests(std::move(expr));
}

ExprResult JinjaExpressionParser::Primary(bool with_namespace) {
  const JinjaToken& token = tokens_.Current();
  const int line = token.line;
  switch (token.type) {
    case JinjaTokenType::kName:
      return NameOrLiteral(with_namespace);
    case JinjaTokenType::kString: {
      std::string text = tokens_.Take().text;
      while (tokens_.Current().type == JinjaTokenType::kString) text += tokens_.Take().text;
      return Constant(JinjaValue::String(std::move(text)), line);
    }
    case JinjaTokenType::kInteger:
      return Constant(JinjaValue::Int(tokens_.Take().integer), line);
    case JinjaTokenType::kFloat:
      return Constant(JinjaValue::Float(tokens_.Take().floating), line);
    case JinjaTokenType::kOperator:
      break;
    default:
      return tokens_.Fail("unexpected " + JinjaTokenStream::Describe(token));
  }
  if (tokens_.SkipOperator("(")) {
    KVIK_ASSIGN(JinjaExprPtr expr, TupleOrExpression({.parenthesized = true}));
    KVIK_TRY(tokens_.ExpectOperator(")"));
    return expr;
  }
  if (tokens_.SkipOperator("[")) return ListLiteral(line);
  if (tokens_.SkipOperator("{")) return DictLiteral(line);
  return tokens_.Fail("unexpected " + JinjaTokenStream::Describe(token));
}

ExprResult JinjaExpressionParser::NameOrLiteral(bool with_namespace) {
  const int line = tokens_.Current().line;
  const std::string name = tokens_.Take().text;
  if (name == "true" || name == "True") return Constant(JinjaValue::Bool(true), line);
  if (name == "false" || name == "False") return Constant(JinjaValue::Bool(false), line);
  if (name == "none" || name == "None") return Constant(JinjaValue(), line);
  JinjaExprPtr expr = New(Kind::kName, line);
  expr->name = NameId(name);
  if (with_namespace && tokens_.SkipOperator(".")) {
    if (tokens_.Current().type != JinjaTokenType::kName) return tokens_.Expected("a name");
    expr->kind = Kind::kNamespaceRef;
    expr->text = tokens_.Take().text;
  }
  for (JinjaMacroDef* macro : macros_) {
    macro->uses_caller |= name == "caller";
    macro->uses_kwargs |= name == "kwargs";
    macro->uses_varargs |= name == "varargs";
  }
  return expr;
}

ExprResult JinjaExpressionParser::ListLiteral(int line) {
  JinjaExprPtr list = New(Kind::kList, line);
  while (!tokens_.Current().IsOperator("]")) {
    if (!list->children.empty()) KVIK_TRY(tokens_.ExpectOperator(","));
    if (tokens_.Current().IsOperator("]")) break;
    KVIK_ASSIGN(JinjaExprPtr item, Expression());
    list->children.push_back(std::move(item));
  }
  tokens_.Take();
  return Done(std::move(list));
}

ExprResult JinjaExpressionParser::DictLiteral(int line) {
  JinjaExprPtr dict = New(Kind::kDict, line);
  while (!tokens_.Current().IsOperator("}")) {
    if (!dict->children.empty()) KVIK_TRY(tokens_.ExpectOperator(","));
    if (tokens_.Current().IsOperator("}")) break;
    KVIK_ASSIGN(JinjaExprPtr key, Expression());
    KVIK_TRY(tokens_.ExpectOperator(":"));
    KVIK_ASSIGN(JinjaExprPtr value, Expression());
    dict->children.push_back(std::move(key));
    dict->children.push_back(std::move(value));
  }
  tokens_.Take();
  return Done(std::move(dict));
}

bool JinjaExpressionParser::AtTupleEnd(const TupleOptions& options) const {
  const JinjaToken& token = tokens_.Current();
  return token.type == JinjaTokenType::kVariableEnd || token.type == JinjaTokenType::kBlockEnd ||
         token.IsOperator(")") || (!options.end_name.empty() && token.IsName(options.end_name));
}

// One expression, or a tuple if there is a comma.
ExprResult JinjaExpressionParser::TupleOrExpression(const TupleOptions& options) {
  const int line = tokens_.Current().line;
  std::vector<JinjaExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) KVIK_TRY(tokens_.ExpectOperator(","));
    if (AtTupleEnd(options)) break;
    KVIK_ASSIGN(JinjaExprPtr item, options.names_only ? Primary(options.with_namespace)
                                                      : Expression(options.with_condition));
    items.push_back(std::move(item));
    if (!tokens_.Current().IsOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items.front());
    if (!options.parenthesized) return tokens_.Expected("an expression");
  }
  JinjaExprPtr tuple = New(Kind::kTuple, line);
  tuple->children = std::move(items);
  return Done(std::move(tuple));
}

ExprResult JinjaExpressionParser::Postfix(JinjaExprPtr expr) {
  while (true) {
    if (tokens_.Current().IsOperator(".")) {
      KVIK_ASSIGN(expr, Dotted(std::move(expr)));
    } else if (tokens_.Current().IsOperator("[")) {
      KVIK_ASSIGN(expr, Subscript(std::move(expr)));
    } else if (tokens_.Current().IsOperator("(")) {
      KVIK_ASSIGN(expr, Call(std::move(expr)));
    } else {
      return expr;
    }
  }
}

ExprResult JinjaExpressionParser::FiltersAndTests(JinjaExprPtr expr) {
  while (true) {
    if (tokens_.Current().IsOperator("|")) {
      tokens_.Take();
      KVIK_ASSIGN(expr, Filter(std::move(expr)));
    } else if (tokens_.Current().IsName("is")) {
      KVIK_ASSIGN(expr, Test(std::move(expr)));
    } else if (tokens_.Current().IsOperator("(")) {
      KVIK_ASSIGN(expr, Call(std::move(expr)));
    } else {
      return expr;
    }
  }
}

ExprResult JinjaExpressionParser::Dotted(JinjaExprPtr object) {
  const int line = tokens_.Take().line;
  if (tokens_.Current().type == JinjaTokenType::kName) {
    JinjaExprPtr expr = New(Kind::kAttribute, line, std::move(object));
    expr->text = tokens_.Take().text;
    return Done(std::move(expr));
  }
  if (tokens_.Current().type != JinjaTokenType::kInteger)
    return tokens_.Expected("a name or number");
  KVIK_ASSIGN(JinjaExprPtr index, Constant(JinjaValue::Int(tokens_.Take().integer), line));
  return Done(New(Kind::kItem, line, std::move(object), std::move(index)));
}

ExprResult JinjaExpressionParser::Subscript(JinjaExprPtr object) {
  const int line = tokens_.Take().line;
  std::vector<JinjaExprPtr> keys;
  bool tuple = false;
  while (!tokens_.Current().IsOperator("]")) {
    if (!keys.empty()) {
      KVIK_TRY(tokens_.ExpectOperator(","));
      tuple = true;
    }
    KVIK_ASSIGN(JinjaExprPtr key, SubscriptKey());
    if (key->kind == Kind::kSlice && (tuple || tokens_.Current().IsOperator(","))) {
      return tokens_.Fail("a slice stands alone");
    }
    keys.push_back(std::move(key));
  }
  tokens_.Take();
  if (keys.size() == 1 && keys[0]->kind == Kind::kSlice) {
    keys[0]->children[0] = std::move(object);
    return Done(std::move(keys[0]));
  }
  JinjaExprPtr key;
  if (keys.size() == 1) {
    key = std::move(keys[0]);
  } else {
    key = New(Kind::kTuple, line);
    key->children = std::move(keys);
    KVIK_ASSIGN(key, Done(std::move(key)));
  }
  return Done(New(Kind::kItem, line, std::move(object), std::move(key)));
}

// An index, or a slice whose object is filled in by the caller.
ExprResult JinjaExpressionParser::SubscriptKey() {
  const int line = tokens_.Current().line;
  JinjaExprPtr start;
  if (!tokens_.Current().IsOperator(":")) {
    KVIK_ASSIGN(start, Expression());
    if (!tokens_.Current().IsOperator(":")) return start;
  }
  tokens_.Take();
  const auto at_end = [this] {
    return tokens_.Current().IsOperator("]") || tokens_.Current().IsOperator(",");
  };
  JinjaExprPtr stop;
  JinjaExprPtr step;
  if (!tokens_.Current().IsOperator(":") && !at_end()) {
    KVIK_ASSIGN(stop, Expression());
  }
  if (tokens_.SkipOperator(":") && !at_end()) {
    KVIK_ASSIGN(step, Expression());
  }
  JinjaExprPtr slice = New(Kind::kSlice, line);
  slice->children.resize(4);
  slice->children[1] = std::move(start);
  slice->children[2] = std::move(stop);
  slice->children[3] = std::move(step);
  return slice;
}

ExprResult JinjaExpressionParser::Call(JinjaExprPtr callee) {
  JinjaExprPtr expr = New(Kind::kCall, tokens_.Current().line, std::move(callee));
  KVIK_ASSIGN(expr->args, CallArgs());
  return Done(std::move(expr));
}

Result<JinjaCallArgs> JinjaExpressionParser::CallArgs() {
  JinjaCallArgs args;
  KVIK_TRY(tokens_.ExpectOperator("("));
  bool first = true;
  while (!tokens_.Current().IsOperator(")")) {
    if (!first) {
      KVIK_TRY(tokens_.ExpectOperator(","));
      if (tokens_.Current().IsOperator(")")) break;
    }
    first = false;
    bool ordered = true;
    if (tokens_.SkipOperator("*")) {
      ordered = args.star == nullptr && args.double_star == nullptr;
      KVIK_ASSIGN(args.star, Expression());
    } else if (tokens_.SkipOperator("**")) {
      ordered = args.double_star == nullptr;
      KVIK_ASSIGN(args.double_star, Expression());
    } else if (tokens_.Current().type == JinjaTokenType::kName && tokens_.Ahead().IsOperator("=")) {
      ordered = args.double_star == nullptr;
      const std::string name = tokens_.Take().text;
      tokens_.Take();
      KVIK_ASSIGN(JinjaExprPtr value, Expression());
      for (const auto& [other, unused] : args.named) {
        if (other == name) return tokens_.Fail("argument '" + name + "' is given twice");
      }
      args.named.emplace_back(name, std::move(value));
    } else {
      ordered = args.star == nullptr && args.double_star == nullptr && args.named.empty();
      KVIK_ASSIGN(JinjaExprPtr value, Expression());
      args.positional.push_back(std::move(value));
    }
    if (!ordered) return tokens_.Fail("the arguments of a call are in a wrong order");
  }
  tokens_.Take();
  return args;
}

// A dotted name of a filter or test.
Result<std::string> JinjaExpressionParser::DottedName() {
  if (tokens_.Current().type != JinjaTokenType::kName) return tokens_.Expected("a name");
  std::string name = tokens_.Take().text;
  while (tokens_.SkipOperator(".")) {
    if (tokens_.Current().type != JinjaTokenType::kName) return tokens_.Expected("a name");
    name += "." + tokens_.Take().text;
  }
  return name;
}

void JinjaExpressionParser::NoteUnknown(int line, const std::string& message) {
  if (!lenient_ && !unknown_) unknown_ = JinjaSyntaxError(line, message);
}

// The filter named by the current token; `value` is null in a filter block.
ExprResult JinjaExpressionParser::Filter(JinjaExprPtr value) {
  JinjaExprPtr expr = New(Kind::kFilter, tokens_.Current().line, std::move(value));
  KVIK_ASSIGN(expr->text, DottedName());
  if (FindJinjaFilter(expr->text) == nullptr) {
    NoteUnknown(expr->line, "no filter named '" + expr->text + "'");
  }
  if (tokens_.Current().IsOperator("(")) {
    KVIK_ASSIGN(expr->args, CallArgs());
  }
  return Done(std::move(expr));
}

// One or more filters, the first named by the current token.
ExprResult JinjaExpressionParser::FilterChain() {
  KVIK_ASSIGN(JinjaExprPtr expr, Filter(nullptr));
  while (tokens_.SkipOperator("|")) {
    KVIK_ASSIGN(expr, Filter(std::move(expr)));
  }
  return expr;
}

// Whether the current token starts the one argument that a test may have without parentheses.
bool JinjaExpressionParser::AtTestArgument() const {
  const JinjaToken& token = tokens_.Current();
  switch (token.type) {
    case JinjaTokenType::kName:
      return token.text != "else" && token.text != "or" && token.text != "and";
    case JinjaTokenType::kString:
    case JinjaTokenType::kInteger:
    case JinjaTokenType::kFloat:
      return true;
    case JinjaTokenType::kOperator:
      return token.text == "[" || token.text == "{";
    default:
      return false;
  }
}

ExprResult JinjaExpressionParser::Test(JinjaExprPtr value) {
  const int line = tokens_.Take().line;
  const bool negated = tokens_.SkipName("not");
  JinjaExprPtr expr = New(Kind::kTest, line, std::move(value));
  KVIK_ASSIGN(expr->text, DottedName());
  if (FindJinjaTest(expr->text) == nullptr) {
    NoteUnknown(line, "no test named '" + expr->text + "'");
  }
  if (tokens_.Current().IsOperator("(")) {
    KVIK_ASSIGN(expr->args, CallArgs());
  } else if (AtTestArgument()) {
    if (tokens_.Current().IsName("is")) return tokens_.Fail("tests cannot be chained with 'is'");
    KVIK_ASSIGN(JinjaExprPtr argument, Primary(false));
    KVIK_ASSIGN(argument, Postfix(std::move(argument)));
    expr->args.positional.push_back(std::move(argument));
  }
  KVIK_ASSIGN(expr, Done(std::move(expr)));
  if (!negated) return expr;
  JinjaExprPtr negation = New(Kind::kUnary, line, std::move(expr));
  negation->op = '!';
  return Done(std::move(negation));
}

}  // namespace kvik::text
