// SPDX-License-Identifier: Apache-2.0
// The transform `jklt`: coefficients of all kv heads of a layer together, in a calibrated basis
// that need not be orthogonal. Heads of a layer say much the same: what is common to them is coded
// once.
//
// Coefficient i of a row stands where channel i % channels of head i / channels was. Calibrated:
// [layers, kv_heads * channels, kv_heads * channels], the vectors to multiply with as rows; the
// inverse follows from them. Tiles with a part of the heads cannot be represented.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "codec/kernels/transform_kernels.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/stages/chain_rules.h"
#include "codec/stages/dense_matrix.h"

namespace kvik::codec {
namespace {

constexpr int32_t kMostChannels = 2048;  // of all heads: matrices grow with the square

class JointBasis final : public Transform {
 public:
  // Both [layers, n, n], to be multiplied with from the right; n = heads * channels.
  JointBasis(std::vector<float> forward, std::vector<float> inverse, int32_t heads, size_t channels)
      : forward_(std::move(forward)),
        inverse_(std::move(inverse)),
        heads_(heads),
        channels_(channels),
        n_(static_cast<size_t>(heads) * channels) {}

  Result<void> Forward(const TileContext& context, Tile& tile,
                       ByteWriter& /*side*/) const override {
    return Multiply(context, tile, forward_);
  }
  Result<void> Inverse(const TileContext& context, Tile& tile,
                       ByteReader& /*side*/) const override {
    return Multiply(context, tile, inverse_);
  }

 private:
  static constexpr size_t kChunkRows = 48;

  Result<void> Multiply(const TileContext& context, Tile& tile,
                        const std::vector<float>& matrices) const {
    if (tile.heads != heads_) {
      return Err(ErrorCode::kUnsupported, "jklt needs all %d heads of a layer, these are %d",
                 heads_, tile.heads);
    }
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    const float* const matrix = matrices.data() + static_cast<size_t>(context.layer) * n_ * n_;
    const auto rows = static_cast<size_t>(tile.rows);
    float* const gathered = tile.Scratch(2 * kChunkRows * n_).data();
    float* const products = gathered + kChunkRows * n_;
    float* const values = tile.values.data();
    for (size_t row = 0; row < rows; row += kChunkRows) {
      const size_t count = std::min(kChunkRows, rows - row);
      for (size_t r = 0; r < count; ++r) {
        for (size_t head = 0; head < static_cast<size_t>(heads_); ++head) {
          std::copy_n(values + (head * rows + row + r) * channels_, channels_,
                      gathered + r * n_ + head * channels_);
        }
      }
      kernels.multiply(gathered, count, n_, matrix, n_, products);
      for (size_t r = 0; r < count; ++r) {
        for (size_t head = 0; head < static_cast<size_t>(heads_); ++head) {
          std::copy_n(products + r * n_ + head * channels_, channels_,
                      values + (head * rows + row + r) * channels_);
        }
      }
    }
    return {};
  }

  std::vector<float> forward_;
  std::vector<float> inverse_;
  int32_t heads_;
  size_t channels_;
  size_t n_;
};

Result<std::unique_ptr<Transform>> Make(const StageArgs& /*args*/, const StageSite& site) {
  const int32_t all = site.model->num_kv_heads * site.channels;
  if (all > kMostChannels) {
    return Err(ErrorCode::kInvalidInput, "jklt: %d channels in all heads, at most %d", all,
               kMostChannels);
  }
  const int32_t shape[] = {site.model->num_layers, all, all};
  KVIK_ASSIGN(const SideTensor* bases, site.Need(site.side_key, shape));
  const auto n = static_cast<size_t>(all);
  std::vector<float> forward(bases->values.size());
  std::vector<float> inverse(bases->values.size());
  for (size_t layer = 0; layer < static_cast<size_t>(site.model->num_layers); ++layer) {
    const size_t at = layer * n * n;
    const std::vector<double> basis(bases->values.begin() + static_cast<ptrdiff_t>(at),
                                    bases->values.begin() + static_cast<ptrdiff_t>(at + n * n));
    Result<std::vector<double>> inverted = Inverted(basis, n);
    if (!inverted) {
      return inverted.error().Wrap(site.side_key + " of layer " + std::to_string(layer));
    }
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        forward[at + i * n + j] = static_cast<float>(basis[j * n + i]);
        inverse[at + i * n + j] = static_cast<float>((*inverted)[j * n + i]);
      }
    }
  }
  return std::unique_ptr<Transform>(
      std::make_unique<JointBasis>(std::move(forward), std::move(inverse), site.model->num_kv_heads,
                                   static_cast<size_t>(site.channels)));
}

std::optional<std::string> Refuse(const StageArgs& /*args*/, const PipelineSpec& pipeline,
                                  kv::KvPart part, size_t index) {
  if (pipeline.selector.module != nullptr) {
    return "all heads of a layer are needed at every position, and " +
           pipeline.selector.ToString() + " drops some";
  }
  if (const std::string before =
          FirstBefore(pipeline, part, index, {"klt", "qklt", "jklt", "affine", "hadamard"});
      !before.empty()) {
    return "a basis of all heads can do the work of " + before + " too";
  }
  return std::nullopt;
}

}  // namespace

const StageModule& JkltStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kTransform;
    module.name = "jklt";
    module.summary = "coefficients of all heads together in a calibrated basis";
    module.make_transform = Make;
    module.refuse = Refuse;
    module.needs = {""};
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
