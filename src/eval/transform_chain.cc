// SPDX-License-Identifier: Apache-2.0
#include "eval/transform_chain.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvik::eval {

Result<TransformChain> TransformChain::Create(const codec::PartSpec& spec, kv::KvPart part,
                                              size_t count, const codec::ModelFacts& model,
                                              const codec::SideInfo& side_info, Isa isa) {
  TransformChain chain;
  chain.model_ = &model;
  chain.part_ = part;
  chain.isa_ = isa;
  codec::Transform::Shape shape{1, model.head_dim};
  for (size_t i = 0; i < count; ++i) {
    const codec::StageSpec& stage = spec.transforms[i];
    codec::StageSite site;
    site.model = &model;
    site.side_info = &side_info;
    site.part = part;
    site.channels = shape.channels;
    site.side_key = codec::SideKey(spec, part, i);
    KVIK_ASSIGN(auto transform, stage.module->make_transform(stage.args, site));
    shape = transform->Output(shape);
    chain.unrotates_ = chain.unrotates_ || stage.module->name == "prerope";
    chain.transforms_.push_back(std::move(transform));
  }
  chain.channels_ = shape.channels;
  return chain;
}

codec::TileContext TransformChain::ContextOf(int32_t layer, const Output& output) const {
  codec::TileContext context;
  context.model = model_;
  context.isa = isa_;
  context.layer = layer;
  context.part = part_;
  context.heads = output.heads;
  context.positions = output.positions;
  context.prompt_tokens = output.prompt_tokens;
  return context;
}

Result<void> TransformChain::Run(int32_t layer, std::span<const Bf16> rows, Output& output) const {
  output.heads.resize(static_cast<size_t>(model_->num_kv_heads));
  std::iota(output.heads.begin(), output.heads.end(), 0);
  const auto tokens = static_cast<int32_t>(rows.size() / output.heads.size() /
                                           static_cast<size_t>(model_->head_dim));
  output.positions.resize(static_cast<size_t>(tokens));
  std::iota(output.positions.begin(), output.positions.end(), 0);
  output.prompt_tokens = tokens;
  output.tile.Resize(model_->num_kv_heads, tokens, model_->head_dim);
  std::transform(rows.begin(), rows.end(), output.tile.values.begin(),
                 [](Bf16 value) { return ToFloat(value); });
  std::vector<std::byte> side;
  for (const auto& transform : transforms_) {
    side.clear();
    codec::ByteWriter writer(side);
    KVIK_TRY(transform->Forward(ContextOf(layer, output), output.tile, writer));
    transform->DropPositions(output.positions);
  }
  return {};
}

Result<std::optional<std::vector<double>>> TransformChain::ErrorMap(int32_t layer) const {
  const size_t coefficients =
      static_cast<size_t>(model_->num_kv_heads) * static_cast<size_t>(channels_);
  // At position 0, where keys are not turned, a row alone.
  Output at;
  at.heads.resize(static_cast<size_t>(model_->num_kv_heads));
  std::iota(at.heads.begin(), at.heads.end(), 0);
  at.positions = {0};
  at.tile.Resize(model_->num_kv_heads, 1, model_->head_dim);
  std::fill(at.tile.values.begin(), at.tile.values.end(), 0.0F);
  std::vector<std::vector<std::byte>> sides;
  for (const auto& transform : transforms_) {
    codec::ByteWriter writer(sides.emplace_back());
    KVIK_TRY(transform->Forward(ContextOf(layer, at), at.tile, writer));
    transform->DropPositions(at.positions);
  }
  if (at.tile.rows != 1) {
    return std::optional<std::vector<double>>();
  }
  std::vector<double> zero;  // what coefficients of 0 become
  std::vector<double> map;
  for (size_t i = 0; i <= coefficients; ++i) {
    codec::Tile tile;
    tile.Resize(model_->num_kv_heads, 1, channels_);
    std::fill(tile.values.begin(), tile.values.end(), 0.0F);
    if (i > 0) {
      tile.values[i - 1] = 1.0F;
    }
    for (size_t t = transforms_.size(); t-- > 0;) {
      codec::ByteReader reader(sides[t]);
      KVIK_TRY(transforms_[t]->Inverse(ContextOf(layer, at), tile, reader));
    }
    for (size_t c = 0; c < tile.size(); ++c) {
      const auto value = static_cast<double>(tile.values[c]);
      if (i == 0) {
        zero.push_back(value);
      } else {
        map.push_back(value - zero[c]);
      }
    }
  }
  return std::optional<std::vector<double>>(std::move(map));
}

}  // namespace kvik::eval
