// SPDX-License-Identifier: Apache-2.0
// codec/testing/made_kv.h: keys and values made up for tests, and the models they could be of.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "codec/frame.h"
#include "codec/model_facts.h"

namespace kvik::codec::testing {

inline ModelFacts MadeModel(int32_t layers, int32_t kv_heads, int32_t head_dim) {
  ModelFacts model;
  model.name = "made up";
  model.fingerprint = 0x1234567890ABCDEFULL;
  model.num_layers = layers;
  model.num_kv_heads = kv_heads;
  model.head_dim = head_dim;
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    model.rope_frequencies.push_back(std::pow(10000.0, -2.0 * i / head_dim));
  }
  return model;
}

// Standard normal, by Box and Muller.
inline float Normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * rng.Uniform()));
}

// One layer's rows, [kv_heads, num_tokens, head_dim]. Channels differ in spread, as real ones do,
// and a few keys have a large constant part, as those of models with key biases (unless told not
// to).
struct MadeRows {
  std::vector<Bf16> keys;
  std::vector<Bf16> values;
  KvRows rows;

  MadeRows(const ModelFacts& model, int32_t layer, int32_t first_token, int32_t num_tokens,
           uint64_t seed, bool biased = true) {
    Rng rng(seed, static_cast<uint64_t>(layer));
    const auto dim = static_cast<size_t>(model.head_dim);
    const size_t n =
        static_cast<size_t>(model.num_kv_heads) * static_cast<size_t>(num_tokens) * dim;
    keys.resize(n);
    values.resize(n);
    std::vector<float> spread(static_cast<size_t>(model.num_kv_heads) * dim);
    std::vector<float> bias(spread.size());
    for (size_t c = 0; c < spread.size(); ++c) {
      spread[c] = std::exp(0.5F * Normal(rng));
      bias[c] = biased && rng.Below(16) == 0 ? 200.0F * Normal(rng) : 0.0F;
    }
    for (size_t i = 0; i < n; ++i) {
      const size_t head = i / (static_cast<size_t>(num_tokens) * dim);
      const size_t c = head * dim + i % dim;
      keys[i] = ToBf16(bias[c] + spread[c] * Normal(rng));
      values[i] = ToBf16(0.3F * spread[c] * Normal(rng));
    }
    rows.layer = layer;
    rows.first_token = first_token;
    rows.num_tokens = num_tokens;
    rows.prompt_tokens = first_token + num_tokens;
    rows.head_stride = static_cast<size_t>(num_tokens) * dim;
    Point();
  }
  MadeRows(const MadeRows&) = delete;
  MadeRows& operator=(const MadeRows&) = delete;

  void Point() {
    rows.keys = keys.data();
    rows.values = values.data();
  }
};

// Room for what a frame of `rows` decodes to, filled with what must be overwritten.
struct DecodedRows {
  std::vector<Bf16> keys;
  std::vector<Bf16> values;
  KvRowsOut out;

  DecodedRows(const ModelFacts& model, const KvRows& rows)
      : keys(static_cast<size_t>(model.num_kv_heads) * static_cast<size_t>(rows.num_tokens) *
                 static_cast<size_t>(model.head_dim),
             Bf16{0x7FFF}),
        values(keys) {
    out.num_tokens = rows.num_tokens;
    out.num_heads = model.num_kv_heads;
    out.head_stride = static_cast<size_t>(rows.num_tokens) * static_cast<size_t>(model.head_dim);
    out.keys = keys.data();
    out.values = values.data();
  }
  DecodedRows(const DecodedRows&) = delete;
  DecodedRows& operator=(const DecodedRows&) = delete;
};

}  // namespace kvik::codec::testing
