// SPDX-License-Identifier: Apache-2.0
// jinja2 decides before a block runs where each of its names comes from. A name that the block sets
// before it reads it (in the order of the text, at the block's own level) is the block's own, and
// undefined until it is set, also in inner blocks and macros that read it earlier and even if the
// caller passed a variable of that name:
//
//   {% for m in messages %}{{ tools }}{% endfor %}{% set tools = [] %}   prints nothing
//
// A name that is first set in a branch of an `if` keeps the outer value until then.
#include "text/jinja_scopes.h"

#include <initializer_list>
#include <unordered_map>

namespace kvik::text {
namespace {

// Where a name's value comes from when its block starts.
enum class Origin { kParameter, kContext, kOuterBlock, kNowhere };

struct NameState {
  Origin origin = Origin::kContext;
  bool stored = false;
};

// The names of one block, or of one branch of an `if` inside it.
struct Names {
  const Names* block = nullptr;   // a branch: the names known before the branch
  const Names* parent = nullptr;  // a block: the names of the block around it
  std::unordered_map<JinjaNameId, NameState> states;

  [[nodiscard]] const NameState* FindOwn(JinjaNameId name) const {
    for (const Names* at = this; at != nullptr; at = at->block) {
      const auto it = at->states.find(name);
      if (it != at->states.end()) return &it->second;
    }
    return nullptr;
  }
  [[nodiscard]] const Names* Outer() const {
    const Names* at = this;
    while (at->block != nullptr) at = at->block;
    return at->parent;
  }
  [[nodiscard]] bool KnownOutside(JinjaNameId name) const {
    for (const Names* at = Outer(); at != nullptr; at = at->Outer()) {
      if (at->FindOwn(name) != nullptr) return true;
    }
    return false;
  }
};

class Analyzer {
 public:
  void Template(JinjaTemplate* parsed) {
    Names root;
    Body(parsed->body, &root);
    parsed->hidden = Hidden(root);
    InnerBlocks(parsed->body, root);
  }

 private:
  static std::vector<JinjaNameId> Hidden(const Names& names) {
    std::vector<JinjaNameId> hidden;
    for (const auto& [name, state] : names.states) {
      if (state.origin == Origin::kNowhere) hidden.push_back(name);
    }
    return hidden;
  }

  static void Load(JinjaNameId name, Names* names) {
    if (names->FindOwn(name) == nullptr && !names->KnownOutside(name)) {
      names->states[name] = {Origin::kContext, false};
    }
  }

  static void Store(JinjaNameId name, Names* names) {
    const NameState* known = names->FindOwn(name);
    NameState state = known != nullptr            ? *known
                      : names->KnownOutside(name) ? NameState{Origin::kOuterBlock, false}
                                                  : NameState{Origin::kNowhere, false};
    state.stored = true;
    names->states[name] = state;
  }

  // --- the names at a block's own level

  void Exprs(const std::vector<JinjaExprPtr>& exprs, Names* names) {
    for (const JinjaExprPtr& expr : exprs) Expr(expr.get(), names);
  }

  void Expr(const JinjaExpr* expr, Names* names) {
    if (expr == nullptr) return;
    if (expr->kind == JinjaExpr::Kind::kName || expr->kind == JinjaExpr::Kind::kNamespaceRef) {
      Load(expr->name, names);
    }
    Exprs(expr->children, names);
    Exprs(expr->args.positional, names);
    for (const auto& [name, value] : expr->args.named) Expr(value.get(), names);
    Expr(expr->args.star.get(), names);
    Expr(expr->args.double_star.get(), names);
  }

  void Target(const JinjaExpr& target, Names* names, bool parameter) {
    if (target.kind == JinjaExpr::Kind::kName) {
      if (parameter) {
        names->states[target.name] = {Origin::kParameter, false};
      } else {
        Store(target.name, names);
      }
    } else if (target.kind == JinjaExpr::Kind::kNamespaceRef) {
      Load(target.name, names);
    }
    for (const JinjaExprPtr& child : target.children) Target(*child, names, parameter);
  }

