// SPDX-License-Identifier: Apache-2.0
// The quantizer `fp8`: e4m3 numbers (4 bits of exponent, 3 of mantissa, at most 448) of values over
// a scale, the largest magnitude of what shares it, which `side` has as a half.
//
// Planes: exponents, then sign * 8 + mantissa, of the heads in order, [rows, channels] each.
#include <memory>

#include "codec/range_groups.h"
#include "codec/stage.h"

namespace kvik::codec {
namespace {

// With that many levels a step of [0, m] is what 1 stands for when m is 448.
constexpr float kLevels = 449;

class Fp8 final : public Quantizer {
 public:
  explicit Fp8(RangeGrouping grouping) : grouping_(grouping) { grouping_.symmetric = true; }

  Result<void> Quantize(const TileContext& context, const Tile& tile, SymbolPlanes& planes,
                        ByteWriter& side) const override {
    const QuantKernels& kernels = QuantKernelsOf(context.isa);
    AddPlanes(tile, planes);
    uint8_t* const exponents = planes.planes[planes.count - 2].symbols.data();
    uint8_t* const rest = planes.planes[planes.count - 1].symbols.data();
    Scales scales(kernels, grouping_, tile);
    while (scales.ranges.Next()) {
      KVIK_TRY(scales.ranges.Measure(tile, side));
      scales.Divide();
      scales.ForEachHead([&](const RangeUnit& unit, size_t at) {
        const float* const x = tile.values.data() + at;
        if (unit.by_column) {
          kernels.fp8_columns(x, unit.kernel_rows, unit.kernel_channels, scales.inv.data(),
                              exponents + at, rest + at);
        } else {
          kernels.fp8_rows(x, unit.kernel_rows, unit.kernel_channels, unit.group, scales.inv.data(),
                           exponents + at, rest + at);
        }
      });
    }
    return {};
  }

  Result<void> Layout(const TileContext& /*context*/, const Tile& shape, ByteReader& /*side*/,
                      SymbolPlanes& planes) const override {
    AddPlanes(shape, planes);
    return {};
  }

  Result<void> Dequantize(const TileContext& context, const SymbolPlanes& planes, ByteReader& side,
                          Tile& tile) const override {
    const QuantKernels& kernels = QuantKernelsOf(context.isa);
    const uint8_t* const exponents = planes.planes[planes.count - 2].symbols.data();
    const uint8_t* const rest = planes.planes[planes.count - 1].symbols.data();
    Scales scales(kernels, grouping_, tile);
    while (scales.ranges.Next()) {
      KVIK_TRY(scales.ranges.Read(side));
      scales.Divide();
      scales.ForEachHead([&](const RangeUnit& unit, size_t at) {
        float* const x = tile.values.data() + at;
        if (unit.by_column) {
          kernels.unfp8_columns(exponents + at, rest + at, unit.kernel_rows, unit.kernel_channels,
                                scales.scale.data(), x);
        } else {
          kernels.unfp8_rows(exponents + at, rest + at, unit.kernel_rows, unit.kernel_channels,
                             unit.group, scales.scale.data(), x);
        }
      });
    }
    return {};
  }

 private:
  static void AddPlanes(const Tile& shape, SymbolPlanes& planes) {
    planes.Add(16, 0, shape.size());
    planes.Add(16, 1, shape.size()).uniform = true;
  }

  // Scales of one unit at a time.
  struct Scales {
    Scales(const QuantKernels& all_kernels, const RangeGrouping& grouping, const Tile& tile)
        : kernels(all_kernels),
          ranges(kernels, grouping, tile, 0, static_cast<size_t>(tile.rows)),
          rows(static_cast<size_t>(tile.rows)),
          channels(static_cast<size_t>(tile.channels)),
          zero(ranges.room()),
          scale(ranges.room()),
          inv(ranges.room()) {}

    void Divide() {
      kernels.grid(zero.data(), ranges.hi(), ranges.unit().ranges, kLevels, scale.data(),
                   inv.data());
    }
    // fn(unit, offset of the head's first value).
    template <class Fn>
    void ForEachHead(const Fn& fn) {
      const RangeUnit& unit = ranges.unit();
      for (size_t h = unit.head; h < unit.head + unit.heads; ++h) {
        fn(unit, (h * rows + unit.row) * channels);
      }
    }

    const QuantKernels& kernels;
    RangeGroups ranges;
    size_t rows;
    size_t channels;
    std::vector<float> zero;
    std::vector<float> scale;
    std::vector<float> inv;
  };

  RangeGrouping grouping_;
};

Result<std::unique_ptr<Quantizer>> Make(const StageArgs& args, const StageSite& /*site*/) {
  return std::unique_ptr<Quantizer>(std::make_unique<Fp8>(RangeGrouping::Of(args)));
}

std::optional<std::string> Refuse(const StageArgs& args, const PipelineSpec& /*pipeline*/,
                                  kv::KvPart /*part*/, size_t /*index*/) {
  return RangeGrouping::Refuse(args);
}

}  // namespace

const StageModule& Fp8Stage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kQuantizer;
    module.name = "fp8";
    module.summary = "e4m3 numbers with a scale";
    module.params = {RangeGrouping::PerParam("token"), RangeGrouping::GroupParam()};
    module.make_quantizer = Make;
    module.refuse = Refuse;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
