// SPDX-License-Identifier: Apache-2.0
#include "codec/range_groups.h"

#include <algorithm>
#include <cstring>

namespace kvik::codec {
namespace {

// Rows whose ranges by token are stored together: few enough that the values stay in the
// first-level cache between measuring and quantizing. Part of the format.
constexpr size_t kTokenRows = 64;

size_t RoundUp16(size_t n) { return (n + 15) / 16 * 16; }

}  // namespace

ParamSpec RangeGrouping::PerParam(const std::string& default_word) {
  return {.name = "per",
          .summary =
              "what shares a range: a head, a token (along channels) or a channel (along "
              "tokens)",
          .type = ParamSpec::Type::kWord,
          .words = {"tensor", "token", "channel"},
          .default_value = ArgValue::Word(default_word),
          .search = {ArgValue::Word("tensor"), ArgValue::Word("token"), ArgValue::Word("channel")}};
}

ParamSpec RangeGrouping::GroupParam() {
  return {.name = "group",
          .summary =
              "channels of a token, or tokens of a channel, that share a range; 0: all, for "
              "a token those of all heads",
          .type = ParamSpec::Type::kInteger,
          .min = 0,
          .max = 65536,
          .default_value = ArgValue::Number(0),
          .search = {ArgValue::Number(0), ArgValue::Number(32), ArgValue::Number(64)}};
}

RangeGrouping RangeGrouping::Of(const StageArgs& args) {
  RangeGrouping grouping;
  const std::string& per = args.Word("per");
  grouping.per = per == "tensor"  ? RangePer::kTensor
                 : per == "token" ? RangePer::kToken
                                  : RangePer::kChannel;
  grouping.group = static_cast<size_t>(args.Integer("group"));
  return grouping;
}

std::optional<std::string> RangeGrouping::Refuse(const StageArgs& args) {
  if (args.Word("per") == "tensor" && args.Integer("group") != 0) {
    return "per=tensor has one range a head, so there are no groups";
  }
  return std::nullopt;
}

RangeGroups::RangeGroups(const QuantKernels& kernels, const RangeGrouping& grouping,
                         const Tile& shape, size_t begin, size_t end)
    : kernels_(kernels),
      grouping_(grouping),
      heads_(static_cast<size_t>(shape.heads)),
      channels_(static_cast<size_t>(shape.channels)),
      begin_(begin),
      end_(end) {
  const size_t rows = end - begin;
  size_t most_ranges = 1;
  switch (grouping.per) {
    case RangePer::kChannel:
      rows_per_unit_ = grouping.group == 0 ? rows : std::min(grouping.group, rows);
      most_ranges = channels_;
      break;
    case RangePer::kToken:
      rows_per_unit_ = kTokenRows;
      most_ranges = std::min(rows, kTokenRows);
      if (grouping.group != 0) {
        most_ranges *= (channels_ + grouping.group - 1) / grouping.group;
      }
      break;
    case RangePer::kTensor:
      rows_per_unit_ = rows;
      break;
  }
  unit_.heads = grouping.per == RangePer::kToken && grouping.group == 0 ? heads_ : 1;
  unit_.by_column = grouping.per == RangePer::kChannel;
  const size_t room = RoundUp16(most_ranges);
  lo_.resize(room);
  hi_.resize(room);
  step_.resize(room);
  inv_.resize(room);
  halves_.resize(2 * most_ranges);
}

bool RangeGroups::Next() {
  if (begin_ == end_) {
    return false;
  }
  if (unit_.rows == 0) {  // the first call
    unit_.row = begin_;
  } else if (unit_.row + unit_.rows < end_) {
    unit_.row += unit_.rows;
  } else if (unit_.head + unit_.heads < heads_) {
    unit_.head += unit_.heads;
    unit_.row = begin_;
  } else {
    return false;
  }
  unit_.rows = std::min(rows_per_unit_, end_ - unit_.row);
  unit_.kernel_rows = unit_.rows;
  unit_.kernel_channels = channels_;
  unit_.group = channels_;
  switch (grouping_.per) {
    case RangePer::kChannel:
      unit_.ranges = channels_;
      break;
    case RangePer::kToken:
      if (grouping_.group != 0) {
        unit_.group = std::min(grouping_.group, channels_);
      }
      unit_.ranges = unit_.rows * ((channels_ + unit_.group - 1) / unit_.group);
      break;
    case RangePer::kTensor:
      unit_.kernel_rows = 1;
      unit_.kernel_channels = unit_.group = unit_.rows * channels_;
      unit_.ranges = 1;
      break;
  }
  divided_by_ = 0;
  return true;
}

Result<void> RangeGroups::Measure(const Tile& tile, ByteWriter& side) {
  for (size_t h = 0; h < unit_.heads; ++h) {
    const float* const x =
        tile.Head(static_cast<int32_t>(unit_.head + h)).data() + unit_.row * channels_;
    float* const lo = h == 0 ? lo_.data() : step_.data();
    float* const hi = h == 0 ? hi_.data() : inv_.data();
    if (unit_.by_column) {
      kernels_.column_range(x, unit_.rows, channels_, lo, hi);
    } else {
      kernels_.row_range(x, unit_.kernel_rows, unit_.kernel_channels, unit_.group, lo, hi);
    }
    if (h > 0) {
      kernels_.merge_range(lo_.data(), hi_.data(), lo, hi, unit_.ranges);
    }
  }
  const size_t n = unit_.ranges;
  if (!kernels_.round_range(grouping_.symmetric, lo_.data(), hi_.data(), n)) {
    return Err(ErrorCode::kUnsupported, "a range of values does not fit a half");
  }
  size_t stored = 0;
  if (!grouping_.symmetric) {
    kernels_.to_halves(lo_.data(), n, halves_.data());
    stored = n;
  }
  kernels_.to_halves(hi_.data(), n, halves_.data() + stored);
  side.Bytes(std::as_bytes(std::span(halves_).first(stored + n)));
  return {};
}

Result<void> RangeGroups::Read(ByteReader& side) {
  const size_t n = unit_.ranges;
  const size_t stored = grouping_.symmetric ? n : 2 * n;
  KVIK_ASSIGN(const auto bytes, side.Bytes(stored * sizeof(F16)));
  std::memcpy(halves_.data(), bytes.data(), bytes.size());
  const F16* const hi = halves_.data() + (stored - n);
  bool finite = kernels_.from_halves(hi, n, hi_.data());
  if (grouping_.symmetric) {
    std::transform(hi_.begin(), hi_.end(), lo_.begin(), [](float v) { return -v; });
  } else {
    finite &= kernels_.from_halves(halves_.data(), n, lo_.data());
  }
  if (!finite) {
    return Err(ErrorCode::kCorrupt, "a range of values is not finite");
  }
  return {};
}

void RangeGroups::Divide(float levels) {
  if (divided_by_ != levels) {
    kernels_.grid(lo_.data(), hi_.data(), unit_.ranges, levels, step_.data(), inv_.data());
    divided_by_ = levels;
  }
}

}  // namespace kvik::codec
