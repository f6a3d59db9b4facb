// SPDX-License-Identifier: Apache-2.0
// A text is cut three times. First at the pieces that are recognised whole (user-defined ones
// always, control tokens if the caller says so); what lies between is normalised, cut at the
// recognised pieces that are looked for only after that, and then into words. Each word becomes
// tokens alone (text/tokenizer_model.h).
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_model.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 24;

// With what the chat formats of published models end a turn.
constexpr std::array<std::string_view, 9> kEndNames = {
    "<|im_end|>",    "<|eot_id|>", "<|eom_id|>",      "<|end|>", "<|endoftext|>",
    "<end_of_turn>", "<|eot|>",    "<|end_of_text|>", "</s>"};

bool IsRecognised(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown ||
         type == TokenType::kUserDefined;
}

bool IsSpecial(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

Result<void> CheckId(const char* name, std::optional<TokenId> id, size_t size) {
  if (id && (*id < 0 || static_cast<size_t>(*id) >= size)) {
    return Err(ErrorCode::kCorrupt, "tokenizer: %s id %d is not in the vocabulary of %zu tokens",
               name, *id, size);
  }
  return {};
}

Result<void> CheckSpec(const TokenizerSpec& spec) {
  const size_t size = spec.pieces.size();
  if (size == 0 || size > kMaxPieces) {
    return Err(ErrorCode::kCorrupt, "tokenizer: %zu tokens; 1 to %zu are possible", size,
               kMaxPieces);
  }
  if ((!spec.types.empty() && spec.types.size() != size) ||
      (!spec.scores.empty() && spec.scores.size() != size)) {
    return Err(ErrorCode::kCorrupt, "tokenizer: %zu tokens but %zu types and %zu scores", size,
               spec.types.size(), spec.scores.size());
  }
  if (spec.merges.size() > 4 * kMaxPieces) {
    return Err(ErrorCode::kCorrupt, "tokenizer: %zu merges are too many", spec.merges.size());
  }
  KVIK_TRY(CheckId("BOS", spec.bos_id, size));
  KVIK_TRY(CheckId("EOS", spec.eos_id, size));
  KVIK_TRY(CheckId("UNK", spec.unk_id, size));
  KVIK_TRY(CheckId("PAD", spec.pad_id, size));
  for (const TokenId id : spec.more_end_ids) {
    KVIK_TRY(CheckId("end of turn", id, size));
  }
  for (const AddedTokenRule& rule : spec.added_rules) {
    KVIK_TRY(CheckId("added token", rule.id, size));
  }
  if ((spec.add_bos && !spec.bos_id) || (spec.add_eos && !spec.eos_id)) {
    return Err(ErrorCode::kCorrupt, "tokenizer: %s is to be added but has no id",
               spec.add_bos && !spec.bos_id ? "BOS" : "EOS");
  }
  return {};
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(const TokenizerSpec& spec) : vocabulary(spec) {}

  Vocabulary vocabulary;
  std::unique_ptr<TokenizerModel> model;
  AddedTokens raw_added{{}};
  AddedTokens normalized_added{{}};
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PieceList pieces;  // bytes by id

  std::optional<TokenId> bos_id;
  std::optional<TokenId> eos_id;
  std::optional<TokenId> unk_id;
  std::optional<TokenId> pad_id;
  std::vector<TokenId> end_ids;
  bool add_bos = false;
  bool add_eos = false;
  bool strip_leading_space = false;

  void AddPieces(const TokenizerSpec& spec) {
    for (size_t i = 0; i < vocabulary.size; ++i) {
      const TokenType type = vocabulary.types[i];
      pieces.Add(type == TokenType::kNormal || type == TokenType::kByte
                     ? model->BytesOf(static_cast<TokenId>(i))
                     : std::string(vocabulary.spellings[i]));
    }
    std::vector<AddedTokenRule> rules(vocabulary.size);
    for (const AddedTokenRule& rule : spec.added_rules) {
      rules[static_cast<size_t>(rule.id)] = rule;
    }
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    for (size_t i = 0; i < vocabulary.size; ++i) {
      const TokenType type = vocabulary.types[i];
      const AddedTokenRule& rule = rules[i];
      if (!IsRecognised(type)) {
        continue;
      }
      AddedToken token{.id = static_cast<TokenId>(i),
                       .text = std::string(vocabulary.spellings[i]),
                       .is_special = IsSpecial(type),
                       .strip_left = rule.strip_left,
                       .strip_right = rule.strip_right,
                       .single_word = rule.single_word};
      if (rule.normalized && !normalizer.empty()) {
        std::string valid;
        AppendValidUtf8(token.text, false, &valid);
        token.text = normalizer.Apply(valid);
      }
      if (!token.text.empty()) {
        (rule.normalized ? normalized : raw).push_back(std::move(token));
      }
    }
    raw_added = AddedTokens(std::move(raw));
    normalized_added = AddedTokens(std::move(normalized));
  }

  void AddEndIds(const TokenizerSpec& spec) {
    end_ids = spec.more_end_ids;
    if (eos_id) {
      end_ids.push_back(*eos_id);
    }
    for (const std::string_view name : kEndNames) {
      const std::optional<TokenId> id = vocabulary.FindId(name);
      if (id && IsSpecial(vocabulary.types[static_cast<size_t>(*id)])) {
        end_ids.push_back(*id);
      }
    }
    std::sort(end_ids.begin(), end_ids.end());
    end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
  }

  void EncodeWords(std::string text, bool at_start, EncodeWork* work,
                   std::vector<TokenId>* ids) const {
    const Words words = pre_tokenizer.Split(std::move(text), at_start);
    for (const auto& [begin, end] : words.ranges) {
      model->Encode(std::string_view(words.text).substr(begin, end - begin), work, ids);
    }
  }

  // What lies between recognised tokens. REQUIRES: valid UTF-8.
  void EncodeRaw(std::string_view raw, bool at_start, bool parse_special, EncodeWork* work,
                 std::vector<TokenId>* ids) const {
    if (raw.empty()) {
      return;
    }
    std::string text = normalizer.empty() ? std::string(raw) : normalizer.Apply(raw);
    if (normalized_added.empty()) {
      EncodeWords(std::move(text), at_start, work, ids);
      return;
    }
    size_t pos = 0;
    while (const auto match = normalized_added.Find(text, pos, parse_special)) {
      EncodeWords(text.substr(pos, match->begin - pos), at_start && pos == 0, work, ids);
      ids->push_back(match->id);
      pos = match->end;
    }
    EncodeWords(text.substr(pos), at_start && pos == 0, work, ids);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  KVIK_TRY(CheckSpec(spec));
  auto impl = std::make_unique<Impl>(spec);
  KVIK_ASSIGN(impl->normalizer, Normalizer::Compile(std::move(spec.normalizer)));
  KVIK_ASSIGN(impl->pre_tokenizer, PreTokenizer::Compile(std::move(spec.pre_tokenizer)));
  if (spec.kind == TokenizerKind::kByteLevelBpe) {
    KVIK_ASSIGN(impl->model, MakeByteLevelBpe(spec, &impl->vocabulary));
  } else {
    KVIK_ASSIGN(impl->model, MakeSentencePieceBpe(spec, &impl->vocabulary));
  }
  impl->bos_id = spec.bos_id;
  impl->eos_id = spec.eos_id;
  impl->unk_id = spec.unk_id;
  impl->pad_id = spec.pad_id;
  impl->add_bos = spec.add_bos;
  impl->add_eos = spec.add_eos;
  impl->strip_leading_space = spec.strip_leading_space;
  impl->AddPieces(spec);
  impl->AddEndIds(spec);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::string repaired;
  if (ValidUtf8Prefix(text) != text.size()) {
    AppendValidUtf8(text, false, &repaired);
    text = repaired;
  }
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 2);
  EncodeWork work;
  bool begins_with_bos = false;
  bool ends_with_eos = false;
  size_t pos = 0;
  while (const auto match = impl_->raw_added.Find(text, pos, options.parse_special)) {
    impl_->EncodeRaw(text.substr(pos, match->begin - pos), pos == 0, options.parse_special, &work,
                     &ids);
    begins_with_bos = begins_with_bos || (ids.empty() && match->id == impl_->bos_id);
    ends_with_eos = match->end == text.size() && match->id == impl_->eos_id;
    ids.push_back(match->id);
    pos = match->end;
  }
  impl_->EncodeRaw(text.substr(pos), pos == 0, options.parse_special, &work, &ids);
  if (options.add_special && impl_->add_bos && !begins_with_bos) {
    ids.insert(ids.begin(), *impl_->bos_id);
  }
  if (options.add_special && impl_->add_eos && !ends_with_eos) {
    ids.push_back(*impl_->eos_id);
  }
  return ids;
}

size_t Tokenizer::vocab_size() const { return impl_->vocabulary.size; }

std::string_view Tokenizer::Piece(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < vocab_size() ? impl_->pieces[static_cast<size_t>(id)]
                                                           : std::string_view();
}

std::optional<TokenId> Tokenizer::Find(std::string_view piece) const {
  return impl_->vocabulary.FindId(piece);
}

std::string_view Tokenizer::Spelling(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < vocab_size()
             ? impl_->vocabulary.spellings[static_cast<size_t>(id)]
             : std::string_view();
}

bool Tokenizer::IsControl(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < vocab_size() &&
         IsSpecial(impl_->vocabulary.types[static_cast<size_t>(id)]);
}

std::optional<TokenId> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<TokenId> Tokenizer::eos_id() const { return impl_->eos_id; }
std::optional<TokenId> Tokenizer::unk_id() const { return impl_->unk_id; }
std::optional<TokenId> Tokenizer::pad_id() const { return impl_->pad_id; }
std::span<const TokenId> Tokenizer::end_ids() const { return impl_->end_ids; }
bool Tokenizer::IsEnd(TokenId id) const {
  return std::binary_search(impl_->end_ids.begin(), impl_->end_ids.end(), id);
}
bool Tokenizer::add_bos() const { return impl_->add_bos; }
bool Tokenizer::add_eos() const { return impl_->add_eos; }
bool Tokenizer::strip_leading_space() const { return impl_->strip_leading_space; }

}  // namespace kvik::text
