// SPDX-License-Identifier: Apache-2.0
// The quantizer `none`: values stay bf16. Two planes: exponents, whose distribution is narrow, and
// sign with mantissa, in which an entropy coder finds nothing.
#include <memory>

#include "codec/kernels/quant_kernels.h"
#include "codec/stage.h"

namespace kvik::codec {
namespace {

class KeepBf16 final : public Quantizer {
 public:
  Result<void> Quantize(const TileContext& context, const Tile& tile, SymbolPlanes& planes,
                        ByteWriter& /*side*/) const override {
    const size_t n = tile.size();
    Planes(n, planes);
    QuantKernelsOf(context.isa)
        .split_bf16(tile.values.data(), n, planes.planes[planes.count - 2].symbols.data(),
                    planes.planes[planes.count - 1].symbols.data());
    return {};
  }

  Result<void> Layout(const TileContext& /*context*/, const Tile& shape, ByteReader& /*side*/,
                      SymbolPlanes& planes) const override {
    Planes(shape.size(), planes);
    return {};
  }

  Result<void> Dequantize(const TileContext& context, const SymbolPlanes& planes,
                          ByteReader& /*side*/, Tile& tile) const override {
    QuantKernelsOf(context.isa)
        .merge_bf16(planes.planes[planes.count - 2].symbols.data(),
                    planes.planes[planes.count - 1].symbols.data(), tile.size(),
                    tile.values.data());
    return {};
  }

  [[nodiscard]] bool lossy() const override { return false; }

 private:
  static void Planes(size_t n, SymbolPlanes& planes) {
    planes.Add(256, 0, n);
    planes.Add(256, 1, n).uniform = true;
  }
};

Result<std::unique_ptr<Quantizer>> Make(const StageArgs& /*args*/, const StageSite& /*site*/) {
  return std::unique_ptr<Quantizer>(std::make_unique<KeepBf16>());
}

}  // namespace

const StageModule& Bf16Stage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kQuantizer;
    module.name = "none";
    module.summary = "values stay bf16, exponents apart from signs and mantissas";
    module.make_quantizer = Make;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
