// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer_source.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "model/json_file.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_json.h"

namespace kvik::model {
namespace {

constexpr size_t kMaxTokenizerBytes = 256 << 20;
constexpr size_t kMaxTokenizerConfigBytes = 8 << 20;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Result<text::TokenizerSpec> SpecFromMetadata(const GgufFile& file) {
  if (!file.Has("tokenizer.ggml.model") || !file.Has("tokenizer.ggml.tokens")) {
    return file.Complain(ErrorCode::kNotFound,
                         "metadata 'tokenizer.ggml.model' or 'tokenizer.ggml.tokens': is missing, "
                         "the file brings no tokenizer; use a file that does");
  }
  const auto text = [&](const char* key) -> Result<std::string> {
    KVIK_ASSIGN(const auto value, file.String(key));
    return std::string(value.value_or(""));
  };
  const auto strings = [&](const char* key) -> Result<std::vector<std::string>> {
    KVIK_ASSIGN(const auto views, file.Strings(key));
    return std::vector<std::string>(views.begin(), views.end());
  };
  const auto id = [&](const char* key) { return file.Int(key, 0, kMaxInt32); };
  text::GgufTokenizer fields;
  KVIK_ASSIGN(fields.model, text("tokenizer.ggml.model"));
  KVIK_ASSIGN(fields.pre, text("tokenizer.ggml.pre"));
  KVIK_ASSIGN(fields.tokens, strings("tokenizer.ggml.tokens"));
  KVIK_ASSIGN(const auto types, file.Ints("tokenizer.ggml.token_type"));
  for (const int64_t type : types) {
    fields.token_types.push_back(static_cast<int32_t>(
        std::clamp<int64_t>(type, std::numeric_limits<int32_t>::min(), kMaxInt32)));
  }
  KVIK_ASSIGN(fields.scores, file.Floats("tokenizer.ggml.scores"));
  KVIK_ASSIGN(fields.merges, strings("tokenizer.ggml.merges"));
  KVIK_ASSIGN(fields.bos_id, id("tokenizer.ggml.bos_token_id"));
  KVIK_ASSIGN(fields.eos_id, id("tokenizer.ggml.eos_token_id"));
  KVIK_ASSIGN(fields.eot_id, id("tokenizer.ggml.eot_token_id"));
  KVIK_ASSIGN(fields.eom_id, id("tokenizer.ggml.eom_token_id"));
  KVIK_ASSIGN(fields.unk_id, id("tokenizer.ggml.unknown_token_id"));
  KVIK_ASSIGN(fields.pad_id, id("tokenizer.ggml.padding_token_id"));
  KVIK_ASSIGN(fields.add_bos, file.Bool("tokenizer.ggml.add_bos_token"));
  KVIK_ASSIGN(fields.add_eos, file.Bool("tokenizer.ggml.add_eos_token"));
  KVIK_ASSIGN(fields.add_space_prefix, file.Bool("tokenizer.ggml.add_space_prefix"));
  Result<text::TokenizerSpec> spec = text::SpecFromGguf(std::move(fields));
  return spec ? std::move(spec) : spec.error().Wrap(file.path());
}

// "bos_token" is a string or an object with its "content"; null and absent are none.
Result<std::string> SpecialToken(const JsonFields& json, const char* key) {
  if (json.Has(key) && json.json()[key].is_object()) {
    KVIK_ASSIGN(const auto object, json.Object(key));
    KVIK_ASSIGN(const auto content, object->String("content"));
    return content.value_or("");
  }
  KVIK_ASSIGN(const auto text, json.String(key));
  return text.value_or("");
}

std::optional<TokenId> FindPiece(const text::TokenizerSpec& spec, const std::string& piece) {
  for (size_t i = 0; i < spec.pieces.size() && !piece.empty(); ++i) {
    if (spec.pieces[i] == piece) {
      return static_cast<TokenId>(i);
    }
  }
  return std::nullopt;
}

Result<void> ApplyTokenizerConfig(const std::string& path, text::TokenizerSpec& spec) {
  KVIK_ASSIGN(const JsonFields json, JsonFields::Load(path, kMaxTokenizerConfigBytes));
  const std::pair<const char*, std::optional<TokenId>*> tokens[] = {{"bos_token", &spec.bos_id},
                                                                    {"eos_token", &spec.eos_id},
                                                                    {"unk_token", &spec.unk_id},
                                                                    {"pad_token", &spec.pad_id}};
  for (const auto& [key, id] : tokens) {
    KVIK_ASSIGN(const std::string piece, SpecialToken(json, key));
    const std::optional<TokenId> found = FindPiece(spec, piece);
    if (found) {
      *id = found;
    }
  }
  KVIK_ASSIGN(const auto add_bos, json.Bool("add_bos_token"));
  KVIK_ASSIGN(const auto add_eos, json.Bool("add_eos_token"));
  spec.add_bos = add_bos.value_or(spec.add_bos) && spec.bos_id.has_value();
  spec.add_eos = add_eos.value_or(spec.add_eos) && spec.eos_id.has_value();
  return {};
}

Result<text::TokenizerSpec> SpecFromFolder(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return Err(ErrorCode::kNotFound, "%s: is missing; download the model's tokenizer.json",
               path.c_str());
  }
  KVIK_ASSIGN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > kMaxTokenizerBytes) {
    return Err(ErrorCode::kCorrupt, "%s: %zu bytes are too many for a tokenizer (limit %zu)",
               path.c_str(), file.bytes().size(), kMaxTokenizerBytes);
  }
  Result<text::TokenizerSpec> spec = text::ParseTokenizerJson(
      {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  if (!spec) {
    return spec.error().Wrap(path);
  }
  const std::string config = folder + "/tokenizer_config.json";
  if (std::filesystem::exists(config, ignored)) {
    KVIK_TRY(ApplyTokenizerConfig(config, *spec));
  }
  return spec;
}

}  // namespace

Result<text::TokenizerSpec> ReadTokenizerSpec(const ModelSource& source) {
  KVIK_ASSIGN(text::TokenizerSpec spec, source.gguf() != nullptr ? SpecFromMetadata(*source.gguf())
                                                                 : SpecFromFolder(source.path()));
  if (spec.pieces.size() > static_cast<size_t>(source.config().vocab_size)) {
    return Err(ErrorCode::kCorrupt,
               "%s: the tokenizer has %zu tokens, the embedding table %d rows; the files do not "
               "belong together",
               source.path().c_str(), spec.pieces.size(), source.config().vocab_size);
  }
  for (const TokenId token : source.config().eos_tokens) {
    if (static_cast<size_t>(token) < spec.pieces.size()) {
      spec.more_end_ids.push_back(token);
    }
  }
  return spec;
}

Result<std::unique_ptr<text::Tokenizer>> LoadTokenizer(const ModelSource& source) {
  KVIK_ASSIGN(text::TokenizerSpec spec, ReadTokenizerSpec(source));
  Result<std::unique_ptr<text::Tokenizer>> tokenizer = text::Tokenizer::Create(std::move(spec));
  return tokenizer ? std::move(tokenizer) : tokenizer.error().Wrap(source.path());
}

}  // namespace kvik::model
