// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_regex.h: regular expressions of tokenizers over UTF-8 (PCRE2 behind).
//
// Published patterns are written for Oniguruma or Rust. Where these and PCRE2 read a pattern
// differently (what \s and \w are), the pattern is rewritten to mean what they mean.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvik::text {

// Immutable and thread-safe.
class TokenizerRegex {
 public:
  // kUnsupported, with the pattern in the message (shortened).
  static Result<TokenizerRegex> Compile(std::string_view pattern);
  ~TokenizerRegex();
  TokenizerRegex(TokenizerRegex&&) noexcept;
  TokenizerRegex& operator=(TokenizerRegex&&) noexcept;

  // Calls `match(begin, end)` for each match that is not empty, left to right. A pattern that
  // backtracks beyond all measure ends the search: the rest of `text` has no match.
  // REQUIRES: text is valid UTF-8.
  void ForEach(std::string_view text, const std::function<void(size_t, size_t)>& match) const;

  // The pattern that matches exactly `text`.
  static std::string Quote(std::string_view text);

 private:
  struct Code;
  explicit TokenizerRegex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace kvik::text
