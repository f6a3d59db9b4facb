// SPDX-License-Identifier: Apache-2.0
// text/detokenizer.h: token ids to text, as they come.
//
// A token may be a part of a character. Every piece of text handed out is complete UTF-8; bytes
// that can never become a character are each maximal broken sequence one U+FFFD, and all pieces
// together are exactly what decoding all ids at once gives.
#pragma once

#include <span>
#include <string>

#include "base/types.h"
#include "text/tokenizer.h"

namespace kvik::text {

struct DetokenizerOptions {
  // Control tokens are not part of the text.
  bool skip_special = true;
  // The ids begin a text, so that the tokenizer's leading space is dropped; false when they go on
  // after a prompt.
  bool at_text_start = true;
};

// Owned by one thread.
class Detokenizer {
 public:
  // `tokenizer` must outlive it.
  explicit Detokenizer(const Tokenizer& tokenizer, const DetokenizerOptions& options = {});

  // The text that became complete with this token; often empty. Ids outside the vocabulary add
  // nothing.
  std::string Push(TokenId id);

  // The end: U+FFFD for a character that was begun and not finished, else nothing. Push may follow
  // and continues the text.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  DetokenizerOptions options_;
  std::string pending_;  // begins a character; at most 3 bytes
  bool at_start_;
};

// All ids at once.
std::string Decode(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                   const DetokenizerOptions& options = {});

}  // namespace kvik::text
