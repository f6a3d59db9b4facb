// SPDX-License-Identifier: Apache-2.0
// The quantizer `uniform`: equal steps between the smallest and the largest value of what shares a
// range. Ranges are halves in `side`, wide enough that nothing lies outside. The number of levels
// may differ by layer and head; the first and the most recent tokens may be kept apart.
//
// Planes: the body by number of levels, ascending, of the heads in order, [rows, channels] each;
// then the protected rows, those before the body and those after it head by head, either as bf16
// (exponents, then signs with mantissas) or with levels of their own.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "codec/allocation.h"
#include "codec/protected_rows.h"
#include "codec/range_groups.h"
#include "codec/stage.h"
#include "codec/tile_target.h"

namespace kvik::codec {
namespace {

// Where the symbols of a tile are. Planes are numbered from the quantizer's first.
struct Places {
  RowSplit split;
  size_t channels = 0;
  size_t first_plane = 0;
  std::vector<float> levels;  // of heads
  std::vector<size_t> plane;  // of heads: of their body
  std::vector<size_t> start;  // of heads: their first symbol there
  size_t protected_plane = 0;
};

constexpr size_t kRunRows = 16;

class Uniform final : public Quantizer {
 private:
  // The symbols of a row of a head's body.
  template <class Planes>
  static auto* Body(const Places& places, Planes& planes, size_t head, size_t row) {
    return planes.planes[places.first_plane + places.plane[head]].symbols.data() +
           places.start[head] + (row - places.split.begin) * places.channels;
  }
  template <class Planes>
  static auto* Protected(const Places& places, Planes& planes, size_t plane) {
    return planes.planes[places.first_plane + places.protected_plane + plane].symbols.data();
  }

 public:
  Uniform(RangeGrouping grouping, Allocation levels, const StageArgs& args)
      : grouping_(grouping),
        levels_(std::move(levels)),
        sinks_(args.Integer("sinks")),
        recent_(args.Integer("recent")),
        protect_(static_cast<int32_t>(args.Integer("protect"))) {}

  Result<void> Quantize(const TileContext& context, const Tile& tile, SymbolPlanes& planes,
                        ByteWriter& side) const override {
    const QuantKernels& kernels = QuantKernelsOf(context.isa);
    const Places places = AddPlanes(context, tile, planes);
    KVIK_TRY(QuantizeRows(kernels, tile, places.split.begin, places.split.end, side,
                          [&](size_t head, size_t row) {
                            return std::pair(places.levels[head], Body(places, planes, head, row));
                          }));
    size_t done = 0;
    for (const auto& [begin, end] : ProtectedRuns(places, tile)) {
      const size_t run = (end - begin) * places.channels;
      if (run == 0) {
        continue;
      }
      if (protect_ == 0) {
        for (int32_t h = 0; h < tile.heads; ++h, done += run) {
          kernels.split_bf16(tile.Head(h).data() + begin * places.channels, run,
                             Protected(places, planes, 0) + done,
                             Protected(places, planes, 1) + done);
        }
        continue;
      }
      KVIK_TRY(QuantizeRows(
          kernels, tile, begin, end, side, [&, first = begin](size_t head, size_t row) {
            return std::pair(
                static_cast<float>(protect_),
                Protected(places, planes, 0) + done + head * run + (row - first) * places.channels);
          }));
      done += run * static_cast<size_t>(tile.heads);
    }
    return {};
  }

  Result<void> Layout(const TileContext& context, const Tile& shape, ByteReader& /*side*/,
                      SymbolPlanes& planes) const override {
    AddPlanes(context, shape, planes);
    return {};
  }

  Result<void> Dequantize(const TileContext& context, const SymbolPlanes& planes, ByteReader& side,
                          Tile& tile) const override {
    TileTarget target(tile);
    return DequantizeRuns(context, planes, side, tile, target);
  }

  [[nodiscard]] bool dequantizes_runs() const override { return true; }

