// SPDX-License-Identifier: Apache-2.0
// eval/transform_chain.h: the first transforms of a pipeline's part, run on real rows: what a stage
// after them gets to see, and what its errors become. Immutable and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/float16.h"
#include "base/isa.h"
#include "base/result.h"
#include "codec/model_facts.h"
#include "codec/pipeline.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/tile.h"
#include "kv/geometry.h"

namespace kvik::eval {

class TransformChain {
 public:
  // Transforms [0, count) of the part. Borrows model and side information. Fails as the stages'
  // makers do.
  static Result<TransformChain> Create(const codec::PartSpec& spec, kv::KvPart part, size_t count,
                                       const codec::ModelFacts& model,
                                       const codec::SideInfo& side_info, Isa isa);

  [[nodiscard]] int32_t channels() const { return channels_; }  // of what comes out
  // Whether keys come out as they were before their rotation.
  [[nodiscard]] bool unrotates() const { return unrotates_; }

  // A tile and what a stage after the chain is told of it.
  struct Output {
    codec::Tile tile;
    std::vector<int32_t> heads;
    std::vector<int32_t> positions;
    int32_t prompt_tokens = 0;
  };
  // `rows` [kv_heads, tokens, head_dim] of one layer at positions [0, tokens). Fails as a transform
  // does.
  Result<void> Run(int32_t layer, std::span<const Bf16> rows, Output& output) const;
  [[nodiscard]] codec::TileContext ContextOf(int32_t layer, const Output& output) const;

  // The error that a unit error of each coefficient becomes in the rows of all heads (before their
  // rotation, if the chain undoes it): [kv_heads * channels, kv_heads * head_dim], an error a row.
  // Nothing where a coefficient has no fixed share in a row (differences between tokens).
  [[nodiscard]] Result<std::optional<std::vector<double>>> ErrorMap(int32_t layer) const;

 private:
  const codec::ModelFacts* model_ = nullptr;
  kv::KvPart part_ = kv::KvPart::kKey;
  Isa isa_ = Isa::kScalar;
  int32_t channels_ = 0;
  bool unrotates_ = false;
  std::vector<std::unique_ptr<codec::Transform>> transforms_;
};

}  // namespace kvik::eval
