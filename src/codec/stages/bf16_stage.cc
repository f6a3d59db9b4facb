// SPDX-License-Identifier: Apache-2.0
// The quantizer `none`: values stay bf16. Two planes: exponents, whose distribution is narrow, and
// sign with mantissa, in which an entropy coder finds nothing.
#include <algorithm>
#include <memory>

#include "codec/kernels/quant_kernels.h"
#include "codec/stage.h"
#include "codec/tile_target.h"

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

  Result<void> Dequantize(const TileContext& context, const SymbolPlanes& planes, ByteReader& side,
                          Tile& tile) const override {
    TileTarget target(tile);
    return DequantizeRuns(context, planes, side, tile, target);
  }

  [[nodiscard]] bool dequantizes_runs() const override { return true; }

  Result<void> DequantizeRuns(const TileContext& context, const SymbolPlanes& planes,
                              ByteReader& /*side*/, const Tile& shape,
                              RowTarget& target) const override {
    constexpr int32_t kRunRows = 32;
    const uint8_t* exponents = planes.planes[planes.count - 2].symbols.data();
    const uint8_t* rest = planes.planes[planes.count - 1].symbols.data();
    for (int32_t head = 0; head < shape.heads; ++head) {
      for (int32_t row = 0; row < shape.rows; row += kRunRows) {
        const int32_t rows = std::min(kRunRows, shape.rows - row);
        const auto n = static_cast<size_t>(rows) * static_cast<size_t>(shape.channels);
        QuantKernelsOf(context.isa).merge_bf16(exponents, rest, n, target.Room(head, row, rows));
        KVIK_TRY(target.Done(head, row, rows));
        exponents += n;
        rest += n;
      }
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
