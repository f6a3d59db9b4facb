// SPDX-License-Identifier: Apache-2.0
// Statements, one function per tag; what stands in them is parsed by JinjaExpressionParser.
#include "text/jinja_parser.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "text/jinja_expression_parser.h"
#include "text/jinja_scopes.h"
#include "text/jinja_token_stream.h"

namespace kvik::text {
namespace {

using Kind = JinjaStatement::Kind;
using StatementPtr = std::unique_ptr<JinjaStatement>;

class Parser {
 public:
  explicit Parser(std::vector<JinjaToken> tokens) : tokens_(std::move(tokens)) {}

  Result<std::shared_ptr<const JinjaTemplate>> Run() {
    KVIK_ASSIGN(template_->body, Body({}));
    if (expressions_.unknown()) return *expressions_.unknown();
    JinjaFindHiddenNames(template_.get());
    return std::shared_ptr<const JinjaTemplate>(template_);
  }

 private:
  static StatementPtr New(Kind kind, int line) {
    auto statement = std::make_unique<JinjaStatement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }

  // Text, outputs and statements up to a tag named in `ends`, which becomes the current token (its
  // '{%' is consumed). With no `ends`, up to the end of the template.
  Result<JinjaBody> Body(const std::vector<std::string_view>& ends) {
    const JinjaTokenStream::Level level(tokens_);
    if (level.too_deep()) return tokens_.Fail("blocks nest too deeply");
    JinjaBody body;
    while (true) {
      const JinjaToken& token = tokens_.Current();
      switch (token.type) {
        case JinjaTokenType::kData: {
          StatementPtr text = New(Kind::kText, token.line);
          text->text = tokens_.Take().text;
          body.push_back(std::move(text));
          break;
        }
        case JinjaTokenType::kVariableBegin: {
          StatementPtr output = New(Kind::kOutput, token.line);
          tokens_.Take();
          KVIK_ASSIGN(JinjaExprPtr expr, expressions_.TupleOrExpression({}));
          output->exprs.push_back(std::move(expr));
          KVIK_TRY(tokens_.ExpectType(JinjaTokenType::kVariableEnd, "'}}'"));
          body.push_back(std::move(output));
          break;
        }
        case JinjaTokenType::kBlockBegin: {
          tokens_.Take();
          if (tokens_.Current().type == JinjaTokenType::kName &&
              std::find(ends.begin(), ends.end(), tokens_.Current().text) != ends.end()) {
            return body;
          }
          KVIK_ASSIGN(StatementPtr statement, Statement());
          body.push_back(std::move(statement));
          KVIK_TRY(tokens_.ExpectType(JinjaTokenType::kBlockEnd, "'%}'"));
          break;
        }
        case JinjaTokenType::kEnd:
          if (ends.empty()) return body;
          return tokens_.Fail("the template ends before '" + std::string(ends.back()) + "'");
        default:
          return tokens_.Fail("unexpected " + JinjaTokenStream::Describe(token));
      }
    }
  }

  // The body of the statement whose tag is about to end.
  Result<JinjaBody> StatementBody(const std::vector<std::string_view>& ends) {
    tokens_.SkipOperator(":");
    KVIK_TRY(tokens_.ExpectType(JinjaTokenType::kBlockEnd, "'%}'"));
    return Body(ends);
  }

  // A body that ends with the tag `end`, which is consumed. Unknown filters in it are errors even
  // inside an `if`, as jinja2 gives it a scope of its own.
  Result<JinjaBody> ScopedBody(std::string_view end) {
    const bool lenient = expressions_.SetLenient(false);
    KVIK_ASSIGN(JinjaBody body, StatementBody({end}));
    expressions_.SetLenient(lenient);
    tokens_.Take();
    return body;
  }

