// SPDX-License-Identifier: Apache-2.0
// The quantizer `ecsq`: steps that are chosen for entropy coding. A layer and kv head has one step,
// whatever the spread of its channels; the spread of a channel in steps, its class, decides how its
// symbols are made, reconstructed and coded (codec/ecsq_classes.h).
//
//   step = d * weight, and step / protect for protected tokens
//
// Calibrated tensors, all [layers, kv_heads, ...], appended to the side key:
//   /sigma    [.., channels]  standard deviation of every channel that reaches the quantizer
//   /weights  []              steps that cost the same quality for d = 1; optional, without them a
//                             weight is the root of the mean of the head's squared sigmas
// mode=self measures both in the tile instead and stores in `side` for every head the step, a half,
// and the classes of its channels, 5 bits each.
//
// Planes: one a class that occurs, ascending. In it the body, then the protected rows; of each the
// heads, of each the channels in order, of each the rows. Then `side` has, as varints: for class 0,
// which has no plane, how many of its symbols in that order are not 0, and of each how many zeros
// are before it and its value; then the values of all escaped symbols in the order of the planes.
// A value v is in steps, stored as 2v or -2v - 1.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "codec/allocation.h"
#include "codec/ecsq_classes.h"
#include "codec/protected_rows.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/tile_target.h"

namespace kvik::codec {
namespace {

constexpr float kSmallestStep = 0x1.0p-20F;
constexpr float kLargestStep = 65504.0F;
constexpr double kLargestSteps = 0x1.0p31;  // of an escaped value
constexpr int32_t kMostChannels = 4096;
constexpr size_t kClassBits = 5;
constexpr size_t kRunRows = 32;  // that are decoded at a time: they stay in the first-level cache

// Classes of the channels of some cells (layer and head), and where a cell's channels come among
// those of their class.
class ClassMap {
 public:
  ClassMap(size_t cells, size_t channels)
      : channels_(channels), classes_(cells * channels), ranks_(cells * channels), counts_(cells) {}

  // class_of(channel).
  template <class ClassOf>
  void Set(size_t cell, const ClassOf& class_of) {
    auto& counts = counts_[cell];
    counts.fill(0);
    uint8_t* const classes = classes_.data() + cell * channels_;
    uint16_t* const ranks = ranks_.data() + cell * channels_;
    for (size_t c = 0; c < channels_; ++c) {
      classes[c] = class_of(c);
      ranks[c] = counts[classes[c]]++;
    }
  }
  [[nodiscard]] const uint8_t* classes(size_t cell) const {
    return classes_.data() + cell * channels_;
  }
  [[nodiscard]] const uint16_t* ranks(size_t cell) const {
    return ranks_.data() + cell * channels_;
  }
  // Channels of every class.
  [[nodiscard]] const std::array<uint16_t, kNumEcsqClasses>& counts(size_t cell) const {
    return counts_[cell];
  }

 private:
  size_t channels_;
  std::vector<uint8_t> classes_;
  std::vector<uint16_t> ranks_;
  std::vector<std::array<uint16_t, kNumEcsqClasses>> counts_;
};

// Steps and classes of some cells, for the body and for protected rows.
struct Cells {
  Cells(size_t cells, size_t channels)
      : steps(cells), body(cells, channels), guarded(cells, channels) {}
  std::vector<float> steps;
  ClassMap body;
  ClassMap guarded;
};

// Rows of a tile that are quantized alike, and where their symbols are.
struct Section {
  const ClassMap* map = nullptr;
  float finer = 1;                                // what the cell's step is divided by
  std::array<std::pair<size_t, size_t>, 2> runs;  // of rows: first, end
  size_t rows = 0;
  std::vector<std::array<size_t, kNumEcsqClasses>> start;  // of heads: in the class's symbols
};

struct Plan {
  size_t channels = 0;
  size_t tile_rows = 0;
  const Cells* cells = nullptr;
  std::vector<size_t> cell_of_head;
  std::array<Section, 2> sections;                // body, protected
  std::array<size_t, kNumEcsqClasses> symbols{};  // of classes

