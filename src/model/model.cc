// SPDX-License-Identifier: Apache-2.0
// The forward pass. Between its matrix products the pass is memory-bound row work, so everything
// is computed in place in a few buffers that are sized once: x is the residual stream, `act` holds
// the input of a product in the kernels' form and is shared by all products of one input (q, k, v;
// gate, up). The last layer computes keys and values of every row, but the rest of itself only for
// the rows whose logits are wanted.
#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/plan.h"
#include "base/aligned_buffer.h"
#include "base/memory_info.h"
#include "model/model_source.h"
#include "model/rope.h"
#include "model/weights.h"
#include "tensor/context.h"
#include "tensor/gemm.h"
#include "tensor/ops.h"

namespace kvik::model {
namespace {

// Raise when any operation's bits change: KV computed before is then no longer exact.
constexpr int kNumericsVersion = 1;

const char* ComputeName(ComputeType compute) {
  return compute == ComputeType::kF32 ? "f32" : "bf16";
}
const char* KvDtypeName(kv::KvDtype dtype) { return dtype == kv::KvDtype::kF32 ? "f32" : "bf16"; }

Result<ModelOptions> Complete(ModelOptions options, const ModelSource& source) {
  const ModelConfig& config = source.config();
  if (!options.compute) {
    options.compute = options.isa == Isa::kAvx512Bf16 ? ComputeType::kBf16 : ComputeType::kF32;
  }
  if (!ComputeSupported(options.isa, *options.compute)) {
    return Err(ErrorCode::kUnsupported,
               "%s kernels have no bf16 arithmetic; use --dtype f32 or auto", IsaName(options.isa));
  }
  if (options.max_context_tokens == 0) {
    options.max_context_tokens = config.max_context_tokens;
  }
  if (options.max_context_tokens < 1 || options.max_context_tokens > config.max_context_tokens) {
    return Err(ErrorCode::kInvalidInput,
               "a context of %d tokens is not in [1, %d], the model's own",
               options.max_context_tokens, config.max_context_tokens);
  }
  if (options.block_size_tokens != 16 && options.block_size_tokens != 32 &&
      options.block_size_tokens != 64) {
    return Err(ErrorCode::kInvalidInput, "a block of %d tokens is not 16, 32 or 64",
               options.block_size_tokens);
  }
  constexpr int32_t kMaxRows = 1 << 16;
  if (options.max_batch_rows < 1 || options.max_batch_rows > kMaxRows) {
    return Err(ErrorCode::kInvalidInput, "a batch of %d rows is not in [1, %d]",
               options.max_batch_rows, kMaxRows);
  }
  options.max_logit_rows = std::min(options.max_logit_rows, options.max_batch_rows);
  if (options.max_logit_rows < 1) {
    return Err(ErrorCode::kInvalidInput, "max_logit_rows = %d is not positive",
               options.max_logit_rows);
  }
  return options;
}

// Rows of floats for the largest batch, cut from one allocation.
struct Scratch {
  AlignedBuffer memory;
  std::span<float> x;         // [rows, hidden] residual stream
  std::span<float> normed;    // [rows, hidden]
  std::span<float> q;         // [rows, q_size]
  std::span<float> k;         // [rows, kv_size]
  std::span<float> v;         // [rows, kv_size]
  std::span<float> attended;  // [rows, q_size]
  std::span<float> gate;      // [rows, intermediate]
  std::span<float> up;        // [rows, intermediate]
  std::span<float> branch;    // [rows, hidden] what is added to x
  std::span<float> cosines;   // [rows, head_dim / 2]
  std::span<float> sines;     // [rows, head_dim / 2]
  std::span<float> logits;    // [logit rows, vocab]
};

using Piece = std::pair<std::span<float> Scratch::*, size_t>;  // member, floats

std::vector<Piece> ScratchPieces(const ModelConfig& config, const ModelOptions& options) {
  const auto rows = static_cast<size_t>(options.max_batch_rows);
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto q = static_cast<size_t>(config.q_size());
  const auto kv = static_cast<size_t>(config.kv_size());
  const auto inter = static_cast<size_t>(config.intermediate_size);
  const auto half = static_cast<size_t>(config.head_dim) / 2;
  return {{&Scratch::x, rows * hidden},
          {&Scratch::normed, rows * hidden},
          {&Scratch::q, rows * q},
          {&Scratch::k, rows * kv},
          {&Scratch::v, rows * kv},
          {&Scratch::attended, rows * q},
          {&Scratch::gate, rows * inter},
          {&Scratch::up, rows * inter},
          {&Scratch::branch, rows * hidden},
          {&Scratch::cosines, rows * half},
          {&Scratch::sines, rows * half},
          {&Scratch::logits,
           static_cast<size_t>(options.max_logit_rows) * static_cast<size_t>(config.vocab_size)}};
}

constexpr size_t kAlignFloats = 16;

size_t ScratchFloats(const std::vector<Piece>& pieces) {
  size_t total = 0;
  for (const auto& [member, floats] : pieces) {
    total += (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
  }
  return total;
}

Result<Scratch> AllocateScratch(const ModelConfig& config, const ModelOptions& options) {
  const std::vector<Piece> pieces = ScratchPieces(config, options);
  Scratch scratch;
  KVIK_ASSIGN(scratch.memory, AlignedBuffer::Create(ScratchFloats(pieces) * sizeof(float)));
  scratch.memory.Touch();  // or the first batch of this size would pay for it
  std::span<float> rest = scratch.memory.As<float>();
  for (const auto& [member, floats] : pieces) {
    scratch.*member = rest.first(floats);
    rest = rest.subspan((floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats);
  }
  return scratch;
}

// The kernel would grant the memory and end the process when it is used: ask before.
Result<void> CheckMemory(const ModelSource& source, const ModelOptions& options) {
  const size_t need = StoredWeightBytes(source) +
                      ScratchFloats(ScratchPieces(source.config(), options)) * sizeof(float);
  const std::optional<size_t> available = AvailableMemoryBytes();
  if (available && need > *available) {
    return Err(ErrorCode::kExhausted,
               "%s: needs about %zu MiB of memory, %zu MiB are available; use a smaller model or "
               "free memory",
               source.path().c_str(), need >> 20, *available >> 20);
  }
  return {};
}

kv::KvGeometry GeometryOf(const ModelConfig& config, const ModelOptions& options) {
  return kv::KvGeometry{.num_layers = config.num_layers,
                        .num_kv_heads = config.num_kv_heads,
                        .head_dim = config.head_dim,
                        .block_size_tokens = options.block_size_tokens,
                        .dtype = options.kv_dtype};
}

std::string NumericsTag(const ModelSource& source, const ModelOptions& options, ThreadPool& pool) {
  char text[128];
  std::snprintf(text, sizeof(text), "v%d/%s/%s/kv-%s/%s", kNumericsVersion, IsaName(options.isa),
                ComputeName(*options.compute), KvDtypeName(options.kv_dtype),
                HashWeights(source, pool).c_str());
  return text;
}

}  // namespace

struct Model::Impl {
  ModelConfig config;
  ModelOptions options;
  kv::KvGeometry geometry;
  std::string numerics_tag;
  tensor::Context context;
  tensor::Context head_context;  // float32: see Logits
  RopeTable rope;
  Weights weights;
  // One for layers that see everything, one for layers with a sliding window; null when no layer
  // is of that kind.
  std::unique_ptr<attention::Attention> full_attention;
  std::unique_ptr<attention::Attention> window_attention;
  tensor::PackedActivations act;
  tensor::PackedActivations head_act;
  Scratch scratch;

  // Of the current step.
  attention::AttentionPlan full_plan;
  attention::AttentionPlan window_plan;
  std::vector<attention::MsaSegment> segments;
  const kv::BlockMasks* masks = nullptr;
  std::vector<int32_t> rope_rows;  // 0, 1, 2, ...: the step's angle table has one row per row
  bool branch_pending = false;     // scratch.branch is still to be added to scratch.x

  [[nodiscard]] bool UsesWindow(int32_t layer) const {
    return config.sliding_window_tokens > 0 && layer >= config.sliding_window_first_layer;
  }
  Result<void> CreateAttention();
  void Check(const StepBatch& batch) const;
  void Prepare(const StepBatch& batch);
  void FillRopeTable(const StepBatch& batch);
  void ProjectQkv(const LayerWeights& layer, size_t rows);
  void Attend(int32_t layer, std::span<std::byte> arena, bool with_queries);
  void KeepRows(std::span<const int32_t> kept);
  void FinishLayer(const LayerWeights& layer, size_t rows);
  void AddBranchAndNorm(const tensor::Context& ctx, std::span<const float> weight, size_t rows,
                        tensor::PackedActivations& out);
  LogitsView Logits(size_t rows);

  [[nodiscard]] size_t hidden() const { return static_cast<size_t>(config.hidden_size); }
  [[nodiscard]] size_t q_size() const { return static_cast<size_t>(config.q_size()); }
  [[nodiscard]] size_t kv_size() const { return static_cast<size_t>(config.kv_size()); }
};

Result<void> Model::Impl::CreateAttention() {
  attention::AttentionShape shape;
  shape.num_q_heads = config.num_heads;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim));
  const auto create = [&](int32_t window) {
    shape.sliding_window = window;
    return attention::Attention::Create(options.isa, *options.compute, shape, geometry);
  };
  if (!UsesWindow(0)) {
    KVIK_ASSIGN(full_attention, create(0));
  }
  if (UsesWindow(config.num_layers - 1)) {
    KVIK_ASSIGN(window_attention, create(config.sliding_window_tokens));
  }
  return {};
}

void Model::Impl::Check(const StepBatch& batch) const {
  const int32_t rows = batch.num_rows();
  KVIK_CHECK(rows >= 1 && rows <= options.max_batch_rows, "a batch of %d rows", rows);
  KVIK_CHECK(batch.positions.size() == batch.tokens.size());
  KVIK_CHECK(batch.logit_rows.size() <= static_cast<size_t>(options.max_logit_rows));
  KVIK_CHECK(std::is_sorted(batch.logit_rows.begin(), batch.logit_rows.end()));
  KVIK_CHECK(batch.logit_rows.empty() ||
             (batch.logit_rows.front() >= 0 && batch.logit_rows.back() < rows));
  int32_t next_row = 0;
  for (const Segment& segment : batch.segments) {
    KVIK_CHECK(segment.first_row == next_row && segment.num_tokens >= 1);
    const int32_t end = segment.first_pos + segment.num_tokens;
    KVIK_CHECK(segment.first_pos >= 0 && end <= options.max_context_tokens, "position %d", end - 1);
    KVIK_CHECK(segment.block_table.size() * static_cast<size_t>(options.block_size_tokens) >=
               static_cast<size_t>(end));
    next_row += segment.num_tokens;
  }
  KVIK_CHECK(next_row == rows);
  for (const TokenId token : batch.tokens) {
    KVIK_CHECK(token >= 0 && token < config.vocab_size, "token %d", token);
  }
}

void Model::Impl::Prepare(const StepBatch& batch) {
  segments.clear();
  for (const Segment& segment : batch.segments) {
    segments.push_back(attention::MsaSegment{.first_row = segment.first_row,
                                             .num_tokens = segment.num_tokens,
                                             .first_pos = segment.first_pos,
                                             .block_table = segment.block_table.data()});
  }
  masks = batch.masks;
  const int threads = context.pool().num_threads();
  if (full_attention != nullptr) {
    full_plan.Build(full_attention->shape(), segments, threads);
  }
  if (window_attention != nullptr) {
    window_plan.Build(window_attention->shape(), segments, threads);
  }
  FillRopeTable(batch);
  branch_pending = false;
  tensor::EmbeddingRows(context, weights.embedding, batch.tokens, scratch.x.data(), hidden());
}

void Model::Impl::FillRopeTable(const StepBatch& batch) {
  const auto half = static_cast<size_t>(config.head_dim) / 2;
  constexpr size_t kRowsPerTask = 64;
  const size_t rows = batch.tokens.size();
  context.pool().ParallelFor(
      (rows + kRowsPerTask - 1) / kRowsPerTask, [&](size_t task, int /*thread*/) {
        const size_t end = std::min(rows, (task + 1) * kRowsPerTask);
        for (size_t row = task * kRowsPerTask; row < end; ++row) {
          rope.Angles(batch.positions[row], scratch.cosines.subspan(row * half, half),
                      scratch.sines.subspan(row * half, half));
        }
      });
}

// x += branch, if there is one since the last call; out = norm(x).
void Model::Impl::AddBranchAndNorm(const tensor::Context& ctx, std::span<const float> weight,
                                   size_t rows, tensor::PackedActivations& out) {
  tensor::AddNormPack(ctx, scratch.x.data(), branch_pending ? scratch.branch.data() : nullptr, rows,
                      hidden(), weight.data(), config.rms_norm_eps, scratch.normed.data(), out);
  branch_pending = false;
}

// x -> q, k, v, rotated.
void Model::Impl::ProjectQkv(const LayerWeights& layer, size_t rows) {
  const auto bias = [](const std::vector<float>& values) {
    return values.empty() ? nullptr : values.data();
  };
  AddBranchAndNorm(context, layer.attn_norm, rows, act);
  const tensor::GemmOutput outputs[] = {
      {&layer.q, bias(layer.q_bias), scratch.q.data(), q_size()},
      {&layer.k, bias(layer.k_bias), scratch.k.data(), kv_size()},
      {&layer.v, bias(layer.v_bias), scratch.v.data(), kv_size()}};
  tensor::Gemm(context, act, outputs);
  const auto heads = static_cast<size_t>(config.num_heads);
  const auto kv_heads = static_cast<size_t>(config.num_kv_heads);
  const auto head_dim = static_cast<size_t>(config.head_dim);
  if (!layer.q_norm.empty()) {
    tensor::RmsNorm(context, scratch.q.data(), head_dim, rows * heads, head_dim,
                    layer.q_norm.data(), config.rms_norm_eps, scratch.q.data(), head_dim);
    tensor::RmsNorm(context, scratch.k.data(), head_dim, rows * kv_heads, head_dim,
                    layer.k_norm.data(), config.rms_norm_eps, scratch.k.data(), head_dim);
  }
  const tensor::RopeTable table = {scratch.cosines.data(), scratch.sines.data(), head_dim / 2};
  tensor::ApplyRope(context, scratch.q.data(), q_size(), rows, heads, table, rope_rows.data());
  tensor::ApplyRope(context, scratch.k.data(), kv_size(), rows, kv_heads, table, rope_rows.data());
}

// k, v -> arena; q -> attended.
void Model::Impl::Attend(int32_t layer, std::span<std::byte> arena, bool with_queries) {
  attention::Attention& attention = UsesWindow(layer) ? *window_attention : *full_attention;
  const attention::AttentionPlan& plan = UsesWindow(layer) ? window_plan : full_plan;
  const auto rows = static_cast<size_t>(plan.num_rows());
  attention.WriteKv(plan, layer, scratch.k.first(rows * kv_size()),
                    scratch.v.first(rows * kv_size()), arena, context.pool());
  if (with_queries) {
    attention.Attend(plan, layer, scratch.q.first(rows * q_size()), arena,
                     scratch.attended.first(rows * q_size()), context.pool(), masks);
  }
}

// Moves rows `kept` (ascending) of x and of the attention's output to the front.
void Model::Impl::KeepRows(std::span<const int32_t> kept) {
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto from = static_cast<size_t>(kept[i]);
    if (from != i) {
      std::copy_n(scratch.x.data() + from * hidden(), hidden(), scratch.x.data() + i * hidden());
      std::copy_n(scratch.attended.data() + from * q_size(), q_size(),
                  scratch.attended.data() + i * q_size());
    }
  }
}

