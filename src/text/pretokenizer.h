// SPDX-License-Identifier: Apache-2.0
// text/pretokenizer.h: cuts text into the words that are tokenised alone.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_spec.h"

namespace kvik::text {

// The splits of published models, as regexes.
inline constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kOneDigitSplit = R"(\p{N})";

// The steps that GGUF's `tokenizer.ggml.pre` names; nullopt for a name kvik does not know.
std::optional<std::vector<PreTokenizerStep>> NamedPreTokenizer(std::string_view name);

// Words in order: text that owns its bytes, and [begin, end) of each word in it. What a split
// removes is in no word.
struct Words {
  std::string text;
  std::vector<std::pair<size_t, size_t>> ranges;  // not empty
};

// Immutable and thread-safe.
class PreTokenizer {
 public:
  // kUnsupported: a regex that does not compile.
  static Result<PreTokenizer> Compile(std::vector<PreTokenizerStep> steps);

  // `at_start`: the text is the beginning of the whole, not what follows a recognised token.
  // REQUIRES: text is valid UTF-8.
  [[nodiscard]] Words Split(std::string text, bool at_start) const;

 private:
  struct Step {
    PreTokenizerStep step;
    std::optional<TokenizerRegex> regex;
  };
  std::vector<Step> steps_;
};

}  // namespace kvik::text
