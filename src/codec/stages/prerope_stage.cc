// SPDX-License-Identifier: Apache-2.0
// The transform `prerope`: turns keys back to what they were before their rotary positions. The
// channels of a key then keep their means and variances along the text, which rotation smears over
// pairs of channels.
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/rotary_angles.h"
#include "codec/kernels/transform_kernels.h"
#include "codec/stage.h"
#include "codec/stages/chain_rules.h"

namespace kvik::codec {
namespace {

class PreRope final : public Transform {
 public:
  PreRope(std::vector<double> frequencies, double scale)
      : frequencies_(std::move(frequencies)), scale_(scale) {}

  Result<void> Forward(const TileContext& context, Tile& tile,
                       ByteWriter& /*side*/) const override {
    Rotate(context, tile, 1.0 / scale_, TransformKernelsOf(context.isa).rotate_back);
    return {};
  }
  Result<void> Inverse(const TileContext& context, Tile& tile,
                       ByteReader& /*side*/) const override {
    Rotate(context, tile, scale_, TransformKernelsOf(context.isa).rotate);
    return {};
  }

 private:
  using RotateFn = decltype(TransformKernels::rotate);

  // The angles of some rows at a time are worked out once for all heads and stay in the first-level
  // cache meanwhile.
  void Rotate(const TileContext& context, Tile& tile, double scale, RotateFn rotate) const {
    constexpr size_t kChunkRows = 32;
    const size_t half = frequencies_.size();
    const auto rows = static_cast<size_t>(tile.rows);
    float* const cosines = tile.Scratch(2 * kChunkRows * half).data();
    float* const sines = cosines + kChunkRows * half;
    for (size_t row = 0; row < rows; row += kChunkRows) {
      const size_t count = std::min(kChunkRows, rows - row);
      RotaryAngles(context.isa, context.positions.subspan(row, count), frequencies_, scale, cosines,
                   sines);
      for (int32_t head = 0; head < tile.heads; ++head) {
        rotate(tile.Head(head).data() + row * 2 * half, count, half, cosines, sines);
      }
    }
  }

  std::vector<double> frequencies_;  // [channels / 2]
  double scale_;
};

Result<std::unique_ptr<Transform>> Make(const StageArgs& /*args*/, const StageSite& site) {
  const ModelFacts& model = *site.model;
  if (model.rope_frequencies.empty()) {
    return Err(ErrorCode::kInvalidInput, "this model has no rotary positions");
  }
  if (2 * model.rope_frequencies.size() != static_cast<size_t>(site.channels)) {
    return Err(ErrorCode::kInvalidInput, "there are %zu rotary frequencies for %d channels",
               model.rope_frequencies.size(), site.channels);
  }
  for (const double frequency : model.rope_frequencies) {
    if (!std::isfinite(frequency) || std::abs(frequency) > 100.0) {
      return Err(ErrorCode::kInvalidInput, "%g radians a position is no rotary frequency",
                 frequency);
    }
  }
  if (!(model.rope_scale >= 0.01 && model.rope_scale <= 100.0)) {
    return Err(ErrorCode::kInvalidInput, "a rotary scale of %g", model.rope_scale);
  }
  return std::unique_ptr<Transform>(
      std::make_unique<PreRope>(model.rope_frequencies, model.rope_scale));
}

std::optional<std::string> Refuse(const StageArgs& /*args*/, const PipelineSpec& pipeline,
                                  kv::KvPart part, size_t index) {
  if (part == kv::KvPart::kValue) {
    return "values carry no rotary positions; write k:... and v:... apart";
  }
  if (!FirstBefore(pipeline, part, index, {"prerope"}).empty()) {
    return "keys are turned back already";
  }
  if (!FirstBefore(pipeline, part, index, {"delta"}).empty()) {
    return "differences of keys at two positions cannot be turned back; put it before delta";
  }
  if (const std::string before =
          FirstBefore(pipeline, part, index, {"affine", "hadamard", "klt", "qklt"});
      !before.empty()) {
    return before + " has mixed the pairs of channels that rotate together; put it before";
  }
  return std::nullopt;
}

}  // namespace

const StageModule& PreRopeStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kTransform;
    module.name = "prerope";
    module.summary = "turns keys back to what they were before their rotary positions";
    module.make_transform = Make;
    module.refuse = Refuse;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
