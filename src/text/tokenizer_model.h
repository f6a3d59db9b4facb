// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_model.h: one word to token ids. Private to the tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "text/bpe.h"
#include "text/tokenizer_pieces.h"
#include "text/tokenizer_spec.h"

namespace kvik::text {

// Spellings by symbol. The first `size` symbols are the token ids; those after are strings that
// occur only on the way to one. Does not move: the map points into it.
struct Vocabulary {
  explicit Vocabulary(const TokenizerSpec& spec);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  [[nodiscard]] std::optional<TokenId> FindId(std::string_view spelling) const;
  // Of a token, or of a string that was interned.
  [[nodiscard]] std::optional<Symbol> FindSymbol(std::string_view spelling) const;
  Symbol Intern(std::string_view spelling);
  [[nodiscard]] bool IsToken(Symbol symbol) const { return symbol < size; }
  // kNormal beyond the tokens.
  [[nodiscard]] TokenType TypeOf(Symbol symbol) const {
    return symbol < types.size() ? types[symbol] : TokenType::kNormal;
  }

  size_t size = 0;
  PieceList spellings;
  std::vector<TokenType> types;

 private:
  PieceMap by_spelling_;
};

// Working memory of one Encode call.
struct EncodeWork {
  BpeScratch scratch;
  std::vector<Symbol> symbols;
};

// Immutable and thread-safe.
class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  TokenizerModel() = default;
  TokenizerModel(const TokenizerModel&) = delete;
  TokenizerModel& operator=(const TokenizerModel&) = delete;

  // Appends the ids of `word`. REQUIRES: valid UTF-8, not empty.
  virtual void Encode(std::string_view word, EncodeWork* work, std::vector<TokenId>* ids) const = 0;

  // The bytes that a kNormal or kByte piece adds to a text.
  [[nodiscard]] virtual std::string BytesOf(TokenId id) const = 0;
};

// Both may add symbols to `vocabulary`, which must outlive the model. kCorrupt, kUnsupported.
Result<std::unique_ptr<TokenizerModel>> MakeByteLevelBpe(const TokenizerSpec& spec,
                                                         Vocabulary* vocabulary);
Result<std::unique_ptr<TokenizerModel>> MakeSentencePieceBpe(const TokenizerSpec& spec,
                                                             Vocabulary* vocabulary);

// Adds spec.merges to `merges`: the pieces are interned, rank is the place in the list.
Result<BpeMerges> ReadMerges(const TokenizerSpec& spec, Vocabulary* vocabulary);

// Words that are one piece, so that most words need no merging: pieces that `encode` makes into
// themselves. Exact, because what a word becomes depends on nothing but the word.
class WholeWords {
 public:
  // `pieces` must outlive it and not move. Room for `expected` words.
  WholeWords(const PieceList* pieces, size_t expected) : pieces_(pieces), map_(pieces, expected) {}

  void Put(TokenId id);
  [[nodiscard]] std::optional<TokenId> Find(std::string_view word) const;

 private:
  const PieceList* pieces_;
  PieceMap map_;
  size_t longest_bytes_ = 0;
};

}  // namespace kvik::text
