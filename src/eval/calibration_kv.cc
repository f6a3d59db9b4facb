// SPDX-License-Identifier: Apache-2.0
#include "eval/calibration_kv.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/rng.h"
#include "eval/kv_rows.h"
#include "model/weights.h"

namespace kvik::eval {
namespace {

using text::JinjaDict;
using text::JinjaValue;

constexpr int64_t kNow = 1'767'225'600;  // of templates that write the date: 2026-01-01
constexpr int32_t kFrameTokens = 64;     // what a template puts around a message, about
constexpr size_t kTokensPerPieceAtLeast = 64;

std::optional<std::string> Spelled(const text::Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::optional<std::string>(tokenizer.Spelling(*id)) : std::nullopt;
}

Result<std::vector<TokenId>> RenderMessage(std::string_view message,
                                           const text::Tokenizer& tokenizer,
                                           const text::ChatTemplate* chat_template) {
  JinjaDict dict;
  dict.Set("role", JinjaValue::String("user"));
  dict.Set("content", JinjaValue::String(std::string(message)));
  text::ChatInput input;
  input.messages = JinjaValue::List({JinjaValue::Dict(std::move(dict))});
  input.bos_token = Spelled(tokenizer, tokenizer.bos_id());
  input.eos_token = Spelled(tokenizer, tokenizer.eos_id());
  input.now_s = kNow;
  const text::ChatTemplate& used =
      chat_template != nullptr ? *chat_template : text::ChatTemplate::ChatMl();
  const Result<std::string> rendered = used.Render(input);
  if (!rendered) {
    return rendered.error().Wrap("chat template");
  }
  return tokenizer.Encode(*rendered,
                          {.parse_special = true, .add_special = chat_template == nullptr});
}

// Runs of whole lines of about `budget` tokens.
std::vector<std::string_view> CutAtLines(std::string_view text, size_t budget,
                                         const text::Tokenizer& tokenizer) {
  std::vector<std::string_view> pieces;
  size_t piece_begin = 0;
  size_t piece_tokens = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t newline = text.find('\n', at);
    const size_t end = newline == std::string_view::npos ? text.size() : newline + 1;
    const size_t line_tokens = tokenizer.Encode(text.substr(at, end - at)).size();
    if (piece_tokens > 0 && piece_tokens + line_tokens > budget) {
      pieces.push_back(text.substr(piece_begin, at - piece_begin));
      piece_begin = at;
      piece_tokens = 0;
    }
    piece_tokens += line_tokens;
    at = end;
  }
  if (piece_tokens >= std::min(budget, kTokensPerPieceAtLeast)) {
    pieces.push_back(text.substr(piece_begin));
  }
  return pieces;
}

// Keeps the queries of the chosen positions of one sequence.
class QueryKeeper final : public model::ForwardObserver {
 public:
  QueryKeeper(CalibrationSequence& sequence, size_t row_values)
      : sequence_(sequence), row_values_(row_values) {}
  void set_first_position(int32_t first) { first_ = first; }
  void OnQueries(int32_t layer, std::span<const float> queries) override {
    const auto rows = static_cast<int32_t>(queries.size() / row_values_);
    std::vector<float>& kept = sequence_.queries[static_cast<size_t>(layer)];
    for (const int32_t position : sequence_.query_positions) {
      if (position >= first_ && position < first_ + rows) {
        const auto row =
            queries.subspan(static_cast<size_t>(position - first_) * row_values_, row_values_);
        kept.insert(kept.end(), row.begin(), row.end());
      }
    }
  }

 private:
  CalibrationSequence& sequence_;
  size_t row_values_;
  int32_t first_ = 0;
};

// `wanted` of [0, count), ascending, one of each of `wanted` equal parts.
std::vector<int32_t> DrawPositions(int32_t count, int32_t wanted, Rng rng) {
  const int32_t n = std::min(count, wanted);
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < n; ++i) {
    const auto first = static_cast<int32_t>(int64_t{i} * count / n);
    const auto end = static_cast<int32_t>((int64_t{i} + 1) * count / n);
    positions.push_back(static_cast<int32_t>(rng.Range(first, end - 1)));
  }
  return positions;
}

// [kv_heads, head_dim, head_dim] of a layer.
std::vector<float> OutputMetric(const model::ModelConfig& config,
                                const model::WeightTensor& output) {
  const std::vector<float> weight = model::DequantizeWeight(output);  // [hidden, q_size]
  const auto head_dim = static_cast<size_t>(config.head_dim);
  const auto columns = static_cast<size_t>(config.q_size());
  const size_t rows = weight.size() / columns;
  const auto group = static_cast<size_t>(config.num_heads / config.num_kv_heads);
  std::vector<float> metric;
  std::vector<double> sums(head_dim * head_dim);
  for (size_t head = 0; head < static_cast<size_t>(config.num_kv_heads); ++head) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t member = 0; member < group; ++member) {
        const float* const w = weight.data() + row * columns + (head * group + member) * head_dim;
        for (size_t i = 0; i < head_dim; ++i) {
          for (size_t j = 0; j < head_dim; ++j) {
            sums[i * head_dim + j] += static_cast<double>(w[i] * w[j]);
          }
        }
      }
    }
    for (const double sum : sums) {
      metric.push_back(static_cast<float>(sum / static_cast<double>(group)));
    }
  }
  return metric;
}

}  // namespace

