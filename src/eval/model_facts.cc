// SPDX-License-Identifier: Apache-2.0
#include "eval/model_facts.h"

#include <span>

#include "base/sha256.h"
#include "model/rope.h"

namespace kvik::eval {

codec::ModelFacts ModelFactsOf(const model::Model& model) {
  const model::ModelConfig& config = model.config();
  const model::RopeTable rope(config.rope, config.head_dim);
  codec::ModelFacts facts;
  facts.name = config.name.empty() ? config.architecture : config.name;
  facts.fingerprint = ShortHash(Sha256Of(std::as_bytes(std::span(model.numerics_tag()))));
  facts.num_layers = config.num_layers;
  facts.num_kv_heads = config.num_kv_heads;
  facts.head_dim = config.head_dim;
  facts.rope_frequencies.assign(rope.frequencies().begin(), rope.frequencies().end());
  facts.rope_scale = rope.scale();
  return facts;
}

}  // namespace kvik::eval
