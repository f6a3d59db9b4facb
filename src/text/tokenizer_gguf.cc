// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_gguf.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "text/pretokenizer.h"
#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

constexpr std::string_view kModelKey = "tokenizer.ggml.model";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";

// For messages: short, one line.
std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, 40));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  return shown;
}

Result<std::optional<TokenId>> ReadId(const char* key, std::optional<int64_t> id, size_t size) {
  if (!id) {
    return std::optional<TokenId>();
  }
  if (*id < 0 || static_cast<uint64_t>(*id) >= size || *id > std::numeric_limits<TokenId>::max()) {
    return Err(ErrorCode::kCorrupt, "tokenizer.ggml.%s is %lld; the vocabulary has %zu tokens", key,
               static_cast<long long>(*id), size);
  }
  return std::optional<TokenId>(static_cast<TokenId>(*id));
}

// Families whose original tokenizer looks a whole word up first.
bool IgnoresMerges(std::string_view pre) {
  constexpr std::array<std::string_view, 9> kNames = {"llama3",  "llama-v3",  "llama-bpe",
                                                      "falcon3", "falcon-h1", "pixtral",
                                                      "lfm2",    "tekken",    "llama4"};
  return std::find(kNames.begin(), kNames.end(), pre) != kNames.end();
}

// Families that begin with BOS where the file does not say.
bool AddsBos(std::string_view pre) {
  constexpr std::array<std::string_view, 8> kNames = {
      "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"};
  return std::find(kNames.begin(), kNames.end(), pre) != kNames.end();
}

}  // namespace

Result<TokenizerSpec> SpecFromGguf(GgufTokenizer fields) {
  TokenizerSpec spec;
  const size_t size = fields.tokens.size();
  if (size == 0) {
    return Err(ErrorCode::kCorrupt, "tokenizer.ggml.tokens is absent or empty");
  }
  if (!fields.token_types.empty() && fields.token_types.size() != size) {
    return Err(ErrorCode::kCorrupt, "tokenizer.ggml.token_type has %zu entries for %zu tokens",
               fields.token_types.size(), size);
  }
  if (!fields.scores.empty() && fields.scores.size() != size) {
    return Err(ErrorCode::kCorrupt, "tokenizer.ggml.scores has %zu entries for %zu tokens",
               fields.scores.size(), size);
  }
  const bool byte_level = fields.model == "gpt2";
  if (!byte_level && fields.model != "llama") {
    return Err(ErrorCode::kUnsupported, "%s is '%s'; kvik has 'gpt2' and 'llama'", kModelKey.data(),
               Shown(fields.model).c_str());
  }
  spec.kind = byte_level ? TokenizerKind::kByteLevelBpe : TokenizerKind::kSentencePieceBpe;
  spec.types.reserve(size);
  for (size_t i = 0; i < fields.token_types.size(); ++i) {
    const int32_t type = fields.token_types[i];
    // Some converters write 0 for ids that pad the vocabulary.
    if (type < 0 || type > static_cast<int32_t>(TokenType::kByte)) {
      return Err(ErrorCode::kCorrupt, "tokenizer.ggml.token_type of token %zu is %d", i, type);
    }
    spec.types.push_back(type == 0 ? TokenType::kUnused : static_cast<TokenType>(type));
  }
  spec.pieces = std::move(fields.tokens);
  spec.scores = std::move(fields.scores);
  spec.merges.reserve(fields.merges.size());
  for (size_t i = 0; i < fields.merges.size(); ++i) {
    const std::string& merge = fields.merges[i];
    // The left side is not empty, so that a space may be its first character.
    const size_t space = merge.size() < 3 ? std::string::npos : merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      return Err(ErrorCode::kCorrupt, "tokenizer.ggml.merges: entry %zu '%s' is not two pieces", i,
                 Shown(merge).c_str());
    }
    spec.merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  KVIK_ASSIGN(spec.bos_id, ReadId("bos_token_id", fields.bos_id, size));
  KVIK_ASSIGN(spec.eos_id, ReadId("eos_token_id", fields.eos_id, size));
  KVIK_ASSIGN(spec.unk_id, ReadId("unknown_token_id", fields.unk_id, size));
  KVIK_ASSIGN(spec.pad_id, ReadId("padding_token_id", fields.pad_id, size));
  KVIK_ASSIGN(const std::optional<TokenId> eot_id, ReadId("eot_token_id", fields.eot_id, size));
  KVIK_ASSIGN(const std::optional<TokenId> eom_id, ReadId("eom_token_id", fields.eom_id, size));
  for (const std::optional<TokenId>& id : {eot_id, eom_id}) {
    if (id) {
      spec.more_end_ids.push_back(*id);
    }
  }

  if (byte_level) {
    if (spec.merges.empty()) {
      return Err(ErrorCode::kCorrupt, "tokenizer.ggml.merges is absent or empty");
    }
    std::optional<std::vector<PreTokenizerStep>> steps = NamedPreTokenizer(fields.pre);
    if (!steps) {
      return Err(ErrorCode::kUnsupported, "%s is '%s', which kvik does not have", kPreKey.data(),
                 Shown(fields.pre).c_str());
    }
    spec.pre_tokenizer = std::move(*steps);
    spec.ignore_merges = IgnoresMerges(fields.pre);
    if (fields.add_space_prefix.value_or(false)) {
      spec.pre_tokenizer.push_back({.kind = PreTokenizerStep::Kind::kPrefixSpace});
      std::rotate(spec.pre_tokenizer.begin(), spec.pre_tokenizer.end() - 1,
                  spec.pre_tokenizer.end());
      spec.strip_leading_space = true;
    }
    spec.add_bos = fields.add_bos.value_or(AddsBos(fields.pre));
  } else {
    const bool space_prefix = fields.add_space_prefix.value_or(true);
    if (space_prefix) {
      spec.normalizer.push_back({.kind = NormalizerStep::Kind::kPrepend, .content = " "});
    }
    spec.normalizer.push_back({.kind = NormalizerStep::Kind::kReplace,
                               .pattern = " ",
                               .content = std::string(kSpaceSymbol)});
    spec.strip_leading_space = space_prefix;
    spec.add_bos = fields.add_bos.value_or(true);
    // Recognised pieces are looked for in the text as it is written.
    for (size_t i = 0; i < spec.types.size(); ++i) {
      std::string& piece = spec.pieces[i];
      if (spec.types[i] == TokenType::kUserDefined) {
        piece = ReplaceEvery(piece, kSpaceSymbol, " ");
      }
    }
  }
  spec.add_eos = fields.add_eos.value_or(false);
  // A file may ask for what it does not have.
  spec.add_bos = spec.add_bos && spec.bos_id.has_value();
  spec.add_eos = spec.add_eos && spec.eos_id.has_value();
  return spec;
}

}  // namespace kvik::text
