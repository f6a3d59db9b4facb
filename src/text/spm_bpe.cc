// SPDX-License-Identifier: Apache-2.0
// SentencePiece BPE: symbols are characters, and any two neighbours whose concatenation is a piece
// may merge, the highest score first. That is a merge table too: every way to cut a piece into two
// strings that can occur is a merge, ranked by the piece's score. So the work per text is that of
// any other BPE; the table is made once.
//
// A whole text is one word here. It is still cut at spaces where the vocabulary proves that no
// merge can cross them, which is so for all published vocabularies.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "text/tokenizer_model.h"
#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

// Longer pieces are never made by merging; making their table would be quadratic.
constexpr size_t kMaxMergedPieceBytes = 1024;

bool IsMergeable(TokenType type) {
  return type == TokenType::kNormal || type == TokenType::kUnused;
}

Result<BpeMerges> MergesFromScores(const TokenizerSpec& spec, Vocabulary* vocabulary) {
  std::vector<uint32_t> order;
  for (uint32_t id = 0; id < vocabulary->size; ++id) {
    if (!IsMergeable(vocabulary->types[id])) {
      continue;
    }
    if (std::isnan(spec.scores[id])) {
      return Err(ErrorCode::kCorrupt, "tokenizer: score of token %u is not a number", id);
    }
    order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return spec.scores[a] > spec.scores[b]; });
  // Characters that occur in pieces but are none themselves.
  for (const uint32_t id : order) {
    const std::string piece(vocabulary->spellings[id]);
    if (piece.size() > kMaxMergedPieceBytes) {
      continue;
    }
    for (size_t pos = 0; pos < piece.size();) {
      const Utf8Sequence c = ReadUtf8(std::string_view(piece).substr(pos));
      vocabulary->Intern(std::string_view(piece).substr(pos, c.bytes));
      pos += c.bytes;
    }
  }
  BpeMerges merges(order.size() * 4);
  const auto part = [&](std::string_view text) {
    const std::optional<Symbol> symbol = vocabulary->FindSymbol(text);
    return symbol && IsMergeable(vocabulary->TypeOf(*symbol)) ? symbol : std::nullopt;
  };
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t id = order[i];
    if (i > 0 && spec.scores[id] < spec.scores[order[i - 1]]) {
      ++rank;  // equal scores share a rank: then the leftmost pair is first
    }
    const std::string_view piece = vocabulary->spellings[id];
    if (piece.size() > kMaxMergedPieceBytes) {
      continue;
    }
    for (size_t cut = 0; cut < piece.size();) {
      cut += ReadUtf8(piece.substr(cut)).bytes;
      if (cut == piece.size()) {
        break;
      }
      const std::optional<Symbol> left = part(piece.substr(0, cut));
      const std::optional<Symbol> right = part(piece.substr(cut));
      if (left && right) {
        merges.Add(*left, *right, rank, id);
      }
    }
  }
  return merges;
}