  // In the tile, of the first channel of a row.
  [[nodiscard]] size_t IndexOf(size_t head, size_t row) const {
    return (head * tile_rows + row) * channels;
  }
  [[nodiscard]] float Step(const Section& section, size_t head) const {
    return cells->steps[cell_of_head[head]] / section.finer;
  }
};

// Where a symbol's value is.
struct Spot {
  size_t index = 0;  // in the tile
  float step = 0;
};

// The spots of a class's symbols, asked for in ascending order.
class Spots {
 public:
  Spots(const Plan& plan, size_t k) : plan_(plan), k_(k) {}

  Spot Of(size_t symbol) {
    while (symbol >= end_) {
      Advance();
    }
    const Section& section = plan_.sections[section_];
    const size_t within = symbol - section.start[head_][k_];
    const size_t row = within % section.rows;
    const auto& [first, second] = section.runs;
    const size_t in_first = first.second - first.first;
    const size_t tile_row = row < in_first ? first.first + row : second.first + (row - in_first);
    return {plan_.IndexOf(head_, tile_row) + channels_[within / section.rows],
            plan_.Step(section, head_)};
  }

 private:
  // To the next head, or the first one of the next section.
  void Advance() {
    if (started_ && ++head_ == plan_.cell_of_head.size()) {
      head_ = 0;
      ++section_;
    }
    started_ = true;
    KVIK_CHECK(section_ < plan_.sections.size(), "a symbol is of no value");
    const Section& section = plan_.sections[section_];
    const size_t cell = plan_.cell_of_head[head_];
    end_ = section.start[head_][k_] + section.map->counts(cell)[k_] * section.rows;
    channels_.clear();
    const uint8_t* const classes = section.map->classes(cell);
    for (size_t c = 0; c < plan_.channels; ++c) {
      if (classes[c] == k_) {
        channels_.push_back(c);
      }
    }
  }

  const Plan& plan_;
  const size_t k_;
  bool started_ = false;
  size_t section_ = 0;
  size_t head_ = 0;
  size_t end_ = 0;                // of the head's symbols
  std::vector<size_t> channels_;  // of the class, in order
};

// fn(index) of all symbols that are `wanted`.
template <class Fn>
Result<void> ForEachSymbol(std::span<const uint8_t> symbols, uint8_t wanted, const Fn& fn) {
  const uint8_t* at = symbols.data();
  const uint8_t* const end = at + symbols.size();
  while (at != end) {
    at = static_cast<const uint8_t*>(std::memchr(at, wanted, static_cast<size_t>(end - at)));
    if (at == nullptr) {
      break;
    }
    KVIK_TRY(fn(static_cast<size_t>(at - symbols.data())));
    ++at;
  }
  return {};
}

uint64_t FromSigned(int64_t v) {
  return v < 0 ? 2 * static_cast<uint64_t>(-v) - 1 : 2 * static_cast<uint64_t>(v);
}
int64_t ToSigned(uint64_t v) {
  return (v & 1) != 0 ? -static_cast<int64_t>(v / 2) - 1 : static_cast<int64_t>(v / 2);
}

uint8_t EscapeOf(size_t k) { return static_cast<uint8_t>(kEcsqClasses[k].alphabet - 1); }
uint8_t ZeroOf(size_t k) { return static_cast<uint8_t>(kEcsqClasses[k].alphabet / 2 - 1); }

// A value in steps, rounded as the kernels do.
Result<int64_t> StepsOf(float x, float step, size_t k) {
  const float y = x * (1.0F / step);
  const float moved = y - std::copysign(kEcsqClasses[k].theta, y);
  if (!(std::abs(moved) < kLargestSteps)) {
    return Err(ErrorCode::kUnsupported, "a value is too large for its step");
  }
  return static_cast<int64_t>(std::nearbyint(moved));
}

Result<int64_t> ReadSteps(ByteReader& side) {
  KVIK_ASSIGN(const uint64_t stored, side.Varint());
  const int64_t steps = ToSigned(stored);
  if (std::abs(static_cast<double>(steps)) > kLargestSteps) {
    return Err(ErrorCode::kCorrupt, "an escaped value is out of range");
  }
  return steps;
}

// The classes of protected rows follow from those of the others: the same spreads in finer steps.
std::array<uint8_t, kNumEcsqClasses> GuardedClasses(float protect) {
  std::array<uint8_t, kNumEcsqClasses> guarded{};
  for (size_t k = 0; k < kNumEcsqClasses; ++k) {
    guarded[k] = EcsqClassOf(kEcsqClasses[k].spread * protect);
  }
  return guarded;
}

void SetClasses(Cells& cells, size_t cell, std::span<const uint8_t> classes,
                const std::array<uint8_t, kNumEcsqClasses>& guarded) {
  cells.body.Set(cell, [&](size_t c) { return classes[c]; });
  cells.guarded.Set(cell, [&](size_t c) { return guarded[classes[c]]; });
}

// The step for a weight, as a half where it is stored.
float StepFor(double d, double weight) {
  const float step = static_cast<float>(d * weight);
  return std::min(std::max(step, kSmallestStep), kLargestStep);
}

class Ecsq final : public Quantizer {
 public:
  // Calibrated, or without cells: mode=self.
  Ecsq(Allocation d, const StageArgs& args, std::unique_ptr<const Cells> calibrated)
      : d_(std::move(d)),
        sinks_(args.Integer("sinks")),
        recent_(args.Integer("recent")),
        protect_(static_cast<float>(args.Real("protect"))),
        calibrated_(std::move(calibrated)) {}