  Result<void> DequantizeRuns(const TileContext& context, const SymbolPlanes& planes,
                              ByteReader& side, const Tile& shape,
                              RowTarget& target) const override {
    const QuantKernels& kernels = QuantKernelsOf(context.isa);
    const Places places = PlacesOf(context, shape, planes.count);
    KVIK_TRY(DequantizeRows(kernels, shape, places.split.begin, places.split.end, side, target,
                            [&](size_t head, size_t row) {
                              return std::pair(places.levels[head],
                                               Body(places, planes, head, row));
                            }));
    size_t done = 0;
    for (const auto& [begin, end] : ProtectedRuns(places, shape)) {
      const size_t run = (end - begin) * places.channels;
      if (run == 0) {
        continue;
      }
      if (protect_ == 0) {
        const auto first = static_cast<int32_t>(begin);
        const auto n = static_cast<int32_t>(end - begin);
        for (int32_t h = 0; h < shape.heads; ++h, done += run) {
          kernels.merge_bf16(Protected(places, planes, 0) + done,
                             Protected(places, planes, 1) + done, run, target.Room(h, first, n));
          KVIK_TRY(target.Done(h, first, n));
        }
        continue;
      }
      KVIK_TRY(DequantizeRows(
          kernels, shape, begin, end, side, target, [&, first = begin](size_t head, size_t row) {
            return std::pair(
                static_cast<float>(protect_),
                Protected(places, planes, 0) + done + head * run + (row - first) * places.channels);
          }));
      done += run * static_cast<size_t>(shape.heads);
    }
    return {};
  }

 private:
  // Contexts: the values of `levels` ascending, then the protected rows'.
  [[nodiscard]] int32_t ProtectedContext() const {
    return static_cast<int32_t>(levels_.distinct().size());
  }

  // The places when the quantizer's planes start at the first one (count 0) or end at `count`.
  [[nodiscard]] Places PlacesOf(const TileContext& context, const Tile& shape, size_t count) const {
    Places places;
    places.split = SplitRows(context, sinks_, recent_);
    places.channels = static_cast<size_t>(shape.channels);
    std::vector<size_t> used;  // indices of distinct levels, ascending
    for (const int32_t head : context.heads) {
      const size_t index = levels_.Index(context.layer, head);
      places.levels.push_back(static_cast<float>(levels_.distinct()[index]));
      places.plane.push_back(index);
      used.push_back(index);
    }
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    std::vector<size_t> filled(used.size(), 0);
    for (size_t& plane : places.plane) {
      plane = static_cast<size_t>(std::lower_bound(used.begin(), used.end(), plane) - used.begin());
      places.start.push_back(filled[plane]);
      filled[plane] += places.split.body() * places.channels;
    }
    const size_t body_planes = places.split.body() == 0 ? 0 : used.size();
    const bool any_protected = places.split.body() < static_cast<size_t>(shape.rows);
    places.protected_plane = body_planes;
    const size_t all = body_planes + (any_protected ? (protect_ == 0 ? 2U : 1U) : 0U);
    KVIK_CHECK(count == 0 || count >= all, "%zu planes, at least %zu expected", count, all);
    places.first_plane = count == 0 ? 0 : count - all;
    return places;
  }

