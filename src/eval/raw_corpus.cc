// SPDX-License-Identifier: Apache-2.0
#include "eval/raw_corpus.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/sha256.h"
#include "eval/kv_rows.h"
#include "eval/logits.h"

namespace kvik::eval {
namespace {

constexpr int kFormatVersion = 1;
// Prompts are answered together while their KV is no more than this.
constexpr uint64_t kBatchBytes = uint64_t{1} << 30;
constexpr size_t kMaxBatchPrompts = 16;
// Kept free on the disk, whatever the limit says.
constexpr uint64_t kSpareDiskBytes = uint64_t{1} << 30;

uint64_t FolderBytes(const std::string& folder) {
  uint64_t total = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;  // another process may tidy up
    if (it->is_regular_file(gone)) {
      const uintmax_t size = it->file_size(gone);
      total += gone ? 0 : size;
    }
  }
  return total;
}

Sha256Digest HashTokens(const std::string& address, std::span<const TokenId> tokens,
                        std::span<const TokenId> reference) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(address)));
  const auto count = static_cast<uint64_t>(tokens.size());
  hash.Update(std::as_bytes(std::span(&count, 1)));
  hash.Update(std::as_bytes(tokens));
  hash.Update(std::as_bytes(reference));
  return hash.Finish();
}

// [0, count) at `wanted` places, evenly.
std::vector<int32_t> Spread(int32_t count, int32_t wanted) {
  std::vector<int32_t> places;
  const int32_t n = std::min(count, wanted);
  for (int32_t i = 0; i < n; ++i) {
    places.push_back(static_cast<int32_t>((2 * int64_t{i} + 1) * count / (2 * n)));
  }
  return places;
}

// Keeps the queries of some positions.
class QueryRecorder final : public model::ForwardObserver {
 public:
  QueryRecorder(RawPrompt& prompt, int32_t first_row) : prompt_(prompt), first_row_(first_row) {}
  void OnQueries(int32_t layer, std::span<const float> queries) override {
    const auto row = static_cast<size_t>(prompt_.shape().num_q_heads) *
                     static_cast<size_t>(prompt_.shape().head_dim);
    const auto rows = static_cast<int32_t>(queries.size() / row);
    const std::span<float> out = prompt_.mutable_queries(layer);
    const std::span<const int32_t> positions = prompt_.query_positions();
    for (size_t i = 0; i < positions.size(); ++i) {
      const int32_t at = positions[i] - first_row_;
      if (at >= 0 && at < rows) {
        std::copy_n(queries.data() + static_cast<size_t>(at) * row, row, out.data() + i * row);
      }
    }
  }

 private:
  RawPrompt& prompt_;
  int32_t first_row_;
};

}  // namespace

// A prompt that is asked for, and what became of it.
struct RawCorpus::Wanted {
  EvalPrompt prompt;
  uint64_t key = 0;
  std::string path;             // empty: nothing is kept
  std::vector<BlockId> blocks;  // while it is computed
  std::vector<TokenId> answer;  // greedy
  std::optional<RawPrompt> result;
};

RawCorpus::RawCorpus(model::Model& model, const text::Tokenizer& tokenizer,
                     const CellPrompts& prompts, const RawCorpusOptions& options)
    : model_(model), tokenizer_(tokenizer), prompts_(prompts), options_(options) {
  address_ = "raw prompt " + std::to_string(kFormatVersion) + "\n" + model.numerics_tag() + "\n" +
             std::to_string(options.continuation_tokens) + " tokens, queries at " +
             std::to_string(options.query_positions) + "\n";
  for (const TokenId id : tokenizer.end_ids()) {
    address_ += std::to_string(id) + " ";
  }
}