// x += o(attended); branch = down(silu(gate(x)) * up(x)).
void Model::Impl::FinishLayer(const LayerWeights& layer, size_t rows) {
  const auto inter = static_cast<size_t>(config.intermediate_size);
  act.Pack(context, scratch.attended.data(), rows, q_size(), q_size());
  const tensor::GemmOutput o[] = {{&layer.o, layer.o_bias.empty() ? nullptr : layer.o_bias.data(),
                                   scratch.branch.data(), hidden()}};
  tensor::Gemm(context, act, o);
  branch_pending = true;
  AddBranchAndNorm(context, layer.ffn_norm, rows, act);
  const tensor::GemmOutput gate_up[] = {{&layer.gate, nullptr, scratch.gate.data(), inter},
                                        {&layer.up, nullptr, scratch.up.data(), inter}};
  tensor::Gemm(context, act, gate_up);
  tensor::SiluMulPack(context, scratch.gate.data(), scratch.up.data(), rows, inter, act);
  const tensor::GemmOutput down[] = {{&layer.down, nullptr, scratch.branch.data(), hidden()}};
  tensor::Gemm(context, act, down);
  branch_pending = true;  // the next norm adds it
}

// The head is always computed in float32: it runs for one row of a request and step, where reading
// its weights is what takes time, and nothing after it could average out the rounding of its
// inputs.
LogitsView Model::Impl::Logits(size_t rows) {
  const auto vocab = static_cast<size_t>(config.vocab_size);
  AddBranchAndNorm(head_context, weights.output_norm, rows, head_act);
  const tensor::GemmOutput head[] = {
      {&weights.output_head(), nullptr, scratch.logits.data(), vocab}};
  tensor::Gemm(head_context, head_act, head);
  return LogitsView{scratch.logits.data(), static_cast<int32_t>(rows), config.vocab_size};
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::Load(const ModelSource& source, const ModelOptions& options,
                                           ThreadPool& pool) {
  const ModelConfig& config = source.config();
  KVIK_ASSIGN(const ModelOptions complete, Complete(options, source));
  KVIK_TRY(CheckMemory(source, complete));
  KVIK_ASSIGN(tensor::Context context,
              tensor::Context::Create(complete.isa, *complete.compute, pool));
  const auto widest = static_cast<size_t>(
      std::max({config.hidden_size, config.q_size(), config.intermediate_size}));
  KVIK_ASSIGN(tensor::PackedActivations act,
              tensor::PackedActivations::Create(
                  *complete.compute, static_cast<size_t>(complete.max_batch_rows), widest));
  KVIK_ASSIGN(tensor::Context head_context,
              tensor::Context::Create(complete.isa, ComputeType::kF32, pool));
  KVIK_ASSIGN(tensor::PackedActivations head_act,
              tensor::PackedActivations::Create(ComputeType::kF32,
                                                static_cast<size_t>(complete.max_logit_rows),
                                                static_cast<size_t>(config.hidden_size)));
  KVIK_ASSIGN(Scratch scratch, AllocateScratch(config, complete));
  KVIK_ASSIGN(Weights weights, LoadWeights(source, *complete.compute, pool));
  const std::string tag = NumericsTag(source, complete, pool);
  auto impl = std::unique_ptr<Impl>(new Impl{.config = config,
                                             .options = complete,
                                             .geometry = GeometryOf(config, complete),
                                             .numerics_tag = tag,
                                             .context = std::move(context),
                                             .head_context = std::move(head_context),
                                             .rope = RopeTable(config.rope, config.head_dim),
                                             .weights = std::move(weights),
                                             .full_attention = nullptr,
                                             .window_attention = nullptr,
                                             .act = std::move(act),
                                             .head_act = std::move(head_act),
                                             .scratch = std::move(scratch),
                                             .full_plan = {},
                                             .window_plan = {},
                                             .segments = {},
                                             .masks = nullptr,
                                             .rope_rows = {},
                                             .branch_pending = false});
  impl->rope_rows.resize(static_cast<size_t>(complete.max_batch_rows));
  std::iota(impl->rope_rows.begin(), impl->rope_rows.end(), 0);
  KVIK_TRY(impl->CreateAttention());
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

const ModelConfig& Model::config() const { return impl_->config; }
const ModelOptions& Model::options() const { return impl_->options; }
const kv::KvGeometry& Model::kv_geometry() const { return impl_->geometry; }
const std::string& Model::numerics_tag() const { return impl_->numerics_tag; }
size_t Model::weight_bytes() const { return impl_->weights.size_bytes(); }
size_t Model::scratch_bytes() const { return impl_->scratch.memory.size_bytes(); }

LogitsView Model::Forward(const StepBatch& batch, std::span<std::byte> kv_arena,
                          ForwardObserver* observer) {
  Impl& m = *impl_;
  m.Check(batch);
  m.Prepare(batch);
  auto rows = static_cast<size_t>(batch.num_rows());
  for (int32_t layer = 0; layer < m.config.num_layers; ++layer) {
    const LayerWeights& weights = m.weights.layers[static_cast<size_t>(layer)];
    const bool last = layer + 1 == m.config.num_layers;
    m.ProjectQkv(weights, rows);
    if (observer != nullptr) {
      observer->OnQueries(layer, m.scratch.q.first(rows * m.q_size()));
    }
    m.Attend(layer, kv_arena, !last || !batch.logit_rows.empty());
    if (last) {
      m.KeepRows(batch.logit_rows);
      rows = batch.logit_rows.size();
    }
    if (rows > 0) {
      m.FinishLayer(weights, rows);
    }
  }
  return rows > 0 ? m.Logits(rows) : LogitsView{nullptr, 0, m.config.vocab_size};
}

}  // namespace kvik::model