  Places AddPlanes(const TileContext& context, const Tile& shape, SymbolPlanes& planes) const {
    KVIK_CHECK(context.positions.size() == static_cast<size_t>(shape.rows) &&
                   context.heads.size() == static_cast<size_t>(shape.heads),
               "the context is not that of the tile");
    Places places = PlacesOf(context, shape, 0);
    places.first_plane = planes.count;
    const size_t body = places.split.body() * places.channels;
    for (size_t plane = 0; plane < places.protected_plane; ++plane) {
      size_t heads = 0;
      size_t index = 0;
      for (size_t h = 0; h < places.plane.size(); ++h) {
        if (places.plane[h] == plane) {
          ++heads;
          index = levels_.Index(context.layer, context.heads[h]);
        }
      }
      planes.Add(static_cast<int32_t>(levels_.distinct()[index]), static_cast<int32_t>(index),
                 heads * body);
    }
    const size_t rest = shape.size() - body * static_cast<size_t>(shape.heads);
    if (rest != 0 && protect_ == 0) {
      planes.Add(256, ProtectedContext(), rest);
      planes.Add(256, ProtectedContext() + 1, rest).uniform = true;
    } else if (rest != 0) {
      planes.Add(protect_, ProtectedContext(), rest);
    }
    return places;
  }

  static std::array<std::pair<size_t, size_t>, 2> ProtectedRuns(const Places& places,
                                                                const Tile& tile) {
    return {std::pair(size_t{0}, places.split.begin),
            std::pair(places.split.end, static_cast<size_t>(tile.rows))};
  }

  // place(head, row) gives the number of levels and where the symbols from that row on are.
  template <class Place>
  Result<void> QuantizeRows(const QuantKernels& kernels, const Tile& tile, size_t begin, size_t end,
                            ByteWriter& side, const Place& place) const {
    RangeGroups ranges(kernels, grouping_, tile, begin, end);
    while (ranges.Next()) {
      KVIK_TRY(ranges.Measure(tile, side));
      const RangeUnit& unit = ranges.unit();
      for (size_t h = unit.head; h < unit.head + unit.heads; ++h) {
        const float* const x = tile.Head(static_cast<int32_t>(h)).data() +
                               unit.row * static_cast<size_t>(tile.channels);
        const auto [levels, symbols] = place(h, unit.row);
        ranges.Divide(levels);
        if (unit.by_column) {
          kernels.quantize_columns(x, unit.rows, unit.kernel_channels, ranges.lo(), ranges.inv(),
                                   symbols);
        } else {
          kernels.quantize_rows(x, unit.kernel_rows, unit.kernel_channels, unit.group, ranges.lo(),
                                ranges.inv(), symbols);
        }
      }
    }
    return {};
  }

  template <class Place>
  Result<void> DequantizeRows(const QuantKernels& kernels, const Tile& shape, size_t begin,
                              size_t end, ByteReader& side, RowTarget& target,
                              const Place& place) const {
    RangeGroups ranges(kernels, grouping_, shape, begin, end);
    while (ranges.Next()) {
      KVIK_TRY(ranges.Read(side));
      const RangeUnit& unit = ranges.unit();
      // Rows with ranges of their own are handed out in runs that stay in the first-level cache.
      const bool in_runs = !unit.by_column && unit.kernel_rows == unit.rows;
      const size_t step = in_runs ? kRunRows : unit.rows;
      const size_t ranges_a_row = in_runs ? unit.ranges / unit.rows : 0;
      for (size_t h = unit.head; h < unit.head + unit.heads; ++h) {
        const auto [levels, symbols] = place(h, unit.row);
        ranges.Divide(levels);
        for (size_t r = 0; r < unit.rows; r += step) {
          const size_t n = std::min(step, unit.rows - r);
          const auto head = static_cast<int32_t>(h);
          const auto row = static_cast<int32_t>(unit.row + r);
          const auto rows = static_cast<int32_t>(n);
          float* const x = target.Room(head, row, rows);
          const auto channels = static_cast<size_t>(shape.channels);
          const float* const lo = ranges.lo() + r * ranges_a_row;
          const float* const steps = ranges.step() + r * ranges_a_row;
          if (unit.by_column) {
            kernels.dequantize_columns(symbols, n, unit.kernel_channels, lo, steps, x);
          } else {
            kernels.dequantize_rows(symbols + r * channels, in_runs ? n : unit.kernel_rows,
                                    unit.kernel_channels, unit.group, lo, steps, x);
          }
          KVIK_TRY(target.Done(head, row, rows));
        }
      }
    }
    return {};
  }