Result<std::unique_ptr<RawCorpus>> RawCorpus::Open(model::Model& model,
                                                   const text::Tokenizer& tokenizer,
                                                   const CellPrompts& prompts,
                                                   const RawCorpusOptions& options) {
  if (model.kv_geometry().dtype != kv::KvDtype::kBf16) {
    return Err(ErrorCode::kUnsupported,
               "compression is defined for KV stored as bf16; use --kv-cache-dtype bf16");
  }
  if (options.continuation_tokens < 1 || options.query_positions < 0) {
    return Err(ErrorCode::kInvalidInput, "%d tokens of continuation, %d positions with queries",
               options.continuation_tokens, options.query_positions);
  }
  auto corpus = std::unique_ptr<RawCorpus>(new RawCorpus(model, tokenizer, prompts, options));
  if (!options.folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.folder, error);
    if (error) {
      return Err(ErrorCode::kUnavailable, "%s: cannot make the folder: %s", options.folder.c_str(),
                 error.message().c_str());
    }
    corpus->folder_bytes_ = FolderBytes(options.folder);
  }
  return corpus;
}

size_t RawCorpus::batch_prompts() const {
  const int32_t tokens =
      (prompts_.cell().target_tokens > 0 ? prompts_.cell().target_tokens : 8192) +
      options_.continuation_tokens;
  const uint64_t bytes = static_cast<uint64_t>(tokens) * model_.kv_geometry().bytes_per_token();
  const auto rows = static_cast<uint64_t>(
      std::min(model_.options().max_logit_rows, model_.options().max_batch_rows));
  return static_cast<size_t>(
      std::clamp<uint64_t>(kBatchBytes / bytes, 1, std::min<uint64_t>(kMaxBatchPrompts, rows)));
}

Result<std::optional<RawCorpus::Wanted>> RawCorpus::Want(size_t candidate) const {
  Result<std::optional<EvalPrompt>> built = prompts_.Build(candidate);
  if (!built) {
    return built.error();
  }
  const auto limit = static_cast<size_t>(model_.options().max_context_tokens);
  const auto room = static_cast<size_t>(options_.continuation_tokens);
  if (!built->has_value() || (*built)->tokens.empty() || (*built)->tokens.size() + room > limit) {
    return std::optional<Wanted>();
  }
  Wanted wanted;
  wanted.prompt = std::move(**built);
  std::vector<TokenId>& reference = wanted.prompt.reference;
  reference.resize(std::min(reference.size(), room + 1));
  const Sha256Digest digest = HashTokens(address_, wanted.prompt.tokens, wanted.prompt.reference);
  std::memcpy(&wanted.key, digest.data(), sizeof wanted.key);
  if (!options_.folder.empty()) {
    // A few hundred folders instead of one with everything.
    const std::string name = ToHex(digest);
    wanted.path = options_.folder + "/" + name.substr(0, 2) + "/" + name.substr(2, 30) + ".kvraw";
  }
  return std::optional<Wanted>(std::move(wanted));
}

Result<std::optional<RawPromptInfo>> RawCorpus::Info(size_t candidate) const {
  KVIK_ASSIGN(const std::optional<Wanted> wanted, Want(candidate));
  if (!wanted) {
    return std::optional<RawPromptInfo>();
  }
  std::error_code error;
  return std::optional<RawPromptInfo>(RawPromptInfo{
      .key = wanted->key,
      .num_tokens = static_cast<int32_t>(wanted->prompt.tokens.size()),
      .on_disk = !wanted->path.empty() && std::filesystem::exists(wanted->path, error)});
}

