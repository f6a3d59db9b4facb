// SPDX-License-Identifier: Apache-2.0
// codec/range_groups.h: the ranges of values that share a scale, for quantizers that measure them:
// over a channel, a token or a head, or groups of these; written to and read from `side` as halves.
//
//   channel  along tokens: a range for every channel of `group` rows of a head (0: of all rows)
//   token    along channels: a range for every `group` channels of a row of a head (0: for the row
//            over all heads of the tile)
//   tensor   one range a head
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/byte_stream.h"
#include "codec/kernels/quant_kernels.h"
#include "codec/stage_args.h"
#include "codec/tile.h"

namespace kvik::codec {

enum class RangePer { kTensor, kToken, kChannel };

struct RangeGrouping {
  RangePer per = RangePer::kToken;
  size_t group = 0;
  bool symmetric = false;  // ranges are [-m, m] and only m is stored

  // The parameters `per` and `group` of a stage, for its list and from its arguments.
  static ParamSpec PerParam(const std::string& default_word);
  static ParamSpec GroupParam();
  static RangeGrouping Of(const StageArgs& args);
  // Why the two do not go together, or nothing.
  static std::optional<std::string> Refuse(const StageArgs& args);
};

// Values whose ranges are measured and stored at once: rows [row, row + rows) of heads
// [head, head + heads). Each head's are [rows, channels], in groups of `group` channels unless
// ranges are by column.
struct RangeUnit {
  size_t head = 0;
  size_t heads = 0;
  size_t row = 0;
  size_t rows = 0;
  size_t kernel_rows = 0;  // the same values as the kernels see them: a tensor is one long row
  size_t kernel_channels = 0;
  size_t group = 0;
  bool by_column = false;
  size_t ranges = 0;
};

// The ranges of one unit at a time. Scratch of one call.
class RangeGroups {
 public:
  // Of rows [begin, end) of a tile of that shape.
  RangeGroups(const QuantKernels& kernels, const RangeGrouping& grouping, const Tile& shape,
              size_t begin, size_t end);

  // The units in the order in which they are stored; false after the last.
  bool Next();
  [[nodiscard]] const RangeUnit& unit() const { return unit_; }

  // kUnsupported: a range overflows a half.
  Result<void> Measure(const Tile& tile, ByteWriter& side);
  // kCorrupt: too few bytes, or a value that is not finite.
  Result<void> Read(ByteReader& side);

  // Divides the ranges of the unit into levels - 1 steps.
  void Divide(float levels);

  // An entry a range, and room for a multiple of 16.
  [[nodiscard]] size_t room() const { return lo_.size(); }
  [[nodiscard]] const float* lo() const { return lo_.data(); }
  [[nodiscard]] const float* hi() const { return hi_.data(); }
  [[nodiscard]] const float* step() const { return step_.data(); }
  [[nodiscard]] const float* inv() const { return inv_.data(); }

 private:
  const QuantKernels& kernels_;
  RangeGrouping grouping_;
  size_t heads_;
  size_t channels_;
  size_t begin_;
  size_t end_;
  size_t rows_per_unit_ = 0;
  RangeUnit unit_;
  float divided_by_ = 0;  // 0: not yet
  std::vector<float> lo_;
  std::vector<float> hi_;
  std::vector<float> step_;
  std::vector<float> inv_;
  std::vector<F16> halves_;
};

}  // namespace kvik::codec
