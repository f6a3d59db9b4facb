// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_normalizer.h: runs the normalizer steps of a tokenizer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_spec.h"

namespace kvik::text {

// Immutable and thread-safe.
class Normalizer {
 public:
  // kUnsupported: a regex that does not compile, or steps that together could make a text more
  // than 1024 times as long.
  static Result<Normalizer> Compile(std::vector<NormalizerStep> steps);

  [[nodiscard]] bool empty() const { return steps_.empty(); }

  // REQUIRES: text is valid UTF-8. So is the result.
  [[nodiscard]] std::string Apply(std::string_view text) const;

 private:
  struct Step {
    NormalizerStep step;
    std::optional<TokenizerRegex> regex;
  };
  std::vector<Step> steps_;
};

}  // namespace kvik::text