int64_t CalibrationKv::num_tokens() const {
  int64_t total = 0;
  for (const CalibrationSequence& sequence : sequences) {
    total += sequence.num_tokens;
  }
  return total;
}

Result<CalibrationPieces> CutCalibrationTexts(std::span<const CalibrationTextInput> texts,
                                              const CalibrationKvOptions& options,
                                              const text::Tokenizer& tokenizer,
                                              const text::ChatTemplate* chat_template) {
  struct Piece {
    size_t text = 0;
    std::string_view content;
  };
  std::vector<Piece> pieces;
  const auto budget = static_cast<size_t>(std::max(options.sequence_tokens - kFrameTokens, 1));
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<std::string_view> cut = CutAtLines(texts[i].text, budget, tokenizer);
    if (cut.empty()) {
      return Err(ErrorCode::kInvalidInput, "%s: too short to calibrate with",
                 texts[i].name.c_str());
    }
    for (const std::string_view content : cut) {
      pieces.push_back({i, content});
    }
  }
  CalibrationPieces result;
  result.tokens_of_text.resize(texts.size());
  const size_t wanted = std::min(pieces.size(), static_cast<size_t>(options.max_sequences));
  for (size_t i = 0; i < wanted; ++i) {
    const Piece& piece = pieces[i * pieces.size() / wanted];
    KVIK_ASSIGN(std::vector<TokenId> tokens,
                RenderMessage(piece.content, tokenizer, chat_template));
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(options.sequence_tokens)));
    result.tokens_of_text[piece.text] += static_cast<int64_t>(tokens.size());
    result.pieces.push_back(std::move(tokens));
  }
  return result;
}

Result<CalibrationKv> ComputeCalibrationKv(model::Model& model, const model::ModelSource& source,
                                           const codec::ModelFacts& facts,
                                           std::span<const std::vector<TokenId>> pieces,
                                           const CalibrationKvOptions& options,
                                           const std::function<void(int64_t tokens)>& on_tokens) {
  const model::ModelConfig& config = model.config();
  const kv::KvGeometry& geometry = model.kv_geometry();
  if (geometry.dtype != kv::KvDtype::kBf16) {
    return Err(ErrorCode::kUnsupported, "calibration needs KV stored as bf16");
  }
  CalibrationKv result;
  result.facts = facts;
  result.num_q_heads = config.num_heads;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    result.output_metric.push_back(OutputMetric(
        config, source.Weight("blk." + std::to_string(layer) + ".attn_output.weight")));
  }

  size_t longest = 0;
  for (const std::vector<TokenId>& piece : pieces) {
    longest = std::max(longest, piece.size());
  }
  const auto block = static_cast<size_t>(geometry.block_size_tokens);
  std::vector<BlockId> table((longest + block - 1) / block);
  std::iota(table.begin(), table.end(), 0);
  KVIK_ASSIGN(AlignedBuffer arena,
              AlignedBuffer::Create(table.size() * geometry.bytes_per_block()));
  const std::span<std::byte> bytes(arena.data(), arena.size_bytes());
  const auto chunk = static_cast<size_t>(model.options().max_batch_rows);
  model::StepBatch batch;
  int64_t done = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::vector<TokenId>& piece = pieces[i];
    CalibrationSequence sequence;
    sequence.tokens = piece;
    sequence.num_tokens = static_cast<int32_t>(piece.size());
    sequence.query_positions =
        DrawPositions(sequence.num_tokens, options.queries_per_sequence, Rng(options.seed, i));
    sequence.queries.resize(static_cast<size_t>(config.num_layers));
    QueryKeeper keeper(sequence, static_cast<size_t>(config.q_size()));
    for (size_t pos = 0; pos < piece.size(); pos += chunk) {
      const size_t count = std::min(chunk, piece.size() - pos);
      batch.Clear();
      batch.Add(std::span(piece).subspan(pos, count), static_cast<int32_t>(pos), table, false);
      keeper.set_first_position(static_cast<int32_t>(pos));
      (void)model.Forward(batch, bytes, &keeper);
      done += static_cast<int64_t>(count);
      if (on_tokens) {
        on_tokens(done);
      }
    }
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
        std::vector<Bf16>& rows =
            sequence.rows.emplace_back(NumRowValues(geometry, sequence.num_tokens));
        ReadRows(geometry, bytes,
                 {.block_table = table,
                  .layer = layer,
                  .part = part,
                  .first_pos = 0,
                  .num_tokens = sequence.num_tokens},
                 rows);
      }
    }
    result.sequences.push_back(std::move(sequence));
  }
  return result;
}

}  // namespace kvik::eval
