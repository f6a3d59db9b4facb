// SPDX-License-Identifier: Apache-2.0
// The quantizer `none`: values stay bf16. Two planes: exponents, whose distribution is narrow, and
// sign with mantissa, in which an entropy coder finds nothing.
#include <memory>

#include "base/float16.h"
#include "codec/stage.h"

namespace kvik::codec {
namespace {

class KeepBf16 final : public Quantizer {
 public:
  Result<void> Quantize(const TileContext& /*context*/, const Tile& tile, SymbolPlanes& planes,
                        ByteWriter& /*side*/) const override {
    const size_t n = tile.size();
    Planes(n, planes);
    uint8_t* const exponents = planes.planes[planes.count - 2].symbols.data();
    uint8_t* const rest = planes.planes[planes.count - 1].symbols.data();
    for (size_t i = 0; i < n; ++i) {
      const uint16_t bits = ToBf16(tile.values[i]).bits;
      exponents[i] = static_cast<uint8_t>(bits >> 7);
      rest[i] = static_cast<uint8_t>((bits & 0x7F) | (bits >> 15 << 7));
    }
    return {};
  }

  Result<void> Layout(const TileContext& /*context*/, const Tile& shape, ByteReader& /*side*/,
                      SymbolPlanes& planes) const override {
    Planes(shape.size(), planes);
    return {};
  }

  Result<void> Dequantize(const TileContext& /*context*/, const SymbolPlanes& planes,
                          ByteReader& /*side*/, Tile& tile) const override {
    const size_t n = tile.size();
    const uint8_t* const exponents = planes.planes[planes.count - 2].symbols.data();
    const uint8_t* const rest = planes.planes[planes.count - 1].symbols.data();
    for (size_t i = 0; i < n; ++i) {
      const auto bits =
          static_cast<uint16_t>((rest[i] >> 7 << 15) | (exponents[i] << 7) | (rest[i] & 0x7F));
      tile.values[i] = ToFloat(Bf16{bits});
    }
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
