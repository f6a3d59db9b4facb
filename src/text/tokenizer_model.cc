// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_model.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvik::text {

Vocabulary::Vocabulary(const TokenizerSpec& spec)
    : size(spec.pieces.size()), types(spec.types), by_spelling_(&spellings, spec.pieces.size()) {
  types.resize(size, TokenType::kNormal);
  for (const std::string& piece : spec.pieces) {
    spellings.Add(piece);
  }
  // Where two pieces are spelled alike, the name belongs to one that text can become.
  const auto put = [&](bool useful) {
    for (uint32_t i = 0; i < size; ++i) {
      const bool is_useful = types[i] != TokenType::kUnused && types[i] != TokenType::kByte;
      if (is_useful == useful && !spellings[i].empty()) {
        by_spelling_.Put(i);
      }
    }
  };
  put(false);
  put(true);
}

std::optional<TokenId> Vocabulary::FindId(std::string_view spelling) const {
  const std::optional<uint32_t> symbol = by_spelling_.Find(spelling);
  if (!symbol || !IsToken(*symbol)) {
    return std::nullopt;
  }
  return static_cast<TokenId>(*symbol);
}

std::optional<Symbol> Vocabulary::FindSymbol(std::string_view spelling) const {
  return by_spelling_.Find(spelling);
}

Symbol Vocabulary::Intern(std::string_view spelling) {
  if (const std::optional<uint32_t> symbol = by_spelling_.Find(spelling)) {
    return *symbol;
  }
  const auto symbol = static_cast<Symbol>(spellings.size());
  spellings.Add(spelling);
  by_spelling_.Put(symbol);
  return symbol;
}

Result<BpeMerges> ReadMerges(const TokenizerSpec& spec, Vocabulary* vocabulary) {
  BpeMerges merges(spec.merges.size());
  std::string both;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const TokenizerSpec::Merge& merge = spec.merges[rank];
    if (merge.left.empty() || merge.right.empty()) {
      return Err(ErrorCode::kCorrupt, "tokenizer: merge %zu has an empty side", rank);
    }
    both = merge.left;
    both += merge.right;
    const Symbol left = vocabulary->Intern(merge.left);
    const Symbol right = vocabulary->Intern(merge.right);
    merges.Add(left, right, static_cast<uint32_t>(rank), vocabulary->Intern(both));
  }
  return merges;
}

void WholeWords::Put(TokenId id) {
  map_.Put(static_cast<uint32_t>(id));
  longest_bytes_ = std::max(longest_bytes_, (*pieces_)[static_cast<size_t>(id)].size());
}

std::optional<TokenId> WholeWords::Find(std::string_view word) const {
  if (word.size() > longest_bytes_) {
    return std::nullopt;
  }
  const std::optional<uint32_t> id = map_.Find(word);
  return id ? std::optional(static_cast<TokenId>(*id)) : std::nullopt;
}

}  // namespace kvik::text
