// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: symbols are bytes, so every text has tokens. Vocabularies spell a byte as the
// printable character GPT-2 chose for it; the 188 bytes that print stand for themselves, the others
// for U+0100 and up, in order.
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "text/tokenizer_model.h"
#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

// By byte: its stand-in, all below U+0800.
constexpr std::array<char16_t, 256> MakeStandIns() {
  std::array<char16_t, 256> stand_ins{};
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    stand_ins[static_cast<size_t>(byte)] =
        StandsForItself(byte) ? static_cast<char16_t>(byte) : next++;
  }
  return stand_ins;
}
constexpr std::array<char16_t, 256> kStandIns = MakeStandIns();

// By stand-in: its byte, or -1.
constexpr std::array<int16_t, 0x144> MakeBytes() {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) {
    bytes[kStandIns[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}
constexpr std::array<int16_t, 0x144> kBytes = MakeBytes();

std::string SpellByte(size_t byte) {
  const char16_t c = kStandIns[byte];
  if (c < 0x80) {
    return {static_cast<char>(c)};
  }
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

// The bytes that `spelling` stands for; as they are if a character of it is no stand-in.
std::string Unspell(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t pos = 0; pos < spelling.size();) {
    const Utf8Sequence c = ReadUtf8(spelling.substr(pos));
    if (!c.valid || c.code_point >= kBytes.size() || kBytes[c.code_point] < 0) {
      return std::string(spelling);
    }
    bytes += static_cast<char>(kBytes[c.code_point]);
    pos += c.bytes;
  }
  return bytes;
}

class ByteLevelBpe : public TokenizerModel {
 public:
  ByteLevelBpe(const Vocabulary* vocabulary, BpeMerges merges, bool ignore_merges)
      : vocabulary_(vocabulary),
        merges_(std::move(merges)),
        words_(&words_bytes_, vocabulary->size) {
    for (size_t byte = 0; byte < 256; ++byte) {
      byte_symbols_[byte] = vocabulary->FindSymbol(SpellByte(byte)).value_or(kNoSymbol);
    }
    for (size_t id = 0; id < vocabulary->size; ++id) {
      words_bytes_.Add(Unspell(vocabulary->spellings[id]));
    }
    EncodeWork work;
    std::vector<TokenId> ids;
    for (size_t i = 0; i < vocabulary->size; ++i) {
      const auto id = static_cast<TokenId>(i);
      if (vocabulary->types[i] != TokenType::kNormal || words_bytes_[i].empty()) {
        continue;
      }
      if (!ignore_merges) {
        ids.clear();
        Merge(words_bytes_[i], &work, &ids);
      }
      if (ignore_merges || (ids.size() == 1 && ids[0] == id)) {
        words_.Put(id);
      }
    }
  }

  void Encode(std::string_view word, EncodeWork* work, std::vector<TokenId>* ids) const override {
    if (const std::optional<TokenId> id = words_.Find(word)) {
      ids->push_back(*id);
    } else {
      Merge(word, work, ids);
    }
  }

  [[nodiscard]] std::string BytesOf(TokenId id) const override {
    return std::string(words_bytes_[static_cast<size_t>(id)]);
  }

 private:
  void Merge(std::string_view word, EncodeWork* work, std::vector<TokenId>* ids) const {
    auto& symbols = work->symbols;
    symbols.clear();
    for (const char c : word) {
      // A byte the vocabulary has no piece for is lost, as everywhere else.
      if (const Symbol symbol = byte_symbols_[static_cast<uint8_t>(c)]; symbol != kNoSymbol) {
        symbols.push_back(symbol);
      }
    }
    merges_.Apply(&symbols, &work->scratch);
    for (const Symbol symbol : symbols) {
      if (IsText(symbol)) {
        ids->push_back(static_cast<TokenId>(symbol));
        continue;
      }
      // The merges made something that is no piece of text: back to bytes.
      for (const char c : Unspell(vocabulary_->spellings[symbol])) {
        const Symbol byte = byte_symbols_[static_cast<uint8_t>(c)];
        if (byte != kNoSymbol && IsText(byte)) {
          ids->push_back(static_cast<TokenId>(byte));
        }
      }
    }
  }

  // Control tokens come from nothing that a text spells.
  [[nodiscard]] bool IsText(Symbol symbol) const {
    return vocabulary_->IsToken(symbol) && vocabulary_->types[symbol] != TokenType::kControl &&
           vocabulary_->types[symbol] != TokenType::kUnknown;
  }

  const Vocabulary* vocabulary_;
  BpeMerges merges_;
  std::array<Symbol, 256> byte_symbols_{};
  PieceList words_bytes_;  // by id
  WholeWords words_;
};

}  // namespace

Result<std::unique_ptr<TokenizerModel>> MakeByteLevelBpe(const TokenizerSpec& spec,
                                                         Vocabulary* vocabulary) {
  KVIK_ASSIGN(BpeMerges merges, ReadMerges(spec, vocabulary));
  return std::unique_ptr<TokenizerModel>(
      std::make_unique<ByteLevelBpe>(vocabulary, std::move(merges), spec.ignore_merges));
}

}  // namespace kvik::text
