// SPDX-License-Identifier: Apache-2.0
// Recursive descent, one function per level of precedence, loosest first:
//   x if c else y, or, and, not, comparisons, + -, ~, * / // %, **, unary, postfix, filters, tests.
#include "text/jinja_parser.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"
#include "text/jinja_scopes.h"

namespace kvik::text {
namespace {

using Kind = JinjaExpr::Kind;
using StatementKind = JinjaStatement::Kind;
using ExprResult = Result<JinjaExprPtr>;
using StatementPtr = std::unique_ptr<JinjaStatement>;

// How deep brackets, negations and blocks may nest, and how long a chain of operators may be: both
// are walked recursively.
constexpr int kMaxNesting = 100;
constexpr int kMaxExprDepth = 400;

class Parser {
 public:
  explicit Parser(std::vector<JinjaToken> tokens) : tokens_(std::move(tokens)) {}

  Result<std::shared_ptr<const JinjaTemplate>> Run() {
    KVIK_ASSIGN(template_->body, Body({}));
    if (unknown_) return JinjaSyntaxError(unknown_->line, unknown_->message);
    JinjaFindHiddenNames(template_.get());
    return std::shared_ptr<const JinjaTemplate>(template_);
  }

 private:
  // Counts one level of nesting while it lives.
  class Level {
   public:
    explicit Level(int& nesting) : nesting_(nesting) { ++nesting_; }
    ~Level() { --nesting_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& nesting_;
  };

  // A filter or test that does not exist. jinja2 refuses the template, unless the use stands
  // directly in an `if`: then it is an error only when it is reached.
  struct Unknown {
    int line;
    std::string message;
  };

  // --- tokens

  [[nodiscard]] const JinjaToken& Current() const { return tokens_[position_]; }
  [[nodiscard]] const JinjaToken& Ahead() const {
    return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
  }
  const JinjaToken& Take() {
    const JinjaToken& token = tokens_[position_];
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
  }
  bool SkipOperator(std::string_view op) {
    if (!Current().IsOperator(op)) return false;
    Take();
    return true;
  }
  bool SkipName(std::string_view name) {
    if (!Current().IsName(name)) return false;
    Take();
    return true;
  }

  static std::string Describe(const JinjaToken& token) {
    switch (token.type) {
      case JinjaTokenType::kData:
        return "template text";
      case JinjaTokenType::kVariableBegin:
        return "'{{'";
      case JinjaTokenType::kVariableEnd:
        return "'}}'";
      case JinjaTokenType::kBlockBegin:
        return "'{%'";
      case JinjaTokenType::kBlockEnd:
        return "'%}'";
      case JinjaTokenType::kName:
      case JinjaTokenType::kOperator:
        return "'" + token.text + "'";
      case JinjaTokenType::kString:
        return "a string";
      case JinjaTokenType::kInteger:
      case JinjaTokenType::kFloat:
        return "a number";
      case JinjaTokenType::kEnd:
        return "the end of the template";
    }
    return "?";
  }

  [[nodiscard]] Error Fail(const std::string& message) const {
    return JinjaSyntaxError(Current().line, message);
  }
  [[nodiscard]] Error Expected(const std::string& what) const {
    return Fail("expected " + what + ", got " + Describe(Current()));
  }
  Result<void> ExpectOperator(std::string_view op) {
    if (!SkipOperator(op)) return Expected(JinjaQuote(op));
    return {};
  }
  Result<void> ExpectName(std::string_view name) {
    if (!SkipName(name)) return Expected(JinjaQuote(name));
    return {};
  }
  Result<void> ExpectType(JinjaTokenType type, const char* what) {
    if (Current().type != type) return Expected(what);
    Take();
    return {};
  }

  // --- nodes

  JinjaNameId NameId(const std::string& name) {
    const auto [it, added] =
        name_ids_.emplace(name, static_cast<JinjaNameId>(template_->names.size()));
    if (added) template_->names.push_back(name);
    return it->second;
  }

  static JinjaExprPtr New(Kind kind, int line) {
    auto expr = std::make_unique<JinjaExpr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }

  static JinjaExprPtr New(Kind kind, int line, JinjaExprPtr first, JinjaExprPtr second = nullptr) {
    JinjaExprPtr expr = New(kind, line);
    expr->children.push_back(std::move(first));
    if (second != nullptr) expr->children.push_back(std::move(second));
    return expr;
  }

