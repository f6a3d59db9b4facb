// SPDX-License-Identifier: Apache-2.0
// The bytes of a part; docs/wire-format.md says the same in prose.
//
//   part     u8 form: 0 coded, 1 stored
//            stored: the bf16 bits of every kept slot, by head, token, channel
//            coded:  exceptions: varint count, then (varint gap, u16 bf16) of each, by index among
//                    the part's values [heads, num_tokens, head_dim]
//                    then for each group of heads that keep the same slots, in the order of their
//                    first heads, unless they keep none:
//                      for each transform and the quantizer: varint size, side bytes
//                      varint size, bytes of the coder
#include "codec/part_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "codec/kernels/rows_kernels.h"

namespace kvik::codec {
namespace {

constexpr uint8_t kCoded = 0;
constexpr uint8_t kStored = 1;
constexpr size_t kExceptionShare = 64;  // more than one value in so many: the part is stored
constexpr size_t kMaxSideBytes = size_t{1} << 30;

// Puts something ordinary in the place of values of [rows, channels] that are taken out, so that
// they neither widen a range nor move a mean: the value of the same channel in the row before, in
// the first rows that of the first row that keeps its own, and 0 where a channel has no other.
void ReplaceTakenOut(float* values, size_t rows, size_t channels, float limit) {
  const auto taken_out = [&](float v) { return !(std::fabs(v) <= limit); };
  for (size_t c = 0; c < channels; ++c) {
    if (!taken_out(values[c])) {
      continue;
    }
    size_t row = 1;
    while (row < rows && taken_out(values[row * channels + c])) {
      ++row;
    }
    values[c] = row < rows ? values[row * channels + c] : 0.0F;
  }
  for (size_t i = channels; i < rows * channels; ++i) {
    if (taken_out(values[i])) {
      values[i] = values[i - channels];
    }
  }
}

}  // namespace

// Where the rows of one part go.
struct PartCodec::RowsOut {
  const RowsKernels& kernels;
  int32_t first_token;
  size_t dim;
  size_t head_stride;
  Bf16* rows;  // null: nowhere
  bool streaming;

