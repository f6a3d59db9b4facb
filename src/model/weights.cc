// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <xxhash.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "model/rope.h"
#include "tensor/weight_format.h"

namespace kvik::model {
namespace {

tensor::WeightFormat FormatOf(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return tensor::WeightFormat::kF32;
    case GgmlType::kF16:
      return tensor::WeightFormat::kF16;
    case GgmlType::kBf16:
      return tensor::WeightFormat::kBf16;
    case GgmlType::kQ8_0:
      return tensor::WeightFormat::kQ8_0;
    case GgmlType::kQ4_0:
      return tensor::WeightFormat::kQ4_0;
    case GgmlType::kQ4_1:
      return tensor::WeightFormat::kQ4_1;
    case GgmlType::kQ5_0:
      return tensor::WeightFormat::kQ5_0;
    case GgmlType::kQ5_1:
      return tensor::WeightFormat::kQ5_1;
    case GgmlType::kQ4_K:
      return tensor::WeightFormat::kQ4_K;
    case GgmlType::kQ5_K:
      return tensor::WeightFormat::kQ5_K;
    case GgmlType::kQ6_K:
      break;
  }
  return tensor::WeightFormat::kQ6_K;
}

// File index of every internal index of an interleaved rotary axis of `size`; empty when the file
// is in internal order already.
std::vector<uint32_t> RotaryOrder(size_t size, int32_t interleaved_head_dim) {
  std::vector<uint32_t> order;
  if (interleaved_head_dim == 0) {
    return order;
  }
  const auto head_dim = static_cast<size_t>(interleaved_head_dim);
  const size_t half = head_dim / 2;
  order.resize(size);
  for (size_t i = 0; i < size; ++i) {
    const size_t in_head = i % head_dim;
    order[i] = static_cast<uint32_t>(i - in_head +
                                     (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1));
  }
  return order;
}

Result<tensor::PackedMatrix> PackMatrix(const ModelSource& source, const std::string& name,
                                        ComputeType compute, ThreadPool& pool,
                                        HugePageArena& arena) {
  const WeightTensor& weight = source.Weight(name);
  const auto rows = static_cast<size_t>(weight.rows);
  const std::vector<uint32_t> order = RotaryOrder(rows, weight.interleaved_head_dim);
  tensor::WeightView view;
  view.format = FormatOf(weight.type);
  view.rows = rows;
  view.cols = static_cast<size_t>(weight.cols);
  view.data = weight.data;
  view.row_order = order;
  Result<tensor::PackedMatrix> packed = tensor::PackedMatrix::Pack(view, compute, pool, arena);
  return packed ? std::move(packed)
                : packed.error().Wrap(source.path() + ": tensor '" + name + "'");
}

std::vector<float> LoadVector(const ModelSource& source, const std::string& name) {
  return DequantizeWeight(source.Weight(name));
}

Result<LayerWeights> LoadLayer(const ModelSource& source, int32_t layer, ComputeType compute,
                               ThreadPool& pool, HugePageArena& arena) {
  const ModelConfig& config = source.config();
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const auto matrix = [&](const char* name) {
    return PackMatrix(source, prefix + name, compute, pool, arena);
  };
  const auto vector = [&](const char* name) { return LoadVector(source, prefix + name); };
  LayerWeights out;
  out.attn_norm = vector("attn_norm.weight");
  KVIK_ASSIGN(out.q, matrix("attn_q.weight"));
  KVIK_ASSIGN(out.k, matrix("attn_k.weight"));
  KVIK_ASSIGN(out.v, matrix("attn_v.weight"));
  if (config.qkv_bias) {
    out.q_bias = vector("attn_q.bias");
    out.k_bias = vector("attn_k.bias");
    out.v_bias = vector("attn_v.bias");
  }
  if (config.qk_norm) {
    out.q_norm = vector("attn_q_norm.weight");
    out.k_norm = vector("attn_k_norm.weight");
  }
  KVIK_ASSIGN(out.o, matrix("attn_output.weight"));
  if (config.output_bias) {
    out.o_bias = vector("attn_output.bias");
  }
  out.ffn_norm = vector("ffn_norm.weight");
  KVIK_ASSIGN(out.gate, matrix("ffn_gate.weight"));
  KVIK_ASSIGN(out.up, matrix("ffn_up.weight"));
  KVIK_ASSIGN(out.down, matrix("ffn_down.weight"));
  return out;
}

// XXH3 with the length of every piece, so that pieces cannot trade bytes.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    KVIK_CHECK(state_ != nullptr);
    XXH3_128bits_reset(state_.get());
  }
  void Bytes(const void* data, size_t size) {
    const uint64_t length = size;
    XXH3_128bits_update(state_.get(), &length, sizeof(length));
    XXH3_128bits_update(state_.get(), data, size);
  }
  template <typename T>
  void Number(T value) {
    Bytes(&value, sizeof(value));
  }
  // A piece of a longer field whose length was given before.
  void Raw(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  [[nodiscard]] XXH128_hash_t Digest() const { return XXH3_128bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

XXH128_hash_t HashWeight(const std::string& name, const WeightTensor& weight) {
  Hasher hasher;
  hasher.Bytes(name.data(), name.size());
  hasher.Number(static_cast<uint32_t>(weight.type));
  hasher.Number(weight.rows);
  hasher.Number(weight.cols);
  // A vector's values are what is permuted, a matrix's rows.
  const bool vector = weight.rows == 1;
  const auto items = static_cast<size_t>(vector ? weight.cols : weight.rows);
  const std::vector<uint32_t> order = RotaryOrder(items, weight.interleaved_head_dim);
  if (order.empty()) {
    hasher.Raw(weight.data);
    return hasher.Digest();
  }
  const size_t item_bytes = weight.data.size() / items;
  for (const uint32_t at : order) {
    hasher.Raw(weight.data.subspan(at * item_bytes, item_bytes));
  }
  return hasher.Digest();
}

void HashConfig(const ModelConfig& config, Hasher& hasher) {
  hasher.Number(config.num_heads);
  hasher.Number(config.num_kv_heads);
  hasher.Number(config.head_dim);
  hasher.Number(config.rms_norm_eps);
  hasher.Number(config.sliding_window_tokens);
  hasher.Number(config.sliding_window_tokens > 0 ? config.sliding_window_first_layer : 0);
  const RopeTable rope(config.rope, config.head_dim);
  hasher.Bytes(rope.frequencies().data(), rope.frequencies().size_bytes());
  hasher.Number(rope.scale());
}

}  // namespace

size_t Weights::size_bytes() const {
  size_t total = embedding.size_bytes() + head.size_bytes() + output_norm.size() * sizeof(float);
  for (const LayerWeights& layer : layers) {
    for (const tensor::PackedMatrix* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      total += matrix->size_bytes();
    }
    for (const std::vector<float>* vector :
         {&layer.attn_norm, &layer.q_bias, &layer.k_bias, &layer.v_bias, &layer.q_norm,
          &layer.k_norm, &layer.o_bias, &layer.ffn_norm}) {
      total += vector->size() * sizeof(float);
    }
  }
  return total;
}

Result<Weights> LoadWeights(const ModelSource& source, ComputeType compute, ThreadPool& pool) {
  Weights out;
  KVIK_ASSIGN(out.embedding,
              PackMatrix(source, "token_embd.weight", ComputeType::kF32, pool, out.arena));
  for (int32_t layer = 0; layer < source.config().num_layers; ++layer) {
    KVIK_ASSIGN(LayerWeights weights, LoadLayer(source, layer, compute, pool, out.arena));
    out.layers.push_back(std::move(weights));
  }
  out.output_norm = LoadVector(source, "output_norm.weight");
  if (!source.config().tied_embeddings) {
    KVIK_ASSIGN(out.head, PackMatrix(source, "output.weight", ComputeType::kF32, pool, out.arena));
  }
  return out;
}

std::string HashWeights(const ModelSource& source, ThreadPool& pool) {
  const std::vector<ExpectedWeight> names = ExpectedWeights(source.config());
  std::vector<XXH128_hash_t> digests(names.size());
  pool.ParallelFor(names.size(), [&](size_t i, int /*thread*/) {
    digests[i] = HashWeight(names[i].name, source.Weight(names[i].name));
  });
  Hasher hasher;
  HashConfig(source.config(), hasher);
  for (const XXH128_hash_t& digest : digests) {
    hasher.Number(digest.high64);
    hasher.Number(digest.low64);
  }
  const XXH128_hash_t all = hasher.Digest();
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(all.high64),
                static_cast<unsigned long long>(all.low64));
  return text;
}

