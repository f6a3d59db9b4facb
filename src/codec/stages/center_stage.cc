// SPDX-License-Identifier: Apache-2.0
// The transform `center`: takes the calibrated mean of each channel out.
#include <memory>
#include <utility>
#include <vector>

#include "codec/kernels/transform_kernels.h"
#include "codec/stage.h"
#include "codec/stages/calibrated.h"
#include "codec/stages/mean_rules.h"

namespace kvik::codec {
namespace {

class Center final : public Transform {
 public:
  Center(std::vector<float> means, size_t channels) : means_(std::move(means)) {
    negative_.reserve(means_.size());
    for (const float mean : means_) {
      negative_.push_back(-mean);
    }
    channels_ = channels;
  }

  Result<void> Forward(const TileContext& context, Tile& tile,
                       ByteWriter& /*side*/) const override {
    Add(context, tile, negative_);
    return {};
  }
  Result<void> Inverse(const TileContext& context, Tile& tile,
                       ByteReader& /*side*/) const override {
    Add(context, tile, means_);
    return {};
  }

  [[nodiscard]] bool by_rows() const override { return true; }

 private:
  void Add(const TileContext& context, Tile& tile, const std::vector<float>& addend) const {
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    for (int32_t head = 0; head < tile.heads; ++head) {
      const size_t cell =
          CellOf(*context.model, context.layer, context.heads[static_cast<size_t>(head)]);
      float* const rows = tile.Head(head).data();
      kernels.add_row(rows, static_cast<size_t>(tile.rows), channels_,
                      addend.data() + cell * channels_, rows);
    }
  }

  std::vector<float> means_;  // [layers, kv_heads, channels]
  std::vector<float> negative_;
  size_t channels_ = 0;
};

Result<std::unique_ptr<Transform>> Make(const StageArgs& /*args*/, const StageSite& site) {
  KVIK_ASSIGN(const SideTensor* means, Calibrated(site, "", {site.channels}));
  return std::unique_ptr<Transform>(
      std::make_unique<Center>(means->values, static_cast<size_t>(site.channels)));
}

}  // namespace

const StageModule& CenterStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kTransform;
    module.name = "center";
    module.summary = "takes the calibrated mean of each channel out";
    module.make_transform = Make;
    module.refuse = RefuseMeanRemoval;
    module.needs = {""};
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
