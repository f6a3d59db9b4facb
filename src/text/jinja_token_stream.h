// SPDX-License-Identifier: Apache-2.0
// text/jinja_token_stream.h: the tokens of a template as a recursive-descent parser takes them: one
// at a time, with the errors of what was expected. Thread-compatible.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_lexer.h"

namespace kvik::text {

class JinjaTokenStream {
 public:
  // REQUIRES: the last token is kEnd; it is never passed.
  explicit JinjaTokenStream(std::vector<JinjaToken> tokens);

  // Counts one level of nesting while it lives: brackets, negations and blocks are parsed and
  // walked recursively.
  class Level {
   public:
    explicit Level(JinjaTokenStream& tokens) : nesting_(tokens.nesting_) { ++nesting_; }
    ~Level() { --nesting_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    [[nodiscard]] bool too_deep() const { return nesting_ > kMaxNesting; }

   private:
    static constexpr int kMaxNesting = 100;
    int& nesting_;
  };

  [[nodiscard]] const JinjaToken& Current() const { return tokens_[position_]; }
  [[nodiscard]] const JinjaToken& Ahead() const;  // the one after, or kEnd
  const JinjaToken& Take();                       // the current one, and goes on
  // Takes the current token if it is this one.
  bool SkipOperator(std::string_view op);
  bool SkipName(std::string_view name);

  // "'{{'", "a string": a token in a message.
  static std::string Describe(const JinjaToken& token);
  // A syntax error at the current token.
  [[nodiscard]] Error Fail(const std::string& message) const;
  [[nodiscard]] Error Expected(const std::string& what) const;  // "expected <what>, got ..."
  // Takes the current token; an error if it is another one.
  Result<void> ExpectOperator(std::string_view op);
  Result<void> ExpectName(std::string_view name);
  Result<void> ExpectType(JinjaTokenType type, const char* what);

 private:
  std::vector<JinjaToken> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
};

}  // namespace kvik::text