  // Rounds all rows of `tile` to the places of its heads and positions.
  void Write(const TileContext& context, const Tile& tile) const {
    if (rows == nullptr) {
      return;
    }
    const auto positions = context.positions;
    for (size_t begin = 0; begin < positions.size();) {
      size_t end = begin + 1;  // a run of consecutive positions
      while (end < positions.size() && positions[end] == positions[end - 1] + 1) {
        ++end;
      }
      for (size_t h = 0; h < context.heads.size(); ++h) {
        const auto round = streaming ? kernels.round_streaming : kernels.round;
        round(tile.Head(static_cast<int32_t>(h)).data() + begin * dim, (end - begin) * dim,
              rows + static_cast<size_t>(context.heads[h]) * head_stride +
                  static_cast<size_t>(positions[begin] - first_token) * dim);
      }
      begin = end;
    }
  }
};

Result<PartCodec> PartCodec::Make(const PartSpec& spec, kv::KvPart which, const ModelFacts& model,
                                  const SideInfo* side_info, Isa isa,
                                  std::set<std::string, std::less<>>& used) {
  PartCodec part(which, model, isa);
  StageSite site;
  site.model = &model;
  site.side_info = side_info;
  site.used = &used;
  site.part = which;
  site.channels = model.head_dim;
  for (size_t i = 0; i < spec.transforms.size(); ++i) {
    site.side_key = SideKey(spec, which, i);
    const StageSpec& stage = spec.transforms[i];
    KVIK_ASSIGN(auto made, stage.module->make_transform(stage.args, site));
    site.channels = made->Output({kMaxFrameTokens, site.channels}).channels;
    part.transforms_.push_back(std::move(made));
  }
  site.side_key = SideKey(spec, which, spec.transforms.size());
  KVIK_ASSIGN(part.quantizer_, spec.quantizer.module->make_quantizer(spec.quantizer.args, site));
  site.side_key = TablesKey(spec, which);
  KVIK_ASSIGN(part.coder_, spec.coder.module->make_coder(spec.coder.args, site));
  return part;
}

TileContext PartCodec::Context(int32_t layer, const HeadGroup& group, int32_t prompt_tokens,
                               Workspace& workspace) const {
  std::vector<std::vector<int32_t>>& positions = workspace.positions;
  positions.resize(std::max(positions.size(), transforms_.size() + 1));
  positions[0].clear();
  for (const TokenRange& range : group.kept) {
    for (int32_t position = range.first; position < range.end; ++position) {
      positions[0].push_back(position);
    }
  }
  for (size_t i = 0; i < transforms_.size(); ++i) {
    positions[i + 1] = positions[i];
    transforms_[i]->DropPositions(positions[i + 1]);
  }
  TileContext context;
  context.model = model_;
  context.isa = isa_;
  context.layer = layer;
  context.part = which_;
  context.heads = group.heads;
  context.positions = positions[0];
  context.prompt_tokens = prompt_tokens;
  return context;
}

Result<void> PartCodec::EncodeGroup(TileContext context, Workspace& workspace,
                                    ByteWriter& out) const {
  const auto append_side = [&] {
    out.Varint(workspace.side.size());
    out.Bytes(workspace.side);
    workspace.side.clear();
  };
  workspace.side.clear();
  ByteWriter side(workspace.side);
  for (size_t i = 0; i < transforms_.size(); ++i) {
    KVIK_TRY(transforms_[i]->Forward(context, workspace.tile, side));
    append_side();
    context.positions = workspace.positions[i + 1];
  }
  workspace.planes.Clear();
  KVIK_TRY(quantizer_->Quantize(context, workspace.tile, workspace.planes, side));
  append_side();
  workspace.payload.clear();
  ByteWriter payload(workspace.payload);
  KVIK_TRY(coder_->Encode(context, workspace.planes, payload));
  out.Varint(workspace.payload.size());
  out.Bytes(workspace.payload);
  return {};
}

Result<void> PartCodec::Encode(const KvRows& rows, std::span<const HeadGroup> groups,
                               Workspace& workspace, std::vector<std::byte>& out) const {
  const Bf16* const source = which_ == kv::KvPart::kKey ? rows.keys : rows.values;
  const auto dim = static_cast<size_t>(model_->head_dim);
  const auto row_of = [&](int32_t head, int32_t position) {
    return source + static_cast<size_t>(head) * rows.head_stride +
           static_cast<size_t>(position - rows.first_token) * dim;
  };

  const RowsKernels& kernels = RowsKernelsOf(isa_);
  // Exact pipelines only take NaNs out: on the way through float32 a signalling one turns quiet.
  const float limit = lossy() ? kLargestValue : std::numeric_limits<float>::infinity();
  size_t kept_values = 0;
  workspace.exceptions.clear();
  for (const HeadGroup& group : groups) {
    kept_values += group.heads.size() * TokensIn(group.kept) * dim;
    for (const int32_t head : group.heads) {
      for (const TokenRange& range : group.kept) {
        const Bf16* const first = row_of(head, range.first);
        const auto n = static_cast<size_t>(range.end - range.first) * dim;
        const auto base = (static_cast<size_t>(head) * static_cast<size_t>(rows.num_tokens) +
                           static_cast<size_t>(range.first - rows.first_token)) *
                          dim;
        if (kernels.all_within(first, n, limit)) {
          continue;
        }
        for (size_t i = 0; i < n; ++i) {
          if (!(std::fabs(ToFloat(first[i])) <= limit)) {
            workspace.exceptions.push_back(static_cast<uint32_t>(base + i));
          }
        }
      }
    }
  }
  std::sort(workspace.exceptions.begin(), workspace.exceptions.end());

  workspace.part.clear();
  ByteWriter writer(workspace.part);
  bool coded = workspace.exceptions.size() <= kept_values / kExceptionShare;
  if (coded) {
    writer.U8(kCoded);
    writer.Varint(workspace.exceptions.size());
    uint32_t next = 0;
    const auto values_a_head = static_cast<size_t>(rows.num_tokens) * dim;
    for (const uint32_t index : workspace.exceptions) {
      writer.Varint(index - next);
      writer.U16(source[index / values_a_head * rows.head_stride + index % values_a_head].bits);
      next = index + 1;
    }
    for (const HeadGroup& group : groups) {
      const auto num_rows = static_cast<int32_t>(TokensIn(group.kept));
      if (num_rows == 0) {
        continue;
      }
      Tile& tile = workspace.tile;
      tile.Resize(static_cast<int32_t>(group.heads.size()), num_rows, model_->head_dim);
      for (size_t h = 0; h < group.heads.size(); ++h) {
        float* to = tile.Head(static_cast<int32_t>(h)).data();
        for (const TokenRange& range : group.kept) {
          const Bf16* const first = row_of(group.heads[h], range.first);
          const auto n = static_cast<size_t>(range.end - range.first) * dim;
          kernels.widen(first, n, to);
          to += n;
        }
      }
      for (int32_t h = 0; h < tile.heads && !workspace.exceptions.empty(); ++h) {
        ReplaceTakenOut(tile.Head(h).data(), static_cast<size_t>(num_rows), dim, limit);
      }
      const TileContext context = Context(rows.layer, group, rows.prompt_tokens, workspace);
      Result<void> done = EncodeGroup(context, workspace, writer);
      if (!done && done.error().code != ErrorCode::kUnsupported) {
        return done;
      }
      if (!done) {
        coded = false;
        break;
      }
    }
  }
  if (!coded || workspace.part.size() > 1 + kept_values * sizeof(Bf16)) {
    workspace.part.clear();
    writer.U8(kStored);
    for (const HeadGroup& group : groups) {
      for (const int32_t head : group.heads) {
        for (const TokenRange& range : group.kept) {
          writer.Bytes(std::as_bytes(std::span(
              row_of(head, range.first), static_cast<size_t>(range.end - range.first) * dim)));
        }
      }
    }
  }
  out.insert(out.end(), workspace.part.begin(), workspace.part.end());
  return {};
}

// Finishes rows as the quantizer hands them out, while they are in the first-level cache: inverse
// transforms that work by rows, then rounding to where they belong.
class PartCodec::FinishedRows final : public RowTarget {
 public:
  FinishedRows(const TileContext& context, const PartCodec& part, Workspace& workspace,
               const RowsOut& out, int32_t channels)
      : context_(context), part_(part), workspace_(workspace), out_(out), channels_(channels) {}