  Result<StatementPtr> Statement() {
    const JinjaToken& token = tokens_.Current();
    if (token.type != JinjaTokenType::kName) return tokens_.Expected("the name of a tag");
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
    if (it == kTags.end()) return tokens_.Fail("unknown or misplaced tag '" + token.text + "'");
    return (this->*it->second)();
  }

  Result<void> CheckTarget(const JinjaExpr& target) const {
    switch (target.kind) {
      case JinjaExpr::Kind::kName:
        if (for_depth_ > 0 && template_->names[target.name] == "loop") {
          return tokens_.Fail("the variable 'loop' cannot be assigned in a for loop");
        }
        return {};
      case JinjaExpr::Kind::kNamespaceRef:
        return {};
      case JinjaExpr::Kind::kTuple:
        for (const JinjaExprPtr& item : target.children) KVIK_TRY(CheckTarget(*item));
        return {};
      default:
        return JinjaSyntaxError(target.line, "cannot assign to this");
    }
  }

  Result<JinjaExprPtr> AssignTarget(bool with_namespace, std::string_view end_name) {
    KVIK_ASSIGN(JinjaExprPtr target,
                expressions_.TupleOrExpression(
                    {.names_only = true, .with_namespace = with_namespace, .end_name = end_name}));
    KVIK_TRY(CheckTarget(*target));
    return target;
  }

  // A name that is being defined.
  Result<std::string> NewName() {
    if (tokens_.Current().type != JinjaTokenType::kName) return tokens_.Expected("a name");
    const std::string& name = tokens_.Current().text;
    for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (name == reserved) return tokens_.Fail("cannot assign to '" + name + "'");
    }
    return tokens_.Take().text;
  }

  Result<StatementPtr> For() {
    StatementPtr loop = New(Kind::kFor, tokens_.Take().line);
    ++for_depth_;
    KVIK_ASSIGN(loop->target, AssignTarget(false, "in"));
    KVIK_TRY(tokens_.ExpectName("in"));
    KVIK_ASSIGN(JinjaExprPtr iterable,
                expressions_.TupleOrExpression({.with_condition = false, .end_name = "recursive"}));
    loop->exprs.push_back(std::move(iterable));
    if (tokens_.SkipName("if")) {
      KVIK_ASSIGN(loop->filter, expressions_.Expression());
    }
    loop->recursive = tokens_.SkipName("recursive");
    const bool lenient = expressions_.SetLenient(false);
    ++loop_depth_;
    KVIK_ASSIGN(JinjaBody body, StatementBody({"else", "endfor"}));
    --loop_depth_;
    loop->bodies.push_back(std::move(body));
    if (tokens_.Take().text == "else") {
      KVIK_ASSIGN(JinjaBody otherwise, StatementBody({"endfor"}));
      tokens_.Take();
      loop->bodies.push_back(std::move(otherwise));
    }
    expressions_.SetLenient(lenient);
    --for_depth_;
    return loop;
  }

  Result<StatementPtr> If() {
    StatementPtr statement = New(Kind::kIf, tokens_.Take().line);
    const bool lenient = expressions_.SetLenient(true);
    while (true) {
      KVIK_ASSIGN(JinjaExprPtr test, expressions_.TupleOrExpression({.with_condition = false}));
      statement->exprs.push_back(std::move(test));
      KVIK_ASSIGN(JinjaBody body, StatementBody({"elif", "else", "endif"}));
      statement->bodies.push_back(std::move(body));
      const std::string tag = tokens_.Take().text;
      if (tag == "elif") continue;
      if (tag == "else") {
        KVIK_ASSIGN(JinjaBody otherwise, StatementBody({"endif"}));
        tokens_.Take();
        statement->bodies.push_back(std::move(otherwise));
      }
      break;
    }
    expressions_.SetLenient(lenient);
    return statement;
  }