size_t StoredWeightBytes(const ModelSource& source) {
  size_t total = 0;
  for (const auto& [name, weight] : source.weights()) {
    total += weight.data.size();
  }
  return total;
}

std::vector<float> DequantizeWeight(const WeightTensor& weight) {
  const auto rows = static_cast<size_t>(weight.rows);
  const auto cols = static_cast<size_t>(weight.cols);
  const tensor::WeightFormat format = FormatOf(weight.type);
  const size_t row_bytes = weight.data.size() / rows;
  std::vector<float> out(rows * cols);
  if (rows == 1) {
    std::vector<float> in_file(cols);
    tensor::DequantizeRow(format, weight.data.data(), cols, in_file.data());
    const std::vector<uint32_t> order = RotaryOrder(cols, weight.interleaved_head_dim);
    for (size_t i = 0; i < cols; ++i) {
      out[i] = in_file[order.empty() ? i : order[i]];
    }
    return out;
  }
  const std::vector<uint32_t> order = RotaryOrder(rows, weight.interleaved_head_dim);
  for (size_t row = 0; row < rows; ++row) {
    const size_t at = order.empty() ? row : order[row];
    tensor::DequantizeRow(format, weight.data.data() + at * row_bytes, cols,
                          out.data() + row * cols);
  }
  return out;
}

}  // namespace kvik::model
