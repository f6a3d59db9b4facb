// SPDX-License-Identifier: Apache-2.0
// model/weights.h: the packed weights of a model, grouped as the forward pass reads them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/huge_page_arena.h"
#include "base/isa.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "model/model_source.h"
#include "tensor/packed_matrix.h"

namespace kvik::model {

struct LayerWeights {
  std::vector<float> attn_norm;  // [hidden]
  tensor::PackedMatrix q;        // [q_size, hidden], rows in half-split rotary order
  tensor::PackedMatrix k;        // [kv_size, hidden], likewise
  tensor::PackedMatrix v;        // [kv_size, hidden]
  std::vector<float> q_bias;     // [q_size] or empty; rows as q's
  std::vector<float> k_bias;     // [kv_size] or empty
  std::vector<float> v_bias;     // [kv_size] or empty
  std::vector<float> q_norm;     // [head_dim] or empty
  std::vector<float> k_norm;     // [head_dim] or empty
  tensor::PackedMatrix o;        // [hidden, q_size]
  std::vector<float> o_bias;     // [hidden] or empty
  std::vector<float> ffn_norm;   // [hidden]
  tensor::PackedMatrix gate;     // [intermediate, hidden]
  tensor::PackedMatrix up;       // [intermediate, hidden]
  tensor::PackedMatrix down;     // [hidden, intermediate]
};

struct Weights {
  HugePageArena arena;             // of all matrices
  tensor::PackedMatrix embedding;  // [vocab, hidden], for float32 arithmetic
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // [hidden]
  tensor::PackedMatrix head;       // likewise; empty when the embedding serves as one

  [[nodiscard]] const tensor::PackedMatrix& output_head() const {
    return head.n() > 0 ? head : embedding;
  }
  [[nodiscard]] size_t size_bytes() const;
};

// Packs every tensor of `source`, the layers' matrices for `compute`. kExhausted.
Result<Weights> LoadWeights(const ModelSource& source, ComputeType compute, ThreadPool& pool);

// 32 hexadecimal digits over everything that decides what the model computes: every weight (name,
// format, shape, bytes in internal row order), norms' epsilon, rotary frequencies, windows. Equal
// weights hash equally in either container; the same values in another format do not.
std::string HashWeights(const ModelSource& source, ThreadPool& pool);

// Bytes of all weights as they are stored; packed they take about as many.
size_t StoredWeightBytes(const ModelSource& source);

// All values of a weight as float32, [rows, cols], rows in internal order.
std::vector<float> DequantizeWeight(const WeightTensor& weight);

}  // namespace kvik::model
