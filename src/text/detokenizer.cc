// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include <string_view>
#include <utility>

#include "text/tokenizer_utf8.h"

namespace kvik::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, const DetokenizerOptions& options)
    : tokenizer_(&tokenizer),
      options_(options),
      at_start_(options.at_text_start && tokenizer.strip_leading_space()) {}

std::string Detokenizer::Push(TokenId id) {
  std::string text;
  std::string_view piece = tokenizer_->Piece(id);
  if (piece.empty() || (options_.skip_special && tokenizer_->IsControl(id))) {
    return text;
  }
  if (std::exchange(at_start_, false) && piece.front() == ' ') {
    piece.remove_prefix(1);
  }
  if (pending_.empty()) {
    const size_t used = AppendValidUtf8(piece, true, &text);
    pending_ = piece.substr(used);
  } else {
    pending_ += piece;
    const size_t used = AppendValidUtf8(pending_, true, &text);
    pending_.erase(0, used);
  }
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  AppendValidUtf8(std::exchange(pending_, {}), false, &text);
  return text;
}

std::string Decode(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                   const DetokenizerOptions& options) {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!options.skip_special || !tokenizer.IsControl(id)) {
      bytes += tokenizer.Piece(id);
    }
  }
  std::string_view rest = bytes;
  if (options.at_text_start && tokenizer.strip_leading_space() && rest.starts_with(' ')) {
    rest.remove_prefix(1);
  }
  std::string text;
  AppendValidUtf8(rest, false, &text);
  return text;
}

}  // namespace kvik::text