  void Body(const JinjaBody& body, Names* names) {
    for (const auto& statement : body) Statement(*statement, names);
  }

  void Statement(const JinjaStatement& statement, Names* names) {
    using Kind = JinjaStatement::Kind;
    switch (statement.kind) {
      case Kind::kIf:
        If(statement, 0, names);
        break;
      case Kind::kSet:
        Exprs(statement.exprs, names);
        Target(*statement.target, names, false);
        break;
      case Kind::kSetBlock:
        Target(*statement.target, names, false);
        break;
      case Kind::kMacro:
        Store(statement.name, names);
        break;
      case Kind::kFilterBlock:
        Expr(statement.filter.get(), names);
        break;
      case Kind::kAutoescape:
      case Kind::kScope:
        break;
      default:  // outputs, and what a for, call or with evaluates outside of its body
        Exprs(statement.exprs, names);
    }
  }

  // Test and body `at` of an if. There are always three branches, empty or not: the body, all elifs
  // together (each an if of its own, without elifs and else), and the else.
  void If(const JinjaStatement& statement, size_t at, Names* names) {
    Expr(statement.exprs[at].get(), names);
    Names body;
    Names elifs;
    Names otherwise;
    for (Names* branch : {&body, &elifs, &otherwise}) branch->block = names;
    Body(statement.bodies[at], &body);
    if (at == 0) {
      for (size_t i = 1; i < statement.exprs.size(); ++i) If(statement, i, &elifs);
      if (statement.bodies.size() > statement.exprs.size()) {
        Body(statement.bodies.back(), &otherwise);
      }
    }
    Merge({&body, &elifs, &otherwise}, names);
  }

  static void Merge(std::initializer_list<const Names*> branches, Names* names) {
    std::unordered_map<JinjaNameId, NameState> merged;
    for (const Names* branch : branches) {
      for (const auto& [name, state] : branch->states) {
        NameState& result = merged[name];
        result.origin = state.origin;
        result.stored = result.stored || state.stored;
      }
    }
    for (auto& [name, state] : merged) {
      const NameState* before = names->FindOwn(name);
      const bool stored_before = before != nullptr && before->stored;
      if (state.stored && !stored_before) {
        // Another branch may be taken: the block starts with the value from outside.
        state.origin = names->KnownOutside(name) ? Origin::kOuterBlock : Origin::kContext;
      }
      names->states[name] = state;
    }
  }

  // --- the blocks inside a block

  void InnerBlocks(JinjaBody& body, const Names& names) {
    for (auto& statement : body) InnerBlocks(*statement, names);
  }

  void InnerBlocks(JinjaStatement& statement, const Names& names) {
    using Kind = JinjaStatement::Kind;
    if (statement.kind == Kind::kIf) {
      for (JinjaBody& body : statement.bodies) InnerBlocks(body, names);
      return;
    }
    if (statement.macro != nullptr) {
      JinjaMacroDef& macro = *statement.macro;
      Names inner;
      inner.parent = &names;
      for (const JinjaNameId parameter : macro.parameters) {
        inner.states[parameter] = {Origin::kParameter, false};
      }
      Exprs(macro.defaults, &inner);
      Body(macro.body, &inner);
      macro.hidden = Hidden(inner);
      InnerBlocks(macro.body, inner);
    }
    statement.hidden.resize(statement.bodies.size());
    for (size_t i = 0; i < statement.bodies.size(); ++i) {
      Names inner;
      inner.parent = statement.isolated ? nullptr : &names;
      if (statement.kind == Kind::kFor && i == 0) Target(*statement.target, &inner, true);
      for (const JinjaExprPtr& target : statement.targets) Target(*target, &inner, true);
      if (statement.kind == Kind::kFilterBlock) Expr(statement.filter.get(), &inner);
      Body(statement.bodies[i], &inner);
      statement.hidden[i] = Hidden(inner);
      InnerBlocks(statement.bodies[i], inner);
    }
  }
};

}  // namespace

void JinjaFindHiddenNames(JinjaTemplate* parsed) { Analyzer().Template(parsed); }

}  // namespace kvik::text