  // Completes a node: its depth is that of its children and one.
  ExprResult Done(JinjaExprPtr expr) const {
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

  static StatementPtr New(StatementKind kind, int line) {
    auto statement = std::make_unique<JinjaStatement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }

  // --- expressions

  ExprResult Expression(bool with_condition = true) {
    const Level level(nesting_);
    if (nesting_ > kMaxNesting) return Fail("expressions nest too deeply");
    return with_condition ? Condition() : Or();
  }

  ExprResult Condition() {
    const int line = Current().line;
    const std::optional<Unknown> unknown_before = unknown_;
    KVIK_ASSIGN(JinjaExprPtr then, Or());
    while (SkipName("if")) {
      KVIK_ASSIGN(JinjaExprPtr test, Or());
      JinjaExprPtr otherwise;
      if (SkipName("else")) {
        const Level level(nesting_);
        if (nesting_ > kMaxNesting) return Fail("expressions nest too deeply");
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

  ExprResult Or() {
    KVIK_ASSIGN(JinjaExprPtr left, And());
    while (Current().IsName("or")) {
      const int line = Take().line;
      KVIK_ASSIGN(JinjaExprPtr right, And());
      KVIK_ASSIGN(left, Done(New(Kind::kOr, line, std::move(left), std::move(right))));
    }
    return left;
  }

  ExprResult And() {
    KVIK_ASSIGN(JinjaExprPtr left, Not());
    while (Current().IsName("and")) {
      const int line = Take().line;
      KVIK_ASSIGN(JinjaExprPtr right, Not());
      KVIK_ASSIGN(left, Done(New(Kind::kAnd, line, std::move(left), std::move(right))));
    }
    return left;
  }

  ExprResult Not() {
    if (!Current().IsName("not")) return Comparison();
    const Level level(nesting_);
    if (nesting_ > kMaxNesting) return Fail("expressions nest too deeply");
    const int line = Take().line;
    KVIK_ASSIGN(JinjaExprPtr operand, Not());
    JinjaExprPtr expr = New(Kind::kUnary, line, std::move(operand));
    expr->op = '!';
    return Done(std::move(expr));
  }

  std::optional<JinjaCompareOp> TakeComparison() {
    static constexpr std::pair<std::string_view, JinjaCompareOp> kOps[] = {
        {"==", JinjaCompareOp::kEq}, {"!=", JinjaCompareOp::kNe}, {"<", JinjaCompareOp::kLt},
        {"<=", JinjaCompareOp::kLe}, {">", JinjaCompareOp::kGt},  {">=", JinjaCompareOp::kGe}};
    for (const auto& [text, op] : kOps) {
      if (SkipOperator(text)) return op;
    }
    if (SkipName("in")) return JinjaCompareOp::kIn;
    if (Current().IsName("not") && Ahead().IsName("in")) {
      Take();
      Take();
      return JinjaCompareOp::kNotIn;
    }
    return std::nullopt;
  }

  ExprResult Comparison() {
    const int line = Current().line;
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

  ExprResult Sum() {
    KVIK_ASSIGN(JinjaExprPtr left, Concat());
    while (Current().IsOperator("+") || Current().IsOperator("-")) {
      const bool add = Current().IsOperator("+");
      const int line = Take().line;
      KVIK_ASSIGN(JinjaExprPtr right, Concat());
      JinjaExprPtr expr = New(Kind::kBinary, line, std::move(left), std::move(right));
      expr->binary = add ? JinjaBinaryOp::kAdd : JinjaBinaryOp::kSub;
      KVIK_ASSIGN(left, Done(std::move(expr)));
    }
    return left;
  }

  ExprResult Concat() {
    const int line = Current().line;
    KVIK_ASSIGN(JinjaExprPtr first, Product());
    if (!Current().IsOperator("~")) return first;
    JinjaExprPtr expr = New(Kind::kConcat, line, std::move(first));
    while (SkipOperator("~")) {
      KVIK_ASSIGN(JinjaExprPtr operand, Product());
      expr->children.push_back(std::move(operand));
    }
    return Done(std::move(expr));
  }

  std::optional<JinjaBinaryOp> TakeProductOp() {
    if (SkipOperator("*")) return JinjaBinaryOp::kMul;
    if (SkipOperator("/")) return JinjaBinaryOp::kDiv;
    if (SkipOperator("//")) return JinjaBinaryOp::kFloorDiv;
    if (SkipOperator("%")) return JinjaBinaryOp::kMod;
    return std::nullopt;
  }

  ExprResult Product() {
    KVIK_ASSIGN(JinjaExprPtr left, Power());
    while (true) {
      const int line = Current().line;
      const std::optional<JinjaBinaryOp> op = TakeProductOp();
      if (!op) return left;
      KVIK_ASSIGN(JinjaExprPtr right, Power());
      JinjaExprPtr expr = New(Kind::kBinary, line, std::move(left), std::move(right));
      expr->binary = *op;
      KVIK_ASSIGN(left, Done(std::move(expr)));
    }
  }

  ExprResult Power() {
    KVIK_ASSIGN(JinjaExprPtr left, Unary(true));
    while (Current().IsOperator("**")) {
      const int line = Take().line;
      KVIK_ASSIGN(JinjaExprPtr right, Unary(true));
      JinjaExprPtr expr = New(Kind::kBinary, line, std::move(left), std::move(right));
      expr->binary = JinjaBinaryOp::kPow;
      KVIK_ASSIGN(left, Done(std::move(expr)));
    }
    return left;
  }

  ExprResult Unary(bool with_filter) {
    const Level level(nesting_);
    if (nesting_ > kMaxNesting) return Fail("expressions nest too deeply");
    JinjaExprPtr expr;
    if (Current().IsOperator("-") || Current().IsOperator("+")) {
      const char op = Current().text[0];
      const int line = Take().line;
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

  ExprResult Constant(JinjaValue value, int line) const {
    JinjaExprPtr expr = New(Kind::kConstant, line);
    expr->constant = std::move(value);
    return expr;
  }

  ExprResult Primary(bool with_namespace) {
    const JinjaToken& token = Current();
    const int line = token.line;
    switch (token.type) {
      case JinjaTokenType::kName:
        return NameOrLiteral(with_namespace);
      case JinjaTokenType::kString: {
        std::string text = Take().text;
        while (Current().type == JinjaTokenType::kString) text += Take().text;
        return Constant(JinjaValue::String(std::move(text)), line);
      }
      case JinjaTokenType::kInteger:
        return Constant(JinjaValue::Int(Take().integer), line);
      case JinjaTokenType::kFloat:
        return Constant(JinjaValue::Float(Take().floating), line);
      case JinjaTokenType::kOperator:
        break;
      default:
        return Fail("unexpected " + Describe(token));
    }
    if (SkipOperator("(")) {
      KVIK_ASSIGN(JinjaExprPtr expr, TupleOrExpression({.parenthesized = true}));
      KVIK_TRY(ExpectOperator(")"));
      return expr;
    }
    if (SkipOperator("[")) return ListLiteral(line);
    if (SkipOperator("{")) return DictLiteral(line);
    return Fail("unexpected " + Describe(token));
  }

  ExprResult NameOrLiteral(bool with_namespace) {
    const int line = Current().line;
    const std::string name = Take().text;
    if (name == "true" || name == "True") return Constant(JinjaValue::Bool(true), line);
    if (name == "false" || name == "False") return Constant(JinjaValue::Bool(false), line);
    if (name == "none" || name == "None") return Constant(JinjaValue(), line);
    JinjaExprPtr expr = New(Kind::kName, line);
    expr->name = NameId(name);
    if (with_namespace && SkipOperator(".")) {
      if (Current().type != JinjaTokenType::kName) return Expected("a name");
      expr->kind = Kind::kNamespaceRef;
      expr->text = Take().text;
    }
    for (JinjaMacroDef* macro : macros_) {
      macro->uses_caller |= name == "caller";
      macro->uses_kwargs |= name == "kwargs";
      macro->uses_varargs |= name == "varargs";
    }
    return expr;
  }

  ExprResult ListLiteral(int line) {
    JinjaExprPtr list = New(Kind::kList, line);
    while (!Current().IsOperator("]")) {
      if (!list->children.empty()) KVIK_TRY(ExpectOperator(","));
      if (Current().IsOperator("]")) break;
      KVIK_ASSIGN(JinjaExprPtr item, Expression());
      list->children.push_back(std::move(item));
    }
    Take();
    return Done(std::move(list));
  }

  ExprResult DictLiteral(int line) {
    JinjaExprPtr dict = New(Kind::kDict, line);
    while (!Current().IsOperator("}")) {
      if (!dict->children.empty()) KVIK_TRY(ExpectOperator(","));
      if (Current().IsOperator("}")) break;
      KVIK_ASSIGN(JinjaExprPtr key, Expression());
      KVIK_TRY(ExpectOperator(":"));
      KVIK_ASSIGN(JinjaExprPtr value, Expression());
      dict->children.push_back(std::move(key));
      dict->children.push_back(std::move(value));
    }
    Take();
    return Done(std::move(dict));
  }

  struct TupleOptions {
    bool names_only = false;         // assignment targets: names and literals
    bool with_condition = true;      // allow `x if y else z`
    bool parenthesized = false;      // allow the empty tuple
    bool with_namespace = false;     // allow ns.attr
    std::string_view end_name = {};  // a name that ends the tuple
  };

  [[nodiscard]] bool AtTupleEnd(const TupleOptions& options) const {
    const JinjaToken& token = Current();
    return token.type == JinjaTokenType::kVariableEnd || token.type == JinjaTokenType::kBlockEnd ||
           token.IsOperator(")") || (!options.end_name.empty() && token.IsName(options.end_name));
  }

  // One expression, or a tuple if there is a comma.
  ExprResult TupleOrExpression(const TupleOptions& options) {
    const int line = Current().line;
    std::vector<JinjaExprPtr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) KVIK_TRY(ExpectOperator(","));
      if (AtTupleEnd(options)) break;
      KVIK_ASSIGN(JinjaExprPtr item, options.names_only ? Primary(options.with_namespace)
                                                        : Expression(options.with_condition));
      items.push_back(std::move(item));
      if (!Current().IsOperator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!items.empty()) return std::move(items.front());
      if (!options.parenthesized) return Expected("an expression");
    }
    JinjaExprPtr tuple = New(Kind::kTuple, line);
    tuple->children = std::move(items);
    return Done(std::move(tuple));
  }

  ExprResult Postfix(JinjaExprPtr expr) {
    while (true) {
      if (Current().IsOperator(".")) {
        KVIK_ASSIGN(expr, Dotted(std::move(expr)));
      } else if (Current().IsOperator("[")) {
        KVIK_ASSIGN(expr, Subscript(std::move(expr)));
      } else if (Current().IsOperator("(")) {
        KVIK_ASSIGN(expr, Call(std::move(expr)));
      } else {
        return expr;
      }
    }
  }

  ExprResult FiltersAndTests(JinjaExprPtr expr) {
    while (true) {
      if (Current().IsOperator("|")) {
        Take();
        KVIK_ASSIGN(expr, Filter(std::move(expr)));
      } else if (Current().IsName("is")) {
        KVIK_ASSIGN(expr, Test(std::move(expr)));
      } else if (Current().IsOperator("(")) {
        KVIK_ASSIGN(expr, Call(std::move(expr)));
      } else {
        return expr;
      }
    }
  }

  ExprResult Dotted(JinjaExprPtr object) {
    const int line = Take().line;
    if (Current().type == JinjaTokenType::kName) {
      JinjaExprPtr expr = New(Kind::kAttribute, line, std::move(object));
      expr->text = Take().text;
      return Done(std::move(expr));
    }
    if (Current().type != JinjaTokenType::kInteger) return Expected("a name or number");
    KVIK_ASSIGN(JinjaExprPtr index, Constant(JinjaValue::Int(Take().integer), line));
    return Done(New(Kind::kItem, line, std::move(object), std::move(index)));
  }

  ExprResult Subscript(JinjaExprPtr object) {
    const int line = Take().line;
    std::vector<JinjaExprPtr> keys;
    bool tuple = false;
    while (!Current().IsOperator("]")) {
      if (!keys.empty()) {
        KVIK_TRY(ExpectOperator(","));
        tuple = true;
      }
      KVIK_ASSIGN(JinjaExprPtr key, SubscriptKey());
      if (key->kind == Kind::kSlice && (tuple || Current().IsOperator(","))) {
        return Fail("a slice stands alone");
      }
      keys.push_back(std::move(key));
    }
    Take();
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
  ExprResult SubscriptKey() {
    const int line = Current().line;
    JinjaExprPtr start;
    if (!Current().IsOperator(":")) {
      KVIK_ASSIGN(start, Expression());
      if (!Current().IsOperator(":")) return start;
    }
    Take();
    const auto at_end = [this] { return Current().IsOperator("]") || Current().IsOperator(","); };
    JinjaExprPtr stop;
    JinjaExprPtr step;
    if (!Current().IsOperator(":") && !at_end()) {
      KVIK_ASSIGN(stop, Expression());
    }
    if (SkipOperator(":") && !at_end()) {
      KVIK_ASSIGN(step, Expression());
    }
    JinjaExprPtr slice = New(Kind::kSlice, line);
    slice->children.resize(4);
    slice->children[1] = std::move(start);
    slice->children[2] = std::move(stop);
    slice->children[3] = std::move(step);
    return slice;
  }

  ExprResult Call(JinjaExprPtr callee) {
    JinjaExprPtr expr = New(Kind::kCall, Current().line, std::move(callee));
    KVIK_ASSIGN(expr->args, CallArgs());
    return Done(std::move(expr));
  }

  Result<JinjaCallArgs> CallArgs() {
    JinjaCallArgs args;
    KVIK_TRY(ExpectOperator("("));
    bool first = true;
    while (!Current().IsOperator(")")) {
      if (!first) {
        KVIK_TRY(ExpectOperator(","));
        if (Current().IsOperator(")")) break;
      }
      first = false;
      bool ordered = true;
      if (SkipOperator("*")) {
        ordered = args.star == nullptr && args.double_star == nullptr;
        KVIK_ASSIGN(args.star, Expression());
      } else if (SkipOperator("**")) {
        ordered = args.double_star == nullptr;
        KVIK_ASSIGN(args.double_star, Expression());
      } else if (Current().type == JinjaTokenType::kName && Ahead().IsOperator("=")) {
        ordered = args.double_star == nullptr;
        const std::string name = Take().text;
        Take();
        KVIK_ASSIGN(JinjaExprPtr value, Expression());
        for (const auto& [other, unused] : args.named) {
          if (other == name) return Fail("argument '" + name + "' is given twice");
        }
        args.named.emplace_back(name, std::move(value));
      } else {
        ordered = args.star == nullptr && args.double_star == nullptr && args.named.empty();
        KVIK_ASSIGN(JinjaExprPtr value, Expression());
        args.positional.push_back(std::move(value));
      }
      if (!ordered) return Fail("the arguments of a call are in a wrong order");
    }
    Take();
    return args;
  }

  // A dotted name of a filter or test.
  Result<std::string> DottedName() {
    if (Current().type != JinjaTokenType::kName) return Expected("a name");
    std::string name = Take().text;
    while (SkipOperator(".")) {
      if (Current().type != JinjaTokenType::kName) return Expected("a name");
      name += "." + Take().text;
    }
    return name;
  }

  void NoteUnknown(int line, const std::string& message) {
    if (!lenient_ && !unknown_) unknown_ = Unknown{line, message};
  }

  // The filter named by the current token; `value` is null in a filter block.
  ExprResult Filter(JinjaExprPtr value) {
    JinjaExprPtr expr = New(Kind::kFilter, Current().line, std::move(value));
    KVIK_ASSIGN(expr->text, DottedName());
    if (FindJinjaFilter(expr->text) == nullptr) {
      NoteUnknown(expr->line, "no filter named '" + expr->text + "'");
    }
    if (Current().IsOperator("(")) {
      KVIK_ASSIGN(expr->args, CallArgs());
    }
    return Done(std::move(expr));
  }

  // One or more filters, the first named by the current token.
  ExprResult FilterChain(JinjaExprPtr value) {
    KVIK_ASSIGN(JinjaExprPtr expr, Filter(std::move(value)));
    while (SkipOperator("|")) {
      KVIK_ASSIGN(expr, Filter(std::move(expr)));
    }
    return expr;
  }

  // Whether the current token starts the one argument that a test may have without parentheses.
  [[nodiscard]] bool AtTestArgument() const {
    const JinjaToken& token = Current();
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

  ExprResult Test(JinjaExprPtr value) {
    const int line = Take().line;
    const bool negated = SkipName("not");
    JinjaExprPtr expr = New(Kind::kTest, line, std::move(value));
    KVIK_ASSIGN(expr->text, DottedName());
    if (FindJinjaTest(expr->text) == nullptr) {
      NoteUnknown(line, "no test named '" + expr->text + "'");
    }
    if (Current().IsOperator("(")) {
      KVIK_ASSIGN(expr->args, CallArgs());
    } else if (AtTestArgument()) {
      if (Current().IsName("is")) return Fail("tests cannot be chained with 'is'");
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

  // --- statements

  // Text, outputs and statements up to a tag named in `ends`, which becomes the current token (its
  // '{%' is consumed). With no `ends`, up to the end of the template.
  Result<JinjaBody> Body(const std::vector<std::string_view>& ends) {
    const Level level(nesting_);
    if (nesting_ > kMaxNesting) return Fail("blocks nest too deeply");
    JinjaBody body;
    while (true) {
      const JinjaToken& token = Current();
      switch (token.type) {
        case JinjaTokenType::kData: {
          StatementPtr text = New(StatementKind::kText, token.line);
          text->text = Take().text;
          body.push_back(std::move(text));
          break;
        }
        case JinjaTokenType::kVariableBegin: {
          StatementPtr output = New(StatementKind::kOutput, token.line);
          Take();
          KVIK_ASSIGN(JinjaExprPtr expr, TupleOrExpression({}));
          output->exprs.push_back(std::move(expr));
          KVIK_TRY(ExpectType(JinjaTokenType::kVariableEnd, "'}}'"));
          body.push_back(std::move(output));
          break;
        }
        case JinjaTokenType::kBlockBegin: {
          Take();
          if (Current().type == JinjaTokenType::kName &&
              std::find(ends.begin(), ends.end(), Current().text) != ends.end()) {
            return body;
          }
          KVIK_ASSIGN(StatementPtr statement, Statement());
          body.push_back(std::move(statement));
          KVIK_TRY(ExpectType(JinjaTokenType::kBlockEnd, "'%}'"));
          break;
        }
        case JinjaTokenType::kEnd:
          if (ends.empty()) return body;
          return Fail("the template ends before '" + std::string(ends.back()) + "'");
        default:
          return Fail("unexpected " + Describe(token));
      }
    }
  }

  // The body of the statement whose tag is about to end.
  Result<JinjaBody> StatementBody(const std::vector<std::string_view>& ends) {
    SkipOperator(":");
    KVIK_TRY(ExpectType(JinjaTokenType::kBlockEnd, "'%}'"));
    return Body(ends);
  }

  // A body that ends with the tag `end`, which is consumed. Unknown filters in it are errors even
  // inside an `if`, as jinja2 gives it a scope of its own.
  Result<JinjaBody> ScopedBody(std::string_view end) {
    const bool lenient = std::exchange(lenient_, false);
    KVIK_ASSIGN(JinjaBody body, StatementBody({end}));
    lenient_ = lenient;
    Take();
    return body;
  }

  Result<StatementPtr> Statement() {
    const JinjaToken& token = Current();
    if (token.type != JinjaTokenType::kName) return Expected("the name of a tag");
    static const std::unordered_map<std::string_view, Result<StatementPtr> (Parser::*)()> kTags = {
        {"for", &Parser::For},
        {"if", &Parser::If},
        {"set", &Parser::Set},
        {"macro", &Parser::Macro},
        {"call", &Parser::CallBlock},
        {"filter", &Parser::FilterBlock},
        {"with", &Parser::With},
        {"print", &Parser::Print},
        {"block", &Parser::Block},
        {"generation", &Parser::Generation},
        {"autoescape", &Parser::Autoescape},
        {"break", &Parser::LoopControl},
        {"continue", &Parser::LoopControl},
        {"extends", &Parser::OtherTemplate},
        {"include", &Parser::OtherTemplate},
        {"import", &Parser::OtherTemplate},
        {"from", &Parser::OtherTemplate},
    };
    const auto it = kTags.find(token.text);
    if (it == kTags.end()) return Fail("unknown or misplaced tag '" + token.text + "'");
    return (this->*it->second)();
  }

  Result<void> CheckTarget(const JinjaExpr& target) const {
    switch (target.kind) {
      case Kind::kName:
        if (for_depth_ > 0 && template_->names[target.name] == "loop") {
          return Fail("the variable 'loop' cannot be assigned in a for loop");
        }
        return {};
      case Kind::kNamespaceRef:
        return {};
      case Kind::kTuple:
        for (const JinjaExprPtr& item : target.children) KVIK_TRY(CheckTarget(*item));
        return {};
      default:
        return JinjaSyntaxError(target.line, "cannot assign to this");
    }
  }

  ExprResult AssignTarget(bool with_namespace, std::string_view end_name) {
    KVIK_ASSIGN(JinjaExprPtr target,
                TupleOrExpression(
                    {.names_only = true, .with_namespace = with_namespace, .end_name = end_name}));
    KVIK_TRY(CheckTarget(*target));
    return target;
  }

  // A name that is being defined.
  Result<std::string> NewName() {
    if (Current().type != JinjaTokenType::kName) return Expected("a name");
    const std::string& name = Current().text;
    for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (name == reserved) return Fail("cannot assign to '" + name + "'");
    }
    return Take().text;
  }

  Result<StatementPtr> For() {
    StatementPtr loop = New(StatementKind::kFor, Take().line);
    ++for_depth_;
    KVIK_ASSIGN(loop->target, AssignTarget(false, "in"));
    KVIK_TRY(ExpectName("in"));
    KVIK_ASSIGN(JinjaExprPtr iterable,
                TupleOrExpression({.with_condition = false, .end_name = "recursive"}));
    loop->exprs.push_back(std::move(iterable));
    if (SkipName("if")) {
      KVIK_ASSIGN(loop->filter, Expression());
    }
    loop->recursive = SkipName("recursive");
    const bool lenient = std::exchange(lenient_, false);
    ++loop_depth_;
    KVIK_ASSIGN(JinjaBody body, StatementBody({"else", "endfor"}));
    --loop_depth_;
    loop->bodies.push_back(std::move(body));
    if (Take().text == "else") {
      KVIK_ASSIGN(JinjaBody otherwise, StatementBody({"endfor"}));
      Take();
      loop->bodies.push_back(std::move(otherwise));
    }
    lenient_ = lenient;
    --for_depth_;
    return loop;
  }

  Result<StatementPtr> If() {
    StatementPtr statement = New(StatementKind::kIf, Take().line);
    const bool lenient = std::exchange(lenient_, true);
    while (true) {
      KVIK_ASSIGN(JinjaExprPtr test, TupleOrExpression({.with_condition = false}));
      statement->exprs.push_back(std::move(test));
      KVIK_ASSIGN(JinjaBody body, StatementBody({"elif", "else", "endif"}));
      statement->bodies.push_back(std::move(body));
      const std::string tag = Take().text;
      if (tag == "elif") continue;
      if (tag == "else") {
        KVIK_ASSIGN(JinjaBody otherwise, StatementBody({"endif"}));
        Take();
        statement->bodies.push_back(std::move(otherwise));
      }
      break;
    }
    lenient_ = lenient;
    return statement;
  }

  Result<StatementPtr> Set() {
    const int line = Take().line;
    KVIK_ASSIGN(JinjaExprPtr target, AssignTarget(true, ""));
    if (SkipOperator("=")) {
      StatementPtr set = New(StatementKind::kSet, line);
      set->target = std::move(target);
      KVIK_ASSIGN(JinjaExprPtr value, TupleOrExpression({}));
      set->exprs.push_back(std::move(value));
      return set;
    }
    StatementPtr set = New(StatementKind::kSetBlock, line);
    set->target = std::move(target);
    if (SkipOperator("|")) {
      KVIK_ASSIGN(set->filter, FilterChain(nullptr));
    }
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endset"));
    set->bodies.push_back(std::move(body));
    return set;
  }

  // (a, b=1): the parameters of a macro or call block.
  Result<void> Signature(JinjaMacroDef* macro) {
    KVIK_TRY(ExpectOperator("("));
    while (!Current().IsOperator(")")) {
      if (!macro->parameters.empty()) KVIK_TRY(ExpectOperator(","));
      KVIK_ASSIGN(const std::string name, NewName());
      for (const std::string& other : macro->parameter_names) {
        if (other == name) return Fail("parameter '" + name + "' is given twice");
      }
      macro->parameters.push_back(NameId(name));
      macro->parameter_names.push_back(name);
      if (SkipOperator("=")) {
        KVIK_ASSIGN(JinjaExprPtr value, Expression());
        macro->defaults.push_back(std::move(value));
      } else if (!macro->defaults.empty()) {
        return Fail("a parameter without default follows one with default");
      }
    }
    Take();
    return {};
  }

  // The body of a macro is a function of its own: no break or continue leaves it.
  Result<void> MacroBody(JinjaMacroDef* macro, std::string_view end) {
    macros_.push_back(macro);
    const int loop_depth = std::exchange(loop_depth_, 0);
    KVIK_ASSIGN(macro->body, ScopedBody(end));
    loop_depth_ = loop_depth;
    macros_.pop_back();
    const auto& names = macro->parameter_names;
    const auto caller = std::find(names.begin(), names.end(), "caller");
    if (macro->uses_caller && caller != names.end() &&
        static_cast<size_t>(names.end() - caller) > macro->defaults.size()) {
      return Fail("the parameter 'caller' needs a default");
    }
    return {};
  }

  Result<StatementPtr> Macro() {
    StatementPtr statement = New(StatementKind::kMacro, Take().line);
    statement->macro = std::make_unique<JinjaMacroDef>();
    KVIK_ASSIGN(statement->macro->name, NewName());
    statement->name = NameId(statement->macro->name);
    if (for_depth_ > 0 && statement->macro->name == "loop") {
      return Fail("the variable 'loop' cannot be assigned in a for loop");
    }
    KVIK_TRY(Signature(statement->macro.get()));
    KVIK_TRY(MacroBody(statement->macro.get(), "endmacro"));
    return statement;
  }

  Result<StatementPtr> CallBlock() {
    StatementPtr statement = New(StatementKind::kCallBlock, Take().line);
    statement->macro = std::make_unique<JinjaMacroDef>();
    if (Current().IsOperator("(")) KVIK_TRY(Signature(statement->macro.get()));
    KVIK_ASSIGN(JinjaExprPtr call, Expression());
    if (call->kind != Kind::kCall) return Fail("a call block needs a call");
    statement->exprs.push_back(std::move(call));
    KVIK_TRY(MacroBody(statement->macro.get(), "endcall"));
    return statement;
  }

  Result<StatementPtr> FilterBlock() {
    StatementPtr statement = New(StatementKind::kFilterBlock, Take().line);
    KVIK_ASSIGN(statement->filter, FilterChain(nullptr));
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endfilter"));
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  Result<StatementPtr> With() {
    StatementPtr statement = New(StatementKind::kWith, Take().line);
    while (Current().type != JinjaTokenType::kBlockEnd) {
      if (!statement->targets.empty()) KVIK_TRY(ExpectOperator(","));
      KVIK_ASSIGN(JinjaExprPtr target, AssignTarget(false, ""));
      KVIK_TRY(ExpectOperator("="));
      KVIK_ASSIGN(JinjaExprPtr value, Expression());
      statement->targets.push_back(std::move(target));
      statement->exprs.push_back(std::move(value));
    }
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endwith"));
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  Result<StatementPtr> Print() {
    StatementPtr statement = New(StatementKind::kOutput, Take().line);
    while (Current().type != JinjaTokenType::kBlockEnd) {
      if (!statement->exprs.empty()) KVIK_TRY(ExpectOperator(","));
      KVIK_ASSIGN(JinjaExprPtr expr, Expression());
      statement->exprs.push_back(std::move(expr));
    }
    return statement;
  }

  Result<StatementPtr> Block() {
    StatementPtr statement = New(StatementKind::kScope, Take().line);
    KVIK_ASSIGN(const std::string name, NewName());
    if (!blocks_.insert(name).second) return Fail("block '" + name + "' is defined twice");
    statement->isolated = !SkipName("scoped");
    SkipName("required");
    const int loop_depth = std::exchange(loop_depth_, 0);
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endblock"));
    loop_depth_ = loop_depth;
    SkipName(name);
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  // {% generation %} marks what the model said, for training; here it only groups.
  Result<StatementPtr> Generation() {
    StatementPtr statement = New(StatementKind::kScope, Take().line);
    const int loop_depth = std::exchange(loop_depth_, 0);
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endgeneration"));
    loop_depth_ = loop_depth;
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  Result<StatementPtr> Autoescape() {
    StatementPtr statement = New(StatementKind::kAutoescape, Take().line);
    KVIK_ASSIGN(JinjaExprPtr value, Expression());
    statement->exprs.push_back(std::move(value));
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endautoescape"));
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  Result<StatementPtr> LoopControl() {
    const JinjaToken& token = Take();
    if (loop_depth_ == 0) {
      return JinjaSyntaxError(token.line, "'" + token.text + "' outside of a loop");
    }
    return New(token.text == "break" ? StatementKind::kBreak : StatementKind::kContinue,
               token.line);
  }

  // extends, include, import, from: an error when it is reached, as there is nothing to load from.
  Result<StatementPtr> OtherTemplate() {
    StatementPtr statement = New(StatementKind::kUnsupported, Current().line);
    statement->text = Take().text;
    KVIK_ASSIGN(JinjaExprPtr unused, Expression());
    while (Current().type != JinjaTokenType::kBlockEnd && Current().type != JinjaTokenType::kEnd) {
      Take();
    }
    return statement;
  }

  std::vector<JinjaToken> tokens_;
  size_t position_ = 0;
  std::shared_ptr<JinjaTemplate> template_ = std::make_shared<JinjaTemplate>();
  std::unordered_map<std::string, JinjaNameId> name_ids_;
  std::vector<JinjaMacroDef*> macros_;  // being parsed, outermost first
  std::set<std::string> blocks_;
  std::optional<Unknown> unknown_;
  bool lenient_ = false;  // directly in an `if`
  int nesting_ = 0;
  int for_depth_ = 0;   // enclosing for statements
  int loop_depth_ = 0;  // enclosing loops that break can leave
};

}  // namespace

Result<std::shared_ptr<const JinjaTemplate>> JinjaParse(std::string_view source) {
  KVIK_ASSIGN(std::vector<JinjaToken> tokens, JinjaTokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace kvik::text