  float* Room(int32_t /*head*/, int32_t /*first_row*/, int32_t n) override {
    Tile& run = workspace_.tile;
    run.Resize(1, n, channels_);
    return run.values.data();
  }

  Result<void> Done(int32_t head, int32_t first_row, int32_t n) override {
    TileContext context = context_;
    context.heads = context_.heads.subspan(static_cast<size_t>(head), 1);
    context.positions =
        context_.positions.subspan(static_cast<size_t>(first_row), static_cast<size_t>(n));
    for (size_t i = part_.transforms_.size(); i-- > 0;) {
      ByteReader nothing({});
      KVIK_TRY(part_.transforms_[i]->Inverse(context, workspace_.tile, nothing));
    }
    out_.Write(context, workspace_.tile);
    return {};
  }

 private:
  const TileContext& context_;
  const PartCodec& part_;
  Workspace& workspace_;
  const RowsOut& out_;
  int32_t channels_;  // of the rows that the quantizer gives
};

Result<void> PartCodec::DecodeGroup(TileContext context, ByteReader& reader, Workspace& workspace,
                                    const RowsOut& out) const {
  const auto read_side = [&]() -> Result<ByteReader> {
    KVIK_ASSIGN(const uint64_t size, reader.Varint());
    if (size > kMaxSideBytes) {
      return Err(ErrorCode::kCorrupt, "a stage claims %llu bytes",
                 static_cast<unsigned long long>(size));
    }
    KVIK_ASSIGN(const auto bytes, reader.Bytes(size));
    return ByteReader(bytes);
  };
  std::vector<ByteReader> sides;
  std::vector<Transform::Shape> shapes = {
      {static_cast<int32_t>(context.positions.size()), model_->head_dim}};
  bool by_rows = quantizer_->dequantizes_runs();
  for (const auto& transform : transforms_) {
    KVIK_ASSIGN(ByteReader side, read_side());
    sides.push_back(side);
    shapes.push_back(transform->Output(shapes.back()));
    by_rows = by_rows && transform->by_rows() && side.left() == 0;
  }
  KVIK_ASSIGN(ByteReader side, read_side());
  const TileContext first_context = context;
  context.positions = workspace.positions[transforms_.size()];
  Tile shape;
  shape.heads = static_cast<int32_t>(context.heads.size());
  shape.rows = shapes.back().rows;
  shape.channels = shapes.back().channels;
  workspace.planes.Clear();
  KVIK_TRY(quantizer_->Layout(context, shape, side, workspace.planes));
  KVIK_ASSIGN(const uint64_t payload_bytes, reader.Varint());
  if (payload_bytes > reader.left()) {
    return Err(ErrorCode::kCorrupt, "%llu bytes of symbols, %zu are left",
               static_cast<unsigned long long>(payload_bytes), reader.left());
  }
  KVIK_ASSIGN(const auto payload, reader.Bytes(payload_bytes));
  KVIK_TRY(coder_->Decode(context, payload, workspace.planes));
  const auto finish_quantizer = [&]() -> Result<void> {
    if (side.left() != 0) {
      return Err(ErrorCode::kCorrupt, "%zu bytes of the quantizer are left over", side.left());
    }
    return {};
  };
  if (by_rows) {
    FinishedRows rows(first_context, *this, workspace, out, shape.channels);
    KVIK_TRY(quantizer_->DequantizeRuns(context, workspace.planes, side, shape, rows));
    return finish_quantizer();
  }
  Tile& tile = workspace.tile;
  tile.Resize(shape.heads, shape.rows, shape.channels);
  KVIK_TRY(quantizer_->Dequantize(context, workspace.planes, side, tile));
  KVIK_TRY(finish_quantizer());
  for (size_t i = transforms_.size(); i-- > 0;) {
    context.positions = workspace.positions[i];
    KVIK_TRY(transforms_[i]->Inverse(context, tile, sides[i]));
    if (sides[i].left() != 0) {
      return Err(ErrorCode::kCorrupt, "%zu bytes of transform %zu are left over", sides[i].left(),
                 i);
    }
    if (tile.rows != shapes[i].rows || tile.channels != shapes[i].channels) {
      return Err(ErrorCode::kInternal, "transform %zu gave [%d, %d] back, not [%d, %d]", i,
                 tile.rows, tile.channels, shapes[i].rows, shapes[i].channels);
    }
  }
  out.Write(first_context, tile);
  return {};
}

Result<void> PartCodec::Decode(const FrameHeader& header, std::span<const HeadGroup> groups,
                               Workspace& workspace, ByteReader& reader,
                               const KvRowsOut& to) const {
  const auto dim = static_cast<size_t>(header.head_dim);
  const auto values_a_head = static_cast<size_t>(header.num_tokens) * dim;
  Bf16* const out = which_ == kv::KvPart::kKey ? to.keys : to.values;
  const size_t head_stride = to.head_stride;
  const auto row_of = [&](int32_t head, int32_t position) {
    return out + static_cast<size_t>(head) * head_stride +
           static_cast<size_t>(position - header.first_token) * dim;
  };
  const RowsOut rows_out{RowsKernelsOf(isa_), header.first_token, dim, to.head_stride, out,
                         to.streaming};
  KVIK_ASSIGN(const uint8_t form, reader.U8());
  if (form != kCoded && form != kStored) {
    return Err(ErrorCode::kCorrupt, "a part of form %u", form);
  }
  if (out != nullptr && header.fidelity == Fidelity::kMasked) {
    for (int32_t head = 0; head < header.num_heads; ++head) {
      std::fill_n(row_of(head, header.first_token), values_a_head, Bf16{});
    }
  }
  if (form == kStored) {
    for (const HeadGroup& group : groups) {
      for (const int32_t head : group.heads) {
        for (const TokenRange& range : group.kept) {
          const auto n = static_cast<size_t>(range.end - range.first) * dim * sizeof(Bf16);
          KVIK_ASSIGN(const auto bytes, reader.Bytes(n));
          if (out != nullptr) {
            std::memcpy(row_of(head, range.first), bytes.data(), n);
          }
        }
      }
    }
    return {};
  }

  KVIK_ASSIGN(const uint64_t exceptions, reader.Varint());
  const size_t values = static_cast<size_t>(header.num_heads) * values_a_head;
  if (exceptions > values / kExceptionShare) {
    return Err(ErrorCode::kCorrupt, "%llu exceptions among %zu values",
               static_cast<unsigned long long>(exceptions), values);
  }
  std::vector<const KeptRanges*> kept_of_head(static_cast<size_t>(header.num_heads));
  for (const HeadGroup& group : groups) {
    for (const int32_t head : group.heads) {
      kept_of_head[static_cast<size_t>(head)] = &group.kept;
    }
  }
  const auto is_kept = [&](size_t index) {
    const auto position = header.first_token + static_cast<int32_t>(index % values_a_head / dim);
    const KeptRanges& kept = *kept_of_head[index / values_a_head];
    const auto after =
        std::upper_bound(kept.begin(), kept.end(), position,
                         [](int32_t at, const TokenRange& range) { return at < range.first; });
    return after != kept.begin() && position < (after - 1)->end;
  };
  std::vector<std::pair<size_t, Bf16>> put_back;
  put_back.reserve(exceptions);
  size_t next = 0;
  for (uint64_t i = 0; i < exceptions; ++i) {
    KVIK_ASSIGN(const uint64_t gap, reader.Varint());
    KVIK_ASSIGN(const uint16_t bits, reader.U16());
    if (gap >= values - next || !is_kept(next + gap)) {
      return Err(ErrorCode::kCorrupt, "an exception lies outside what the frame keeps");
    }
    next += gap;
    put_back.emplace_back(next++, Bf16{bits});
  }
  for (const HeadGroup& group : groups) {
    if (group.kept.empty()) {
      continue;
    }
    const TileContext context = Context(header.layer, group, header.prompt_tokens, workspace);
    KVIK_TRY(DecodeGroup(context, reader, workspace, rows_out));
  }
  if (to.streaming) {
    rows_out.kernels.fence();
  }
  if (out != nullptr) {
    for (const auto& [index, value] : put_back) {
      out[index / values_a_head * head_stride + index % values_a_head] = value;
    }
  }
  return {};
}

}  // namespace kvik::codec