  Result<StatementPtr> Set() {
    const int line = tokens_.Take().line;
    KVIK_ASSIGN(JinjaExprPtr target, AssignTarget(true, ""));
    if (tokens_.SkipOperator("=")) {
      StatementPtr set = New(Kind::kSet, line);
      set->target = std::move(target);
      KVIK_ASSIGN(JinjaExprPtr value, expressions_.TupleOrExpression({}));
      set->exprs.push_back(std::move(value));
      return set;
    }
    StatementPtr set = New(Kind::kSetBlock, line);
    set->target = std::move(target);
    if (tokens_.SkipOperator("|")) {
      KVIK_ASSIGN(set->filter, expressions_.FilterChain());
    }
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endset"));
    set->bodies.push_back(std::move(body));
    return set;
  }

  // (a, b=1): the parameters of a macro or call block.
  Result<void> Signature(JinjaMacroDef* macro) {
    KVIK_TRY(tokens_.ExpectOperator("("));
    while (!tokens_.Current().IsOperator(")")) {
      if (!macro->parameters.empty()) KVIK_TRY(tokens_.ExpectOperator(","));
      KVIK_ASSIGN(const std::string name, NewName());
      for (const std::string& other : macro->parameter_names) {
        if (other == name) return tokens_.Fail("parameter '" + name + "' is given twice");
      }
      macro->parameters.push_back(expressions_.NameId(name));
      macro->parameter_names.push_back(name);
      if (tokens_.SkipOperator("=")) {
        KVIK_ASSIGN(JinjaExprPtr value, expressions_.Expression());
        macro->defaults.push_back(std::move(value));
      } else if (!macro->defaults.empty()) {
        return tokens_.Fail("a parameter without default follows one with default");
      }
    }
    tokens_.Take();
    return {};
  }

  // The body of a macro is a function of its own: no break or continue leaves it.
  Result<void> MacroBody(JinjaMacroDef* macro, std::string_view end) {
    expressions_.EnterMacro(macro);
    const int loop_depth = std::exchange(loop_depth_, 0);
    KVIK_ASSIGN(macro->body, ScopedBody(end));
    loop_depth_ = loop_depth;
    expressions_.LeaveMacro();
    const auto& names = macro->parameter_names;
    const auto caller = std::find(names.begin(), names.end(), "caller");
    if (macro->uses_caller && caller != names.end() &&
        static_cast<size_t>(names.end() - caller) > macro->defaults.size()) {
      return tokens_.Fail("the parameter 'caller' needs a default");
    }
    return {};
  }

  Result<StatementPtr> Macro() {
    StatementPtr statement = New(Kind::kMacro, tokens_.Take().line);
    statement->macro = std::make_unique<JinjaMacroDef>();
    KVIK_ASSIGN(statement->macro->name, NewName());
    statement->name = expressions_.NameId(statement->macro->name);
    if (for_depth_ > 0 && statement->macro->name == "loop") {
      return tokens_.Fail("the variable 'loop' cannot be assigned in a for loop");
    }
    KVIK_TRY(Signature(statement->macro.get()));
    KVIK_TRY(MacroBody(statement->macro.get(), "endmacro"));
    return statement;
  }

  Result<StatementPtr> CallBlock() {
    StatementPtr statement = New(Kind::kCallBlock, tokens_.Take().line);
    statement->macro = std::make_unique<JinjaMacroDef>();
    if (tokens_.Current().IsOperator("(")) KVIK_TRY(Signature(statement->macro.get()));
    KVIK_ASSIGN(JinjaExprPtr call, expressions_.Expression());
    if (call->kind != JinjaExpr::Kind::kCall) return tokens_.Fail("a call block needs a call");
    statement->exprs.push_back(std::move(call));
    KVIK_TRY(MacroBody(statement->macro.get(), "endcall"));
    return statement;
  }