std::optional<RawPrompt> RawCorpus::Find(const Wanted& wanted) {
  if (wanted.path.empty()) {
    return std::nullopt;
  }
  Result<RawPrompt> found = RawPrompt::Load(wanted.path, wanted.key);
  if (!found) {
    counts_.damaged += found.error().code == ErrorCode::kNotFound ? 0 : 1;
    return std::nullopt;
  }
  const model::ModelConfig& config = model_.config();
  const RawShape& shape = found->shape();
  const auto same = [](std::span<const TokenId> a, const std::vector<TokenId>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  const auto in_vocabulary = [&](std::span<const TokenId> tokens) {
    return std::all_of(tokens.begin(), tokens.end(),
                       [&](TokenId id) { return id >= 0 && id < config.vocab_size; });
  };
  if (shape.num_layers != config.num_layers || shape.num_kv_heads != config.num_kv_heads ||
      shape.num_q_heads != config.num_heads || shape.head_dim != config.head_dim ||
      shape.num_continuation > options_.continuation_tokens + 1 ||
      !same(found->tokens(), wanted.prompt.tokens) ||
      !same(found->reference(), wanted.prompt.reference) || !in_vocabulary(found->continuation())) {
    ++counts_.damaged;
    return std::nullopt;
  }
  ++counts_.loaded;
  return std::move(*found);
}

Result<std::vector<std::optional<RawPrompt>>> RawCorpus::Get(std::span<const size_t> candidates) {
  std::vector<std::optional<Wanted>> wanted;
  std::vector<Wanted*> missing;
  wanted.reserve(candidates.size());  // pointers into it are kept
  for (const size_t candidate : candidates) {
    KVIK_ASSIGN(std::optional<Wanted> one, Want(candidate));
    wanted.push_back(std::move(one));
    if (wanted.back()) {
      wanted.back()->result = Find(*wanted.back());
      if (!wanted.back()->result) {
        missing.push_back(&*wanted.back());
      }
    }
  }
  for (size_t first = 0; first < missing.size(); first += batch_prompts()) {
    const size_t count = std::min(batch_prompts(), missing.size() - first);
    KVIK_TRY(Compute(std::span(missing).subspan(first, count)));
  }
  std::vector<std::optional<RawPrompt>> results;
  for (std::optional<Wanted>& one : wanted) {
    results.push_back(one ? std::move(one->result) : std::nullopt);
  }
  return results;
}

Result<void> RawCorpus::Compute(std::span<Wanted*> batch) {
  KVIK_TRY(Prefill(batch));
  Answer(batch);
  for (Wanted* wanted : batch) {
    KVIK_ASSIGN(RawPrompt prompt, Collect(*wanted));
    Keep(*wanted, prompt);
    wanted->result = std::move(prompt);
    ++counts_.computed;
  }
  return {};
}

Result<void> RawCorpus::Prefill(std::span<Wanted*> batch) {
  const kv::KvGeometry& geometry = model_.kv_geometry();
  const auto block_size = static_cast<size_t>(geometry.block_size_tokens);
  BlockId next = 0;
  for (Wanted* wanted : batch) {
    const size_t tokens =
        wanted->prompt.tokens.size() + static_cast<size_t>(options_.continuation_tokens);
    wanted->blocks.resize((tokens + block_size - 1) / block_size);
    std::iota(wanted->blocks.begin(), wanted->blocks.end(), next);
    next += static_cast<BlockId>(wanted->blocks.size());
  }
  const size_t arena_bytes = static_cast<size_t>(next) * geometry.bytes_per_block();
  if (arena_.size_bytes() < arena_bytes) {
    arena_ = AlignedBuffer();  // or both would be there at once
    KVIK_ASSIGN(arena_, AlignedBuffer::Create(arena_bytes));
  }
  const auto chunk = static_cast<size_t>(model_.options().max_batch_rows);
  for (Wanted* wanted : batch) {
    const std::span<const TokenId> tokens = wanted->prompt.tokens;
    for (size_t pos = 0; pos < tokens.size(); pos += chunk) {
      const size_t count = std::min(chunk, tokens.size() - pos);
      const bool last = pos + count == tokens.size();
      step_.Clear();
      step_.Add(tokens.subspan(pos, count), static_cast<int32_t>(pos), wanted->blocks, last);
      const model::LogitsView logits = model_.Forward(step_, {arena_.data(), arena_.size_bytes()});
      if (last) {
        wanted->answer = {std::max(0, Argmax(logits.Row(0)))};
      }
      counts_.computed_tokens += static_cast<int64_t>(count);
      if (on_computed) {
        on_computed(static_cast<int64_t>(count));
      }
    }
  }
  return {};
}

// All prompts of the batch a token at a time, until each has ended.
void RawCorpus::Answer(std::span<Wanted*> batch) {
  std::vector<Wanted*> active(batch.begin(), batch.end());
  while (true) {
    std::erase_if(active, [&](const Wanted* wanted) {
      return tokenizer_.IsEnd(wanted->answer.back()) ||
             wanted->answer.size() > static_cast<size_t>(options_.continuation_tokens);
    });
    if (active.empty()) {
      return;
    }
    step_.Clear();
    for (const Wanted* wanted : active) {
      const size_t pos = wanted->prompt.tokens.size() + wanted->answer.size() - 1;
      step_.Add(std::span(wanted->answer).last(1), static_cast<int32_t>(pos), wanted->blocks, true);
    }
    const model::LogitsView logits = model_.Forward(step_, {arena_.data(), arena_.size_bytes()});
    for (size_t i = 0; i < active.size(); ++i) {
      active[i]->answer.push_back(std::max(0, Argmax(logits.Row(static_cast<int32_t>(i)))));
    }
    counts_.computed_tokens += static_cast<int64_t>(active.size());
    if (on_computed) {
      on_computed(static_cast<int64_t>(active.size()));
    }
  }
}

// The queries come from a second look at the answer, which leaves its KV as it was.
Result<RawPrompt> RawCorpus::Collect(const Wanted& wanted) {
  const model::ModelConfig& config = model_.config();
  const auto judged = static_cast<int32_t>(wanted.answer.size()) - 1;
  const std::vector<int32_t> places = Spread(judged, options_.query_positions);
  KVIK_ASSIGN(
      RawPrompt prompt,
      RawPrompt::Create({.item = static_cast<int32_t>(wanted.prompt.item),
                         .num_layers = config.num_layers,
                         .num_kv_heads = config.num_kv_heads,
                         .num_q_heads = config.num_heads,
                         .head_dim = config.head_dim,
                         .num_tokens = static_cast<int32_t>(wanted.prompt.tokens.size()),
                         .num_continuation = static_cast<int32_t>(wanted.answer.size()),
                         .num_reference = static_cast<int32_t>(wanted.prompt.reference.size()),
                         .num_queries = static_cast<int32_t>(places.size())}));
  std::copy(wanted.prompt.tokens.begin(), wanted.prompt.tokens.end(),
            prompt.mutable_tokens().begin());
  std::copy(wanted.answer.begin(), wanted.answer.end(), prompt.mutable_continuation().begin());
  std::copy(wanted.prompt.reference.begin(), wanted.prompt.reference.end(),
            prompt.mutable_reference().begin());
  std::copy(places.begin(), places.end(), prompt.mutable_query_positions().begin());
  const std::span<std::byte> arena(arena_.data(), arena_.size_bytes());
  const int32_t chunk = model_.options().max_batch_rows;
  const int32_t rows = places.empty() ? 0 : places.back() + 1;
  for (int32_t row = 0; row < rows; row += chunk) {
    step_.Clear();
    const auto count = static_cast<size_t>(std::min(chunk, rows - row));
    step_.Add(std::span(wanted.answer).subspan(static_cast<size_t>(row), count),
              prompt.shape().num_tokens + row, wanted.blocks, false);
    QueryRecorder recorder(prompt, row);
    (void)model_.Forward(step_, arena, &recorder);
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
      ReadRows(model_.kv_geometry(), arena,
               {.block_table = wanted.blocks,
                .layer = layer,
                .part = part,
                .first_pos = 0,
                .num_tokens = prompt.shape().num_tokens},
               prompt.mutable_rows(layer, part));
    }
  }
  return prompt;
}

void RawCorpus::Keep(const Wanted& wanted, RawPrompt& prompt) {
  if (wanted.path.empty() || folder_bytes_ + prompt.size_bytes() > options_.max_folder_bytes) {
    return;
  }
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(wanted.path).parent_path();
  std::filesystem::create_directories(parent, error);
  const std::filesystem::space_info disk = std::filesystem::space(parent, error);
  if (error || disk.available < prompt.size_bytes() + kSpareDiskBytes) {
    return;
  }
  if (prompt.Save(wanted.path, wanted.key)) {
    folder_bytes_ += prompt.size_bytes();
    ++counts_.kept;
  }
}

}  // namespace kvik::eval
