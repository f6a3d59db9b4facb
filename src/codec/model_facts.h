// SPDX-License-Identifier: Apache-2.0
// codec/model_facts.h: what compression must know of a model: the shape of its KV and how its keys
// are rotated. Kept in a profile library, so frames can be decoded without the model's weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvik::codec {

struct ModelFacts {
  std::string name;  // for people
  // Identity of the KV: frames and profiles of another fingerprint are refused. For a loaded model
  // the first 8 bytes of SHA-256 of its numerics tag.
  uint64_t fingerprint = 0;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  // Radians a position, [head_dim / 2]: channels i and i + head_dim / 2 of a key rotate together.
  // Empty: the model has no rotary positions, and stages that need them are refused.
  std::vector<double> rope_frequencies;
  double rope_scale = 1.0;  // of cosine and sine (yarn's attention factor)

  friend bool operator==(const ModelFacts&, const ModelFacts&) = default;
};

}  // namespace kvik::codec