  Result<StatementPtr> FilterBlock() {
    StatementPtr statement = New(Kind::kFilterBlock, tokens_.Take().line);
    KVIK_ASSIGN(statement->filter, expressions_.FilterChain());
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endfilter"));
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  Result<StatementPtr> With() {
    StatementPtr statement = New(Kind::kWith, tokens_.Take().line);
    while (tokens_.Current().type != JinjaTokenType::kBlockEnd) {
      if (!statement->targets.empty()) KVIK_TRY(tokens_.ExpectOperator(","));
      KVIK_ASSIGN(JinjaExprPtr target, AssignTarget(false, ""));
      KVIK_TRY(tokens_.ExpectOperator("="));
      KVIK_ASSIGN(JinjaExprPtr value, expressions_.Expression());
      statement->targets.push_back(std::move(target));
      statement->exprs.push_back(std::move(value));
    }
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endwith"));
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  Result<StatementPtr> Print() {
    StatementPtr statement = New(Kind::kOutput, tokens_.Take().line);
    while (tokens_.Current().type != JinjaTokenType::kBlockEnd) {
      if (!statement->exprs.empty()) KVIK_TRY(tokens_.ExpectOperator(","));
      KVIK_ASSIGN(JinjaExprPtr expr, expressions_.Expression());
      statement->exprs.push_back(std::move(expr));
    }
    return statement;
  }

  Result<StatementPtr> Block() {
    StatementPtr statement = New(Kind::kScope, tokens_.Take().line);
    KVIK_ASSIGN(const std::string name, NewName());
    if (!blocks_.insert(name).second) return tokens_.Fail("block '" + name + "' is defined twice");
    statement->isolated = !tokens_.SkipName("scoped");
    tokens_.SkipName("required");
    const int loop_depth = std::exchange(loop_depth_, 0);
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endblock"));
    loop_depth_ = loop_depth;
    tokens_.SkipName(name);
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  // {% generation %} marks what the model said, for training; here it only groups.
  Result<StatementPtr> Generation() {
    StatementPtr statement = New(Kind::kScope, tokens_.Take().line);
    const int loop_depth = std::exchange(loop_depth_, 0);
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endgeneration"));
    loop_depth_ = loop_depth;
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  Result<StatementPtr> Autoescape() {
    StatementPtr statement = New(Kind::kAutoescape, tokens_.Take().line);
    KVIK_ASSIGN(JinjaExprPtr value, expressions_.Expression());
    statement->exprs.push_back(std::move(value));
    KVIK_ASSIGN(JinjaBody body, ScopedBody("endautoescape"));
    statement->bodies.push_back(std::move(body));
    return statement;
  }

  Result<StatementPtr> LoopControl() {
    const JinjaToken& token = tokens_.Take();
    if (loop_depth_ == 0) {
      return JinjaSyntaxError(token.line, "'" + token.text + "' outside of a loop");
    }
    return New(token.text == "break" ? Kind::kBreak : Kind::kContinue, token.line);
  }

  // extends, include, import, from: an error when it is reached, as there is nothing to load from.
  Result<StatementPtr> OtherTemplate() {
    StatementPtr statement = New(Kind::kUnsupported, tokens_.Current().line);
    statement->text = tokens_.Take().text;
    KVIK_ASSIGN(JinjaExprPtr unused, expressions_.Expression());
    while (tokens_.Current().type != JinjaTokenType::kBlockEnd &&
           tokens_.Current().type != JinjaTokenType::kEnd) {
      tokens_.Take();
    }
    return statement;
  }

  JinjaTokenStream tokens_;
  std::shared_ptr<JinjaTemplate> template_ = std::make_shared<JinjaTemplate>();
  JinjaExpressionParser expressions_{tokens_, template_->names};
  std::set<std::string> blocks_;
  int for_depth_ = 0;   // enclosing for statements
  int loop_depth_ = 0;  // enclosing loops that break can leave
};

}  // namespace

Result<std::shared_ptr<const JinjaTemplate>> JinjaParse(std::string_view source) {
  KVIK_ASSIGN(std::vector<JinjaToken> tokens, JinjaTokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace kvik::text
