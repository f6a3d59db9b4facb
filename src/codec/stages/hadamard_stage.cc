// SPDX-License-Identifier: Apache-2.0
// The transform `hadamard`: an orthonormal Hadamard matrix per head after random signs of the
// channels, which spreads outliers over all channels and makes the rest close to Gaussian.
//
// Channels whose number is no power of two are split into powers of two, largest first: 96 = 64 +
// 32, 100 = 64 + 32 + 4.
#include <bit>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "codec/kernels/transform_kernels.h"
#include "codec/stage.h"
#include "codec/stages/chain_rules.h"

namespace kvik::codec {
namespace {

class Hadamard final : public Transform {
 public:
  Hadamard(uint64_t seed, size_t channels) {
    Rng rng(seed);
    for (size_t first = 0; first < channels; first += std::bit_floor(channels - first)) {
      const size_t n = std::bit_floor(channels - first);
      const auto norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
      for (size_t i = 0; i < n; ++i) {
        factor_.push_back((rng.Next() & 1) != 0 ? -norm : norm);
      }
    }
  }

  Result<void> Forward(const TileContext& context, Tile& tile,
                       ByteWriter& /*side*/) const override {
    Apply(context, tile, true);
    return {};
  }
  Result<void> Inverse(const TileContext& context, Tile& tile,
                       ByteReader& /*side*/) const override {
    Apply(context, tile, false);
    return {};
  }

  [[nodiscard]] bool by_rows() const override { return true; }

 private:
  void Apply(const TileContext& context, Tile& tile, bool scale_first) const {
    const TransformKernels& kernels = TransformKernelsOf(context.isa);
    const size_t channels = factor_.size();
    const size_t rows = static_cast<size_t>(tile.heads) * static_cast<size_t>(tile.rows);
    size_t n = 0;
    for (size_t first = 0; first < channels; first += n) {
      n = std::bit_floor(channels - first);
      kernels.hadamard(tile.values.data() + first, rows, channels, n, factor_.data() + first,
                       scale_first);
    }
  }

  std::vector<float> factor_;  // [channels] sign / sqrt(size of the channel's part)
};

Result<std::unique_ptr<Transform>> Make(const StageArgs& args, const StageSite& site) {
  return std::unique_ptr<Transform>(std::make_unique<Hadamard>(
      static_cast<uint64_t>(args.Integer("seed")), static_cast<size_t>(site.channels)));
}

std::optional<std::string> Refuse(const StageArgs& /*args*/, const PipelineSpec& pipeline,
                                  kv::KvPart part, size_t index) {
  if (const std::string before = FirstBefore(pipeline, part, index, {"hadamard"});
      !before.empty()) {
    return before + " has spread the channels already";
  }
  return std::nullopt;
}

}  // namespace

const StageModule& HadamardStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kTransform;
    module.name = "hadamard";
    module.summary = "spreads each head's channels by a Hadamard matrix with random signs";
    ParamSpec seed;
    seed.name = "seed";
    seed.summary = "of the signs";
    seed.type = ParamSpec::Type::kInteger;
    seed.min = 0;
    seed.max = 1e9;
    seed.default_value = ArgValue::Number(1);
    module.params = {seed};
    module.make_transform = Make;
    module.refuse = Refuse;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