class SentencePieceBpe : public TokenizerModel {
 public:
  SentencePieceBpe(const TokenizerSpec& spec, const Vocabulary* vocabulary, BpeMerges merges)
      : vocabulary_(vocabulary),
        merges_(std::move(merges)),
        scores_(spec.scores),
        unk_id_(spec.unk_id),
        fuse_unknown_(spec.fuse_unknown),
        unescape_spaces_(spec.unescape_spaces),
        words_(&vocabulary->spellings, vocabulary->size) {
    byte_ids_.fill(-1);
    for (size_t i = 0; i < vocabulary->size; ++i) {
      const int byte = ByteOfSpelling(vocabulary->spellings[i]);
      if (spec.byte_fallback && vocabulary->types[i] == TokenType::kByte && byte >= 0) {
        byte_ids_[static_cast<size_t>(byte)] = static_cast<TokenId>(i);
      }
    }
    for (size_t i = 0; i < vocabulary->spellings.size(); ++i) {
      // A symbol in which a space follows something else could cross a cut.
      const std::string_view piece = vocabulary->spellings[i];
      for (size_t hit = piece.find(kSpaceSymbol, 1); hit != std::string_view::npos;
           hit = piece.find(kSpaceSymbol, hit + 1)) {
        if (IsMergeable(vocabulary->TypeOf(static_cast<Symbol>(i))) &&
            !piece.substr(0, hit).ends_with(kSpaceSymbol)) {
          cut_at_spaces_ = false;
        }
      }
    }
    for (size_t c = 0; c < ascii_.size(); ++c) {
      ascii_[c] = SymbolOf(std::string(1, static_cast<char>(c)));
    }
    EncodeWork work;
    std::vector<TokenId> ids;
    for (size_t i = 0; i < vocabulary->size; ++i) {
      const std::string_view piece = vocabulary->spellings[i];
      if (vocabulary->types[i] != TokenType::kNormal || piece.empty() ||
          ValidUtf8Prefix(piece) != piece.size() || piece.size() > kMaxMergedPieceBytes) {
        continue;
      }
      if (!spec.ignore_merges) {
        ids.clear();
        Merge(piece, &work, &ids);
      }
      if (spec.ignore_merges || (ids.size() == 1 && ids[0] == static_cast<TokenId>(i))) {
        words_.Put(static_cast<TokenId>(i));
      }
    }
  }

  void Encode(std::string_view word, EncodeWork* work, std::vector<TokenId>* ids) const override {
    if (!cut_at_spaces_) {
      EncodePart(word, work, ids);
      return;
    }
    size_t begin = 0;
    for (size_t hit = word.find(kSpaceSymbol, 1); hit != std::string_view::npos;
         hit = word.find(kSpaceSymbol, hit + kSpaceSymbol.size())) {
      if (!word.substr(0, hit).ends_with(kSpaceSymbol)) {
        EncodePart(word.substr(begin, hit - begin), work, ids);
        begin = hit;
      }
    }
    EncodePart(word.substr(begin), work, ids);
  }

  [[nodiscard]] std::string BytesOf(TokenId id) const override {
    const std::string_view spelling = vocabulary_->spellings[static_cast<size_t>(id)];
    const int byte = ByteOfSpelling(spelling);
    if (vocabulary_->types[static_cast<size_t>(id)] == TokenType::kByte && byte >= 0) {
      return {static_cast<char>(byte)};
    }
    return unescape_spaces_ ? ReplaceEvery(spelling, kSpaceSymbol, " ") : std::string(spelling);
  }

 private:
  void EncodePart(std::string_view part, EncodeWork* work, std::vector<TokenId>* ids) const {
    if (const std::optional<TokenId> id = words_.Find(part)) {
      ids->push_back(*id);
    } else {
      Merge(part, work, ids);
    }
  }

  void Merge(std::string_view part, EncodeWork* work, std::vector<TokenId>* ids) const {
    auto& symbols = work->symbols;
    symbols.clear();
    for (size_t pos = 0; pos < part.size();) {
      const auto lead = static_cast<uint8_t>(part[pos]);
      if (lead < ascii_.size()) {
        symbols.push_back(ascii_[lead]);
        ++pos;
        continue;
      }
      const size_t bytes = ReadUtf8(part.substr(pos)).bytes;
      symbols.push_back(SymbolOf(part.substr(pos, bytes)));
      pos += bytes;
    }
    merges_.Apply(&symbols, &work->scratch);
    size_t pos = 0;
    for (const Symbol symbol : symbols) {
      const size_t bytes = symbol == kNoSymbol ? ReadUtf8(part.substr(pos)).bytes
                                               : vocabulary_->spellings[symbol].size();
      Emit(symbol, part.substr(pos, bytes), ids);
      pos += bytes;
    }
  }