  Result<void> Quantize(const TileContext& context, const Tile& tile, SymbolPlanes& planes,
                        ByteWriter& side) const override {
    if (tile.size() == 0) {
      return {};
    }
    const QuantKernels& kernels = QuantKernelsOf(context.isa);
    std::unique_ptr<const Cells> own;
    if (calibrated_ == nullptr) {
      own = Measure(kernels, context, tile, side);
    }
    const Plan plan = MakePlan(context, tile, own.get());
    const size_t first = AddPlanes(plan, planes);
    std::vector<uint8_t> dropped(plan.symbols[0]);
    const auto symbols = SymbolsOf(plan, planes, first, dropped.data());
    KVIK_TRY(ForEachRun(plan, symbols, [&](const Run& run, uint8_t** to) -> Result<void> {
      kernels.ecsq_quantize(tile.values.data() + plan.IndexOf(run.head, run.row), run.rows,
                            plan.channels, 1.0F / run.step, EcsqTablesOfClasses(), run.classes, to);
      for (size_t c = 0; c < plan.channels; ++c) {
        to[c] += run.rows;
      }
      return {};
    }));
    KVIK_TRY(WriteDropped(plan, tile, dropped, side));
    for (size_t k = 1; k < kNumEcsqClasses; ++k) {
      Spots spots(plan, k);
      KVIK_TRY(ForEachSymbol(std::span<const uint8_t>(symbols[k], plan.symbols[k]), EscapeOf(k),
                             [&](size_t i) -> Result<void> {
                               const Spot spot = spots.Of(i);
                               KVIK_ASSIGN(const int64_t steps,
                                           StepsOf(tile.values[spot.index], spot.step, k));
                               side.Varint(FromSigned(steps));
                               return {};
                             }));
    }
    return {};
  }

