// SPDX-License-Identifier: Apache-2.0
// text/tokenizer.h: text to token ids and back to bytes.
//
// Immutable after Create and thread-safe. Equal text gives equal ids on every machine.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "text/tokenizer_spec.h"

namespace kvik::text {

struct EncodeOptions {
  // Text that spells a control token becomes it. For text made by a chat template or by whoever
  // runs the model; never for what a user wrote.
  bool parse_special = false;
  // Adds BOS and EOS where the model wants them (TokenizerSpec::add_bos, add_eos); a BOS or EOS
  // that parse_special already found at that place is not doubled.
  bool add_special = false;
};

class Tokenizer {
 public:
  // kCorrupt: ids out of range, lists whose lengths do not match, no pieces or far too many,
  // SentencePiece without merges and scores. kUnsupported: a regex that cannot be compiled, steps
  // that could make a text much longer.
  static Result<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Bytes that are not UTF-8 are read as U+FFFD. O(n log n) in the bytes of `text`, O(n) for text
  // with words.
  [[nodiscard]] std::vector<TokenId> Encode(std::string_view text,
                                            const EncodeOptions& options = {}) const;

  // Number of ids; a model's logits may be more.
  [[nodiscard]] size_t vocab_size() const;

  // The bytes a token adds to a text (one token may be a part of a character); for control tokens
  // their name. Empty for ids outside the vocabulary. Lives as long as the tokenizer.
  [[nodiscard]] std::string_view Piece(TokenId id) const;

  // The id of a piece as the vocabulary spells it ("<|im_end|>", "Ġthe", "▁the").
  [[nodiscard]] std::optional<TokenId> Find(std::string_view piece) const;
  // The vocabulary's spelling; empty for ids outside it.
  [[nodiscard]] std::string_view Spelling(TokenId id) const;

  // kControl or kUnknown: no part of the text that is shown. False for ids outside the vocabulary.
  [[nodiscard]] bool IsControl(TokenId id) const;

  [[nodiscard]] std::optional<TokenId> bos_id() const;
  [[nodiscard]] std::optional<TokenId> eos_id() const;
  [[nodiscard]] std::optional<TokenId> unk_id() const;
  [[nodiscard]] std::optional<TokenId> pad_id() const;
  // Ids at which a generation ends: EOS, the spec's further ones, and control tokens with the
  // names that published chat models end a turn with. Ascending.
  [[nodiscard]] std::span<const TokenId> end_ids() const;
  [[nodiscard]] bool IsEnd(TokenId id) const;
  [[nodiscard]] bool add_bos() const;
  [[nodiscard]] bool add_eos() const;
  // Whether a decoded text loses the one space it begins with (text/detokenizer.h does it).
  [[nodiscard]] bool strip_leading_space() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::text