  // A character's symbol, whether or not it is a token.
  [[nodiscard]] Symbol SymbolOf(std::string_view character) const {
    const std::optional<Symbol> symbol = vocabulary_->FindSymbol(character);
    return symbol && IsMergeable(vocabulary_->TypeOf(*symbol)) ? *symbol : kNoSymbol;
  }

  void Emit(Symbol symbol, std::string_view text, std::vector<TokenId>* ids) const {
    if (symbol != kNoSymbol && vocabulary_->IsToken(symbol) &&
        vocabulary_->types[symbol] != TokenType::kUnused) {
      ids->push_back(static_cast<TokenId>(symbol));
      return;
    }
    const size_t first = ReadUtf8(text).bytes;
    if (symbol != kNoSymbol && text.size() > first) {
      EmitParts(text, ids);
      return;
    }
    EmitUnknown(text, ids);
  }

  // A merged string that may not be produced: the two parts whose worse score is best. Each cut
  // makes parts shorter, so the depth is the length of a piece in characters.
  void EmitParts(std::string_view text, std::vector<TokenId>* ids) const {
    const size_t first = ReadUtf8(text).bytes;
    size_t best_cut = first;
    float best_score = -std::numeric_limits<float>::infinity();
    for (size_t cut = first; cut < text.size(); cut += ReadUtf8(text.substr(cut)).bytes) {
      const Symbol left = SymbolOf(text.substr(0, cut));
      const Symbol right = SymbolOf(text.substr(cut));
      const float score = std::min(ScoreOf(left), ScoreOf(right));
      if (score > best_score) {
        best_score = score;
        best_cut = cut;
      }
    }
    for (const std::string_view part : {text.substr(0, best_cut), text.substr(best_cut)}) {
      const Symbol symbol = SymbolOf(part);
      if (symbol == kNoSymbol && part.size() > ReadUtf8(part).bytes) {
        EmitParts(part, ids);
      } else {
        Emit(symbol, part, ids);
      }
    }
  }

  [[nodiscard]] float ScoreOf(Symbol symbol) const {
    return symbol < scores_.size() ? scores_[symbol] : -std::numeric_limits<float>::infinity();
  }

  void EmitUnknown(std::string_view character, std::vector<TokenId>* ids) const {
    const auto id_of = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
    if (std::all_of(character.begin(), character.end(), [&](char c) { return id_of(c) >= 0; })) {
      for (const char c : character) {
        ids->push_back(id_of(c));
      }
      return;
    }
    if (unk_id_ && !(fuse_unknown_ && !ids->empty() && ids->back() == *unk_id_)) {
      ids->push_back(*unk_id_);
    }
  }

  const Vocabulary* vocabulary_;
  BpeMerges merges_;
  std::vector<float> scores_;  // by id; may be empty
  std::optional<TokenId> unk_id_;
  bool fuse_unknown_;
  bool unescape_spaces_;
  bool cut_at_spaces_ = true;
  std::array<TokenId, 256> byte_ids_{};
  std::array<Symbol, 128> ascii_{};
  WholeWords words_;
};

}  // namespace

Result<std::unique_ptr<TokenizerModel>> MakeSentencePieceBpe(const TokenizerSpec& spec,
                                                             Vocabulary* vocabulary) {
  if (!spec.merges.empty()) {
    KVIK_ASSIGN(BpeMerges merges, ReadMerges(spec, vocabulary));
    return std::unique_ptr<TokenizerModel>(
        std::make_unique<SentencePieceBpe>(spec, vocabulary, std::move(merges)));
  }
  if (spec.scores.size() != spec.pieces.size()) {
    return Err(ErrorCode::kCorrupt, "tokenizer: SentencePiece BPE without merges or scores");
  }
  KVIK_ASSIGN(BpeMerges merges, MergesFromScores(spec, vocabulary));
  return std::unique_ptr<TokenizerModel>(
      std::make_unique<SentencePieceBpe>(spec, vocabulary, std::move(merges)));
}

}  // namespace kvik::text