  Result<void> Layout(const TileContext& context, const Tile& shape, ByteReader& side,
                      SymbolPlanes& planes) const override {
    if (shape.size() == 0) {
      return {};
    }
    std::unique_ptr<const Cells> own;
    if (calibrated_ == nullptr) {
      ByteReader ahead = side;  // Dequantize needs the same bytes again
      KVIK_ASSIGN(own, ReadCells(shape, ahead));
    }
    AddPlanes(MakePlan(context, shape, own.get()), planes);
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
    if (shape.size() == 0) {
      return {};
    }
    std::unique_ptr<const Cells> own;
    if (calibrated_ == nullptr) {
      KVIK_ASSIGN(own, ReadCells(shape, side));
    }
    const Plan plan = MakePlan(context, shape, own.get());
    const size_t num_planes = static_cast<size_t>(std::count_if(
        plan.symbols.begin() + 1, plan.symbols.end(), [](size_t n) { return n > 0; }));
    KVIK_CHECK(planes.count >= num_planes);
    std::vector<std::pair<size_t, float>> exact;  // index in the tile, value
    std::vector<uint8_t> dropped(plan.symbols[0], ZeroOf(0));
    KVIK_TRY(ReadDropped(plan, side, dropped, exact));
    const auto symbols = SymbolsOf(plan, planes, planes.count - num_planes,
                                   static_cast<const uint8_t*>(dropped.data()));
    for (size_t k = 1; k < kNumEcsqClasses; ++k) {
      Spots spots(plan, k);
      KVIK_TRY(ForEachSymbol(std::span<const uint8_t>(symbols[k], plan.symbols[k]), EscapeOf(k),
                             [&](size_t i) -> Result<void> {
                               KVIK_ASSIGN(const int64_t steps, ReadSteps(side));
                               const Spot spot = spots.Of(i);
                               exact.emplace_back(spot.index,
                                                  static_cast<float>(steps) * spot.step);
                               return {};
                             }));
    }
    std::sort(exact.begin(), exact.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    const QuantKernels& kernels = QuantKernelsOf(context.isa);
    return ForEachRun(plan, symbols, [&](const Run& run, const uint8_t** from) -> Result<void> {
      for (size_t done = 0; done < run.rows; done += kRunRows) {
        const size_t n = std::min(kRunRows, run.rows - done);
        const auto head = static_cast<int32_t>(run.head);
        const auto row = static_cast<int32_t>(run.row + done);
        float* const x = target.Room(head, row, static_cast<int32_t>(n));
        kernels.ecsq_dequantize(from, n, plan.channels, run.step, EcsqTablesOfClasses(),
                                run.classes, x);
        const size_t first = plan.IndexOf(run.head, run.row + done);
        for (auto at =
                 std::lower_bound(exact.begin(), exact.end(), first,
                                  [](const auto&of, size_t index) { return of.first < index; });
             at != exact.end() && at->first < first + n * plan.channels; ++at) {
          x[at->first - first] = at->second;
        }
        KVIK_TRY(target.Done(head, row, static_cast<int32_t>(n)));
        for (size_t c = 0; c < plan.channels; ++c) {
          from[c] += n;
        }
      }
      return {};
    });
  }

 private:
  Plan MakePlan(const TileContext& context, const Tile& shape, const Cells* own) const {
    const auto rows = static_cast<size_t>(shape.rows);
    KVIK_CHECK(context.positions.size() == rows &&
                   context.heads.size() == static_cast<size_t>(shape.heads),
               "the context is not that of the tile");
    Plan plan;
    plan.channels = static_cast<size_t>(shape.channels);
    plan.tile_rows = rows;
    plan.cells = own != nullptr ? own : calibrated_.get();
    for (size_t h = 0; h < context.heads.size(); ++h) {
      plan.cell_of_head.push_back(own != nullptr
                                      ? h
                                      : static_cast<size_t>(context.layer) *
                                                static_cast<size_t>(context.model->num_kv_heads) +
                                            static_cast<size_t>(context.heads[h]));
    }
    const RowSplit split = SplitRows(context, sinks_, recent_);
    plan.sections[0].map = &plan.cells->body;
    plan.sections[0].rows = split.body();
    plan.sections[0].runs = {std::pair(split.begin, split.end), std::pair(rows, rows)};
    plan.sections[1].map = &plan.cells->guarded;
    plan.sections[1].finer = protect_;
    plan.sections[1].rows = rows - split.body();
    plan.sections[1].runs = {std::pair(size_t{0}, split.begin), std::pair(split.end, rows)};
    for (Section& section : plan.sections) {
      for (const size_t cell : plan.cell_of_head) {
        section.start.push_back(plan.symbols);
        const auto& counts = section.map->counts(cell);
        for (size_t k = 0; k < kNumEcsqClasses; ++k) {
          plan.symbols[k] += counts[k] * section.rows;
        }
      }
    }
    return plan;
  }

  // Returns the number of the first one.
  static size_t AddPlanes(const Plan& plan, SymbolPlanes& planes) {
    const size_t first = planes.count;
    for (size_t k = 1; k < kNumEcsqClasses; ++k) {
      if (plan.symbols[k] > 0) {
        planes.Add(kEcsqClasses[k].alphabet, static_cast<int32_t>(k), plan.symbols[k]);
      }
    }
    return first;
  }

  // The symbols of every class; null where there are none.
  template <class Planes, class Byte>
  static std::array<Byte*, kNumEcsqClasses> SymbolsOf(const Plan& plan, Planes& planes,
                                                      size_t first, Byte* dropped) {
    std::array<Byte*, kNumEcsqClasses> symbols{};
    symbols[0] = dropped;
    size_t plane = first;
    for (size_t k = 1; k < kNumEcsqClasses; ++k) {
      if (plan.symbols[k] > 0) {
        symbols[k] = planes.planes[plane++].symbols.data();
      }
    }
    return symbols;
  }

  // Consecutive rows of a head that are quantized alike.
  struct Run {
    size_t head = 0;  // of the tile
    size_t row = 0;
    size_t rows = 0;
    float step = 0;
    const uint8_t* classes = nullptr;  // of channels
  };

  // fn(run, where the symbols of each channel are), which moves these behind the run's.
  template <class Byte, class Fn>
  static Result<void> ForEachRun(const Plan& plan,
                                 const std::array<Byte*, kNumEcsqClasses>& symbols, const Fn& fn) {
    std::vector<Byte*> places(plan.channels);
    for (const Section& section : plan.sections) {
      if (section.rows == 0) {
        continue;
      }
      for (size_t h = 0; h < plan.cell_of_head.size(); ++h) {
        const size_t cell = plan.cell_of_head[h];
        const uint8_t* const classes = section.map->classes(cell);
        const uint16_t* const ranks = section.map->ranks(cell);
        std::array<Byte*, kNumEcsqClasses> of_head{};
        for (size_t k = 0; k < kNumEcsqClasses; ++k) {
          of_head[k] = symbols[k] == nullptr ? nullptr : symbols[k] + section.start[h][k];
        }
        for (size_t c = 0; c < plan.channels; ++c) {
          places[c] = of_head[classes[c]] + ranks[c] * section.rows;
        }
        for (const auto& [first, end] : section.runs) {
          if (first != end) {
            KVIK_TRY(fn(Run{h, first, end - first, plan.Step(section, h), classes}, places.data()));
          }
        }
      }
    }
    return {};
  }

  // Class 0 is written as what differs from 0.
  static Result<void> WriteDropped(const Plan& plan, const Tile& tile,
                                   std::span<const uint8_t> dropped, ByteWriter& side) {
    if (dropped.empty()) {
      return {};
    }
    std::vector<size_t> some;
    for (size_t i = 0; i < dropped.size(); ++i) {
      if (dropped[i] != ZeroOf(0)) {
        some.push_back(i);
      }
    }
    side.Varint(some.size());
    Spots spots(plan, 0);
    size_t next = 0;
    for (const size_t i : some) {
      const Spot spot = spots.Of(i);
      KVIK_ASSIGN(const int64_t steps, StepsOf(tile.values[spot.index], spot.step, 0));
      side.Varint(i - next);
      side.Varint(FromSigned(steps));
      next = i + 1;
    }
    return {};
  }

  static Result<void> ReadDropped(const Plan& plan, ByteReader& side, std::span<uint8_t> dropped,
                                  std::vector<std::pair<size_t, float>>& exact) {
    if (dropped.empty()) {
      return {};
    }
    KVIK_ASSIGN(uint64_t some, side.Varint());
    Spots spots(plan, 0);
    size_t next = 0;
    for (; some > 0; --some) {
      KVIK_ASSIGN(const uint64_t zeros, side.Varint());
      if (next >= dropped.size() || zeros >= dropped.size() - next) {
        return Err(ErrorCode::kCorrupt, "a value of a dropped channel is outside of it");
      }
      KVIK_ASSIGN(const int64_t steps, ReadSteps(side));
      const size_t i = next + zeros;
      if (std::abs(steps) <= ZeroOf(0)) {
        dropped[i] = static_cast<uint8_t>(steps + ZeroOf(0));
      } else {
        const Spot spot = spots.Of(i);
        exact.emplace_back(spot.index, static_cast<float>(steps) * spot.step);
      }
      next = i + 1;
    }
    return {};
  }

  // mode=self: from the body's rows, or from all where none is.
  std::unique_ptr<const Cells> Measure(const QuantKernels& kernels, const TileContext& context,
                                       const Tile& tile, ByteWriter& side) const {
    const auto channels = static_cast<size_t>(tile.channels);
    RowSplit split = SplitRows(context, sinks_, recent_);
    if (split.body() == 0) {
      split = {0, static_cast<size_t>(tile.rows)};
    }
    auto cells = std::make_unique<Cells>(static_cast<size_t>(tile.heads), channels);
    std::vector<float> sums((channels + 15) / 16 * 16);
    std::vector<uint8_t> classes(channels);
    const auto guarded = GuardedClasses(protect_);
    for (int32_t h = 0; h < tile.heads; ++h) {
      kernels.column_squares(tile.Head(h).data() + split.begin * channels, split.body(), channels,
                             sums.data());
      double sum = 0;
      for (size_t c = 0; c < channels; ++c) {
        sum += sums[c];
      }
      const auto values = static_cast<double>(split.body()) * static_cast<double>(channels);
      const double d = d_.At(context.layer, context.heads[static_cast<size_t>(h)]);
      const F16 stored = ToF16(StepFor(d, std::sqrt(std::min(sum / values, 1e30))));
      const float step = ToFloat(stored);
      for (size_t c = 0; c < channels; ++c) {
        const float mean = sums[c] / static_cast<float>(split.body());
        classes[c] = EcsqClassOf(std::sqrt(mean) / step);
      }
      side.Half(stored);
      WriteClasses(classes, side);
      cells->steps[static_cast<size_t>(h)] = step;
      SetClasses(*cells, static_cast<size_t>(h), classes, guarded);
    }
    return cells;
  }

  Result<std::unique_ptr<const Cells>> ReadCells(const Tile& shape, ByteReader& side) const {
    const auto channels = static_cast<size_t>(shape.channels);
    auto cells = std::make_unique<Cells>(static_cast<size_t>(shape.heads), channels);
    std::vector<uint8_t> classes(channels);
    const auto guarded = GuardedClasses(protect_);
    for (size_t h = 0; h < static_cast<size_t>(shape.heads); ++h) {
      KVIK_ASSIGN(const F16 stored, side.Half());
      const float step = ToFloat(stored);
      if (!(step >= kSmallestStep && step <= kLargestStep)) {
        return Err(ErrorCode::kCorrupt, "a step is out of range");
      }
      KVIK_TRY(ReadClasses(side, classes));
      cells->steps[h] = step;
      SetClasses(*cells, h, classes, guarded);
    }
    return std::unique_ptr<const Cells>(std::move(cells));
  }

  static void WriteClasses(std::span<const uint8_t> classes, ByteWriter& side) {
    uint32_t bits = 0;
    size_t filled = 0;
    for (const uint8_t k : classes) {
      bits |= static_cast<uint32_t>(k) << filled;
      for (filled += kClassBits; filled >= 8; filled -= 8) {
        side.U8(static_cast<uint8_t>(bits));
        bits >>= 8;
      }
    }
    if (filled > 0) {
      side.U8(static_cast<uint8_t>(bits));
    }
  }

  static Result<void> ReadClasses(ByteReader& side, std::span<uint8_t> classes) {
    KVIK_ASSIGN(const auto bytes, side.Bytes((classes.size() * kClassBits + 7) / 8));
    uint32_t bits = 0;
    size_t filled = 0;
    size_t next = 0;
    for (uint8_t& k : classes) {
      if (filled < kClassBits) {
        bits |= static_cast<uint32_t>(bytes[next++]) << filled;
        filled += 8;
      }
      k = static_cast<uint8_t>(bits & ((1U << kClassBits) - 1));
      bits >>= kClassBits;
      filled -= kClassBits;
      if (k >= kNumEcsqClasses) {
        return Err(ErrorCode::kCorrupt, "there is no class %d of channels", k);
      }
    }
    if (bits != 0) {
      return Err(ErrorCode::kCorrupt, "bits after the last class are not 0");
    }
    return {};
  }

  Allocation d_;
  int64_t sinks_;
  int64_t recent_;
  float protect_;
  std::unique_ptr<const Cells> calibrated_;  // [layers, kv_heads]
};

// Steps and classes of all layers and heads from what is calibrated.
Result<std::unique_ptr<const Cells>> Calibrated(const Allocation& d, float protect,
                                                const StageSite& site) {
  const int32_t layers = site.model->num_layers;
  const int32_t heads = site.model->num_kv_heads;
  const std::array<int32_t, 3> shape = {layers, heads, site.channels};
  KVIK_ASSIGN(const SideTensor* const sigma, site.Need(site.side_key + "/sigma", shape));
  const std::string weights_name = site.side_key + "/weights";
  const SideTensor* weights = nullptr;
  if (site.Find(weights_name) != nullptr) {
    KVIK_ASSIGN(weights, site.Need(weights_name, std::span(shape).first(2)));
  }
  const auto channels = static_cast<size_t>(site.channels);
  const size_t num_cells = static_cast<size_t>(layers) * static_cast<size_t>(heads);
  auto cells = std::make_unique<Cells>(num_cells, channels);
  std::vector<uint8_t> classes(channels);
  const auto guarded = GuardedClasses(protect);
  for (size_t cell = 0; cell < num_cells; ++cell) {
    const auto spreads = std::span(sigma->values).subspan(cell * channels, channels);
    double weight = 0;
    if (weights != nullptr) {
      weight = weights->values[cell];
    } else {
      for (const float s : spreads) {
        weight += static_cast<double>(s) * static_cast<double>(s);
      }
      weight = std::sqrt(weight / static_cast<double>(channels));
    }
    const float step = StepFor(
        d.At(static_cast<int32_t>(cell) / heads, static_cast<int32_t>(cell) % heads), weight);
    for (size_t c = 0; c < channels; ++c) {
      classes[c] = EcsqClassOf(spreads[c] / step);
    }
    cells->steps[cell] = step;
    SetClasses(*cells, cell, classes, guarded);
  }
  return std::unique_ptr<const Cells>(std::move(cells));
}

Result<std::unique_ptr<Quantizer>> Make(const StageArgs& args, const StageSite& site) {
  if (site.channels > kMostChannels) {
    return Err(ErrorCode::kInvalidInput, "ecsq: %d channels, at most %d", site.channels,
               kMostChannels);
  }
  KVIK_ASSIGN(Allocation d,
              Allocation::Make(args.Value("d"), false, "scores/" + args.Word("scores"), site));
  std::unique_ptr<const Cells> cells;
  if (args.Word("mode") == "calibrated") {
    KVIK_ASSIGN(cells, Calibrated(d, static_cast<float>(args.Real("protect")), site));
  }
  return std::unique_ptr<Quantizer>(std::make_unique<Ecsq>(std::move(d), args, std::move(cells)));
}

// Steps that a search tries: alike everywhere, by layers, and by heads.
std::vector<ArgValue> StepsToSearch() {
  std::vector<ArgValue> values;
  const std::array<double, 12> steps = {0.25, 0.35, 0.5, 0.6, 0.7, 0.85, 1, 1.2, 1.4, 1.7, 2, 2.5};
  for (const double d : steps) {
    values.push_back(ArgValue::Number(d));
  }
  for (const double d : {0.5, 0.7, 1.0, 1.4, 2.0}) {
    const ArgValue fine = ArgValue::Number(d / 2);
    const ArgValue coarse = ArgValue::Number(d);
    values.push_back(ArgValue::Word("pyramid", {fine, coarse}));
    values.push_back(ArgValue::Word("thirds", {fine, coarse, coarse}));
    for (const double share : {0.2, 0.4, 0.6, 0.8}) {
      values.push_back(ArgValue::Word("mix", {ArgValue::Number(share), fine, coarse}));
    }
  }
  return values;
}

}  // namespace

const StageModule& EcsqStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kQuantizer;
    module.name = "ecsq";
    module.summary = "one step a head, made for entropy coding: dead zones, centroids, escapes";
    module.params = {
        {.name = "d",
         .summary = "the step of a head, relative to its weight",
         .type = ParamSpec::Type::kReal,
         .min = 1e-4,
         .max = 1e4,
         .allocatable = true,
         .default_value = ArgValue::Number(1),
         .search = StepsToSearch()},
        {.name = "mode",
         .summary = "where weights and spreads of channels are from: calibration, or the tile",
         .type = ParamSpec::Type::kWord,
         .words = {"calibrated", "self"},
         .default_value = ArgValue::Word("calibrated"),
         .search = {ArgValue::Word("calibrated"), ArgValue::Word("self")}},
        SinksParam(4),
        RecentParam({0, 32, 64, 128}),
        {.name = "protect",
         .summary = "how much finer the steps of protected tokens are",
         .type = ParamSpec::Type::kReal,
         .min = 1,
         .max = 64,
         .default_value = ArgValue::Number(4),
         .search = {ArgValue::Number(2), ArgValue::Number(4), ArgValue::Number(8)}},
        ScoresParam("the calibrated scores of heads that mix goes by")};
    module.make_quantizer = Make;
    module.needs = {"/sigma"};
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