  RangeGrouping grouping_;
  Allocation levels_;
  int64_t sinks_;
  int64_t recent_;
  int32_t protect_;  // levels of protected rows; 0: they stay bf16
};

Result<std::unique_ptr<Quantizer>> Make(const StageArgs& args, const StageSite& site) {
  RangeGrouping grouping = RangeGrouping::Of(args);
  grouping.symmetric = args.Word("mode") == "symmetric";
  KVIK_ASSIGN(Allocation levels,
              Allocation::Make(args.Value("levels"), true, "scores/" + args.Word("scores"), site));
  return std::unique_ptr<Quantizer>(std::make_unique<Uniform>(grouping, std::move(levels), args));
}

std::optional<std::string> Refuse(const StageArgs& args, const PipelineSpec& /*pipeline*/,
                                  kv::KvPart /*part*/, size_t /*index*/) {
  if (args.Integer("protect") == 1) {
    return "protect=1 is no number of levels: 0 keeps bf16, or 2 to 256";
  }
  return RangeGrouping::Refuse(args);
}

// Values of `levels` that a search tries: the same everywhere, by layers, and the published grid of
// high and low levels by heads.
std::vector<ArgValue> LevelsToSearch() {
  const auto numbers = [](std::initializer_list<double> values) {
    std::vector<ArgValue> list;
    for (const double v : values) {
      list.push_back(ArgValue::Number(v));
    }
    return list;
  };
  std::vector<ArgValue> values = numbers({32, 16, 12, 10, 8, 6, 5, 4, 3, 2});
  values.push_back(ArgValue::Word("thirds", numbers({32, 16, 12})));
  values.push_back(ArgValue::Word("thirds", numbers({32, 16, 16})));
  values.push_back(ArgValue::Word("thirds", numbers({16, 8, 8})));
  values.push_back(ArgValue::Word("pyramid", numbers({16, 6})));
  values.push_back(ArgValue::Word("pyramid", numbers({12, 4})));
  for (int tenths = 1; tenths <= 9; ++tenths) {
    for (const int high : {16, 12, 10, 8, 6, 5}) {
      for (const int low : {8, 6, 4, 3}) {
        if (low <= high) {
          values.push_back(ArgValue::Word("mix", numbers({tenths / 10.0, static_cast<double>(high),
                                                          static_cast<double>(low)})));
        }
      }
    }
  }
  return values;
}

}  // namespace

const StageModule& UniformStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kQuantizer;
    module.name = "uniform";
    module.summary = "equal steps between the smallest and the largest value of a group";
    module.params = {{.name = "levels",
                      .summary = "values a symbol can stand for",
                      .type = ParamSpec::Type::kInteger,
                      .min = 2,
                      .max = 256,
                      .allocatable = true,
                      .default_value = ArgValue::Number(16),
                      .search = LevelsToSearch()},
                     {.name = "mode",
                      .summary = "whether ranges are [min, max] or [-max, max] of magnitudes",
                      .type = ParamSpec::Type::kWord,
                      .words = {"asymmetric", "symmetric"},
                      .default_value = ArgValue::Word("asymmetric"),
                      .search = {ArgValue::Word("asymmetric"), ArgValue::Word("symmetric")}},
                     RangeGrouping::PerParam("token"),
                     RangeGrouping::GroupParam(),
                     SinksParam(0),
                     RecentParam({0, 64, 128}),
                     {.name = "protect",
                      .summary = "levels of protected tokens; 0: they stay bf16",
                      .type = ParamSpec::Type::kInteger,
                      .min = 0,
                      .max = 256,
                      .default_value = ArgValue::Number(0),
                      .search = {ArgValue::Number(0), ArgValue::Number(64)}},
                     ScoresParam("the calibrated scores of heads that mix goes by")};
    module.make_quantizer = Make;
    module.refuse = Refuse;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
