// SPDX-License-Identifier: Apache-2.0
// The transform `affine`: each head's channels times a calibrated scale, or a calibrated matrix
// [AffineQuant], so that a quantizer with one step for many channels errs where it matters least.
//
// Calibrated: "/diagonal" [layers, kv_heads, channels], positive, or "/full" [layers, kv_heads,
// channels, channels], y = matrix times x. Inverses follow from them.
#include <memory>
#include <utility>
#include <vector>

#include "codec/kernels/transform_kernels.h"
#include "codec/stage.h"
#include "codec/stages/calibrated.h"
#include "codec/stages/chain_rules.h"
#include "codec/stages/linear_map.h"

namespace kvik::codec {
namespace {

class Diagonal final : public Transform {
 public:
  Diagonal(std::vector<float> scale, size_t channels)
      : scale_(std::move(scale)), channels_(channels) {
    inverse_.reserve(scale_.size());
    for (const float s : scale_) {
      inverse_.push_back(1.0F / s);
    }
  }

  Result<void> Forward(const TileContext& context, Tile& tile,
                       ByteWriter& /*side*/) const override {
    Scale(context, tile, scale_);
    return {};
  }
  Result<void> Inverse(const TileContext& context, Tile& tile,
                       ByteReader& /*side*/) const override {
    Scale(context, tile, inverse_);
    return {};
  }

  [[nodiscard]] bool by_rows() const override { return true; }

 private:
  void Scale(const TileContext& context, Tile& tile, const std::vector<float>& factor) const {
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    for (int32_t head = 0; head < tile.heads; ++head) {
      const size_t cell =
          CellOf(*context.model, context.layer, context.heads[static_cast<size_t>(head)]);
      kernels.scale_rows(tile.Head(head).data(), static_cast<size_t>(tile.rows), channels_,
                         factor.data() + cell * channels_);
    }
  }

  std::vector<float> scale_;  // [layers, kv_heads, channels]
  std::vector<float> inverse_;
  size_t channels_;
};

Result<std::unique_ptr<Transform>> Make(const StageArgs& args, const StageSite& site) {
  if (args.Word("kind") == "full") {
    KVIK_ASSIGN(const SideTensor* matrix,
                Calibrated(site, "/full", {site.channels, site.channels}));
    return MakeLinearMap(site, matrix->values, BasisKind::kAny, site.channels);
  }
  KVIK_ASSIGN(const SideTensor* scale, Calibrated(site, "/diagonal", {site.channels}));
  for (const float s : scale->values) {
    if (!(s > 0)) {
      return Err(ErrorCode::kInvalidInput, "%s/diagonal holds %g, and scales are positive",
                 site.side_key.c_str(), static_cast<double>(s));
    }
  }
  return std::unique_ptr<Transform>(
      std::make_unique<Diagonal>(scale->values, static_cast<size_t>(site.channels)));
}

std::optional<std::string> Refuse(const StageArgs& args, const PipelineSpec& pipeline,
                                  kv::KvPart part, size_t index) {
  if (const std::string before = FirstBefore(pipeline, part, index, {"affine"}); !before.empty()) {
    return before + " stands before, and can do the work of both";
  }
  if (args.Word("kind") == "full") {
    if (const std::string before = FirstBefore(pipeline, part, index, {"hadamard", "klt", "qklt"});
        !before.empty()) {
      return "a full matrix can do the work of " + before + " too";
    }
  }
  return std::nullopt;
}

}  // namespace

const StageModule& AffineStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kTransform;
    module.name = "affine";
    module.summary = "each head's channels times a calibrated scale or matrix";
    ParamSpec kind;
    kind.name = "kind";
    kind.summary = "a scale per channel, or a full matrix per head";
    kind.type = ParamSpec::Type::kWord;
    kind.words = {"diagonal", "full"};
    kind.default_value = ArgValue::Word("diagonal");
    kind.search = {ArgValue::Word("diagonal"), ArgValue::Word("full")};
    module.params = {kind};
    module.make_transform = Make;
    module.refuse = Refuse;
    module.needs = {"/diagonal", "/full"};  // the one that `kind` says
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
