// SPDX-License-Identifier: Apache-2.0
// The transform `selfcenter`: takes the frame's own mean of each channel out and stores it, as
// halves, so it needs no calibration.
//
// Side: [heads, channels] halves; nothing when there are no rows.
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "codec/kernels/transform_kernels.h"
#include "codec/stage.h"
#include "codec/stages/mean_rules.h"

namespace kvik::codec {
namespace {

class SelfCenter final : public Transform {
 public:
  Result<void> Forward(const TileContext& context, Tile& tile, ByteWriter& side) const override {
    if (tile.rows == 0) {
      return {};
    }
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    const auto rows = static_cast<size_t>(tile.rows);
    const auto channels = static_cast<size_t>(tile.channels);
    float* const means = tile.Scratch(channels).data();
    for (int32_t head = 0; head < tile.heads; ++head) {
      float* const values = tile.Head(head).data();
      kernels.sum_rows(values, rows, channels, means);
      for (size_t c = 0; c < channels; ++c) {
        const F16 half = ToF16(means[c] / static_cast<float>(rows));
        means[c] = -ToFloat(half);  // what the decoder will add
        if (!std::isfinite(means[c])) {
          return Err(ErrorCode::kUnsupported, "the mean of channel %zu overflows a half", c);
        }
        side.Half(half);
      }
      kernels.add_row(values, rows, channels, means, values);
    }
    return {};
  }

  Result<void> Inverse(const TileContext& context, Tile& tile, ByteReader& side) const override {
    if (tile.rows == 0) {
      return {};
    }
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    const auto channels = static_cast<size_t>(tile.channels);
    float* const means = tile.Scratch(channels).data();
    for (int32_t head = 0; head < tile.heads; ++head) {
      for (size_t c = 0; c < channels; ++c) {
        KVIK_ASSIGN(const F16 half, side.Half());
        means[c] = ToFloat(half);
        if (!std::isfinite(means[c])) {
          return Err(ErrorCode::kCorrupt, "the mean of channel %zu is not finite", c);
        }
      }
      float* const values = tile.Head(head).data();
      kernels.add_row(values, static_cast<size_t>(tile.rows), channels, means, values);
    }
    return {};
  }
};

Result<std::unique_ptr<Transform>> Make(const StageArgs& /*args*/, const StageSite& /*site*/) {
  return std::unique_ptr<Transform>(std::make_unique<SelfCenter>());
}

}  // namespace

const StageModule& SelfCenterStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kTransform;
    module.name = "selfcenter";
    module.summary = "takes the frame's own mean of each channel out and stores it";
    module.make_transform = Make;
    module.refuse = RefuseMeanRemoval;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
