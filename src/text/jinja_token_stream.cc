// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_token_stream.h"

#include <algorithm>
#include <utility>

#include "text/jinja_ops.h"

namespace kvik::text {

JinjaTokenStream::JinjaTokenStream(std::vector<JinjaToken> tokens) : tokens_(std::move(tokens)) {}

const JinjaToken& JinjaTokenStream::Ahead() const {
  return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

const JinjaToken& JinjaTokenStream::Take() {
  const JinjaToken& token = tokens_[position_];
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool JinjaTokenStream::SkipOperator(std::string_view op) {
  if (!Current().IsOperator(op)) return false;
  Take();
  return true;
}

bool JinjaTokenStream::SkipName(std::string_view name) {
  if (!Current().IsName(name)) return false;
  Take();
  return true;
}

std::string JinjaTokenStream::Describe(const JinjaToken& token) {
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

Error JinjaTokenStream::Fail(const std::string& message) const {
  return JinjaSyntaxError(Current().line, message);
}

Error JinjaTokenStream::Expected(const std::string& what) const {
  return Fail("expected " + what + ", got " + Describe(Current()));
}

Result<void> JinjaTokenStream::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) return Expected(JinjaQuote(op));
  return {};
}

Result<void> JinjaTokenStream::ExpectName(std::string_view name) {
  if (!SkipName(name)) return Expected(JinjaQuote(name));
  return {};
}

Result<void> JinjaTokenStream::ExpectType(JinjaTokenType type, const char* what) {
  if (Current().type != type) return Expected(what);
  Take();
  return {};
}

}  // namespace kvik::text
