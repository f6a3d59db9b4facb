// SPDX-License-Identifier: Apache-2.0
#include "codec/stages/linear_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "codec/kernels/transform_kernels.h"
#include "codec/stages/calibrated.h"
#include "codec/stages/dense_matrix.h"

namespace kvik::codec {
namespace {

class LinearMap final : public Transform {
 public:
  // forward [layers, kv_heads, channels, kept], inverse [layers, kv_heads, kept, channels].
  LinearMap(std::vector<float> forward, std::vector<float> inverse, size_t channels, size_t kept)
      : forward_(std::move(forward)),
        inverse_(std::move(inverse)),
        channels_(channels),
        kept_(kept) {}

  Result<void> Forward(const TileContext& context, Tile& tile,
                       ByteWriter& /*side*/) const override {
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    const auto rows = static_cast<size_t>(tile.rows);
    float* const products = tile.Scratch(kChunkRows * kept_).data();
    // Rows shrink, so the first ones move first.
    for (int32_t head = 0; head < tile.heads; ++head) {
      const float* const from = tile.values.data() + static_cast<size_t>(head) * rows * channels_;
      float* const to = tile.values.data() + static_cast<size_t>(head) * rows * kept_;
      for (size_t row = 0; row < rows; row += kChunkRows) {
        const size_t count = std::min(kChunkRows, rows - row);
        kernels.multiply(from + row * channels_, count, channels_, Matrix(forward_, context, head),
                         kept_, products);
        std::memcpy(to + row * kept_, products, count * kept_ * sizeof(float));
      }
    }
    tile.Resize(tile.heads, tile.rows, static_cast<int32_t>(kept_));
    return {};
  }

  Result<void> Inverse(const TileContext& context, Tile& tile,
                       ByteReader& /*side*/) const override {
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    const auto rows = static_cast<size_t>(tile.rows);
    tile.Resize(tile.heads, tile.rows, static_cast<int32_t>(channels_));
    float* const products = tile.Scratch(kChunkRows * channels_).data();
    // Rows grow, so the last ones move first.
    for (int32_t head = tile.heads - 1; head >= 0; --head) {
      const float* const from = tile.values.data() + static_cast<size_t>(head) * rows * kept_;
      float* const to = tile.values.data() + static_cast<size_t>(head) * rows * channels_;
      for (size_t end = rows; end > 0;) {
        const size_t row = (end - 1) / kChunkRows * kChunkRows;
        kernels.multiply(from + row * kept_, end - row, kept_, Matrix(inverse_, context, head),
                         channels_, products);
        std::memcpy(to + row * channels_, products, (end - row) * channels_ * sizeof(float));
        end = row;
      }
    }
    return {};
  }

  [[nodiscard]] bool by_rows() const override { return true; }

  [[nodiscard]] Shape Output(Shape input) const override {
    return {input.rows, static_cast<int32_t>(kept_)};
  }

 private:
  static constexpr size_t kChunkRows = 48;

  const float* Matrix(const std::vector<float>& matrices, const TileContext& context,
                      int32_t head) const {
    const size_t cell =
        CellOf(*context.model, context.layer, context.heads[static_cast<size_t>(head)]);
    return matrices.data() + cell * channels_ * kept_;
  }

  std::vector<float> forward_;
  std::vector<float> inverse_;
  size_t channels_;
  size_t kept_;
};

}  // namespace

int32_t KeptChannels(double share, int32_t channels) {
  return std::clamp(static_cast<int32_t>(std::floor(share * channels + 0.5)), 1, channels);
}

Result<std::unique_ptr<Transform>> MakeLinearMap(const StageSite& site,
                                                 const std::vector<float>& bases, BasisKind kind,
                                                 int32_t kept) {
  const auto n = static_cast<size_t>(site.channels);
  const auto k = static_cast<size_t>(kept);
  const size_t cells = NumCells(*site.model);
  std::vector<float> forward(cells * n * k);
  std::vector<float> inverse(cells * n * k);
  for (size_t cell = 0; cell < cells; ++cell) {
    const float* const values = bases.data() + cell * n * n;
    std::vector<double> basis(values, values + n * n);
    std::vector<double> inverted;
    if (kind == BasisKind::kAny) {
      auto result = Inverted(basis, n);
      if (!result) {
        return result.error().Wrap(site.side_key + " of cell " + std::to_string(cell));
      }
      inverted = std::move(*result);
    } else if (auto result = Orthonormalize(basis, k, n); !result) {
      return result.error().Wrap(site.side_key + " of cell " + std::to_string(cell));
    }
    float* const to = forward.data() + cell * n * k;
    float* const back = inverse.data() + cell * n * k;
    for (size_t j = 0; j < k; ++j) {
      for (size_t c = 0; c < n; ++c) {
        to[c * k + j] = static_cast<float>(basis[j * n + c]);
        back[j * n + c] =
            static_cast<float>(kind == BasisKind::kAny ? inverted[c * n + j] : basis[j * n + c]);
      }
    }
  }
  return std::unique_ptr<Transform>(
      std::make_unique<LinearMap>(std::move(forward), std::move(inverse), n, k));
}

}  // namespace kvik::codec
