// SPDX-License-Identifier: Apache-2.0
// The bytes of a frame; docs/wire-format.md says the same in prose.
//
//   header   56 bytes, see the offsets below
//   payload  kept ranges, when the pipeline has a selector:
//              for each head: varint count, then (varint gap, varint length - 1) of each range
//            then for keys, then for values, those that the frame holds: a part
//   part     u8 form: 0 coded, 1 stored
//            stored: the bf16 bits of every kept slot, by head, token, channel
//            coded:  exceptions: varint count, then (varint gap, u16 bf16) of each, by index among
//            the
//                    part's values [heads, num_tokens, head_dim]
//                    then for each group of heads that keep the same slots, in the order of their
//                    first heads, unless they keep none:
//                      for each transform and the quantizer: varint size, side bytes
//                      varint size, bytes of the coder
#include "codec/frame.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/sha256.h"
#include "codec/byte_stream.h"
#include "codec/kernels/rows_kernels.h"
#include "codec/registry.h"
#include "codec/stage.h"

namespace kvik::codec {
namespace {

constexpr uint32_t kMagic = 0x0046764BU;  // "KvF", then the version
constexpr size_t kHeaderBytes = kFrameHeaderBytes;
constexpr size_t kCrcOffset = 4;
constexpr size_t kCrcEnd = 8;
constexpr uint8_t kTokenMajor = 0;  // the only layout: rows of a head one after the other
constexpr uint8_t kCoded = 0;
constexpr uint8_t kStored = 1;
constexpr size_t kExceptionShare = 64;  // more than one value in so many: the part is stored
constexpr size_t kMaxSideBytes = size_t{1} << 30;

void AppendHeader(const FrameHeader& header, std::vector<std::byte>& out) {
  ByteWriter writer(out);
  writer.U32(kMagic | static_cast<uint32_t>(kFrameVersion) << 24);
  writer.U32(0);  // CRC, set when the frame is complete
  writer.U64(header.model_fingerprint);
  writer.U64(header.profile_hash);
  writer.U32(header.pipeline_id);
  writer.U32(header.payload_bytes);
  writer.U32(static_cast<uint32_t>(header.first_token));
  writer.U32(static_cast<uint32_t>(header.num_tokens));
  writer.U32(static_cast<uint32_t>(header.prompt_tokens));
  writer.U16(static_cast<uint16_t>(header.layer));
  writer.U16(static_cast<uint16_t>(header.first_head));
  writer.U16(static_cast<uint16_t>(header.num_heads));
  writer.U16(static_cast<uint16_t>(header.head_dim));
  writer.U8(static_cast<uint8_t>(header.parts));
  writer.U8(static_cast<uint8_t>(header.fidelity));
  writer.U8(kTokenMajor);
  writer.U8(0);
}

// One group of heads that keep the same slots.
struct Group {
  std::vector<int32_t> heads;  // of the frame: 0 is its first
  std::vector<TokenRange> kept;
};

size_t TokensIn(const std::vector<TokenRange>& ranges) {
  size_t n = 0;
  for (const TokenRange& range : ranges) {
    n += static_cast<size_t>(range.end - range.first);
  }
  return n;
}

std::vector<Group> GroupHeads(std::vector<std::vector<TokenRange>> kept_of_head) {
  std::vector<Group> groups;
  for (size_t head = 0; head < kept_of_head.size(); ++head) {
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& group) { return group.kept == kept_of_head[head]; });
    if (found == groups.end()) {
      groups.push_back({{}, std::move(kept_of_head[head])});
      found = groups.end() - 1;
    }
    found->heads.push_back(static_cast<int32_t>(head));
  }
  return groups;
}

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

// Where the rows of one part go.
struct RowsOut {
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

struct StagedPart {
  std::vector<std::unique_ptr<Transform>> transforms;
  std::unique_ptr<Quantizer> quantizer;
  std::unique_ptr<EntropyCoder> coder;

  [[nodiscard]] bool lossy() const { return !transforms.empty() || quantizer->lossy(); }
};

Result<StagedPart> MakePart(const PartSpec& spec, kv::KvPart which, const ModelFacts& model,
                            const SideInfo* side_info, std::set<std::string, std::less<>>& used) {
  StagedPart part;
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
    part.transforms.push_back(std::move(made));
  }
  site.side_key = SideKey(spec, which, spec.transforms.size());
  KVIK_ASSIGN(part.quantizer, spec.quantizer.module->make_quantizer(spec.quantizer.args, site));
  site.side_key = TablesKey(spec, which);
  KVIK_ASSIGN(part.coder, spec.coder.module->make_coder(spec.coder.args, site));
  return part;
}

// Over a pipeline and the calibrated tensors that its stages looked up.
uint64_t HashProfile(const PipelineSpec& pipeline, const SideInfo* side_info,
                     const std::set<std::string, std::less<>>& used) {
  Sha256 sha;
  const std::string text = pipeline.ToString();
  sha.Update(std::as_bytes(std::span(text)));
  for (const std::string& name : used) {
    const SideTensor& tensor = *side_info->Find(name);
    sha.Update(std::as_bytes(std::span(name)));
    sha.Update(std::as_bytes(std::span(tensor.shape)));
    sha.Update(std::as_bytes(std::span(tensor.values)));
  }
  return ShortHash(sha.Finish());
}

}  // namespace

Result<size_t> ClaimedFrameBytes(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) {
    return Err(ErrorCode::kCorrupt, "%zu bytes are not a frame: its header alone has %zu",
               bytes.size(), kHeaderBytes);
  }
  const auto magic = LoadAt<uint32_t>(bytes, 0);
  if ((magic & 0xFFFFFFU) != kMagic) {
    return Err(ErrorCode::kCorrupt, "not a frame: it starts with %08x", magic);
  }
  if (magic >> 24 != kFrameVersion) {
    return Err(ErrorCode::kUnsupported, "a frame of version %u; this build reads version %u",
               magic >> 24, kFrameVersion);
  }
  return kHeaderBytes + size_t{LoadAt<uint32_t>(bytes, 28)};
}

Result<FrameHeader> ReadFrameHeader(std::span<const std::byte> bytes) {
  KVIK_TRY(ClaimedFrameBytes(bytes));
  FrameHeader header;
  header.header_bytes = kHeaderBytes;
  header.model_fingerprint = LoadAt<uint64_t>(bytes, 8);
  header.profile_hash = LoadAt<uint64_t>(bytes, 16);
  header.pipeline_id = LoadAt<uint32_t>(bytes, 24);
  header.payload_bytes = LoadAt<uint32_t>(bytes, 28);
  const auto first_token = LoadAt<uint32_t>(bytes, 32);
  const auto num_tokens = LoadAt<uint32_t>(bytes, 36);
  const auto prompt_tokens = LoadAt<uint32_t>(bytes, 40);
  header.layer = LoadAt<uint16_t>(bytes, 44);
  header.first_head = LoadAt<uint16_t>(bytes, 46);
  header.num_heads = LoadAt<uint16_t>(bytes, 48);
  header.head_dim = LoadAt<uint16_t>(bytes, 50);
  const auto parts = LoadAt<uint8_t>(bytes, 52);
  const auto fidelity = LoadAt<uint8_t>(bytes, 53);
  const auto layout = LoadAt<uint8_t>(bytes, 54);
  const auto reserved = LoadAt<uint8_t>(bytes, 55);
  if (header.payload_bytes > bytes.size() - kHeaderBytes) {
    return Err(ErrorCode::kCorrupt, "the frame is cut short: %u bytes of payload, %zu are there",
               header.payload_bytes, bytes.size() - kHeaderBytes);
  }
  const uint32_t crc = Crc32c(bytes.subspan(kCrcEnd, header.frame_bytes() - kCrcEnd));
  if (crc != LoadAt<uint32_t>(bytes, kCrcOffset)) {
    return Err(ErrorCode::kCorrupt, "the frame's CRC is %08x, its bytes give %08x",
               LoadAt<uint32_t>(bytes, kCrcOffset), crc);
  }
  if (num_tokens == 0 || num_tokens > static_cast<uint32_t>(kMaxFrameTokens) ||
      first_token > static_cast<uint32_t>(INT32_MAX) - num_tokens ||
      prompt_tokens > static_cast<uint32_t>(INT32_MAX) || header.num_heads == 0 ||
      header.head_dim == 0) {
    return Err(ErrorCode::kCorrupt, "a frame of tokens [%u, +%u), %d heads of %d channels",
               first_token, num_tokens, header.num_heads, header.head_dim);
  }
  if (parts < 1 || parts > 3 || fidelity > static_cast<uint8_t>(Fidelity::kMasked) ||
      layout != kTokenMajor || reserved != 0) {
    return Err(ErrorCode::kCorrupt, "a frame with parts %u, fidelity %u, layout %u, reserved %u",
               parts, fidelity, layout, reserved);
  }
  header.first_token = static_cast<int32_t>(first_token);
  header.num_tokens = static_cast<int32_t>(num_tokens);
  header.prompt_tokens = static_cast<int32_t>(prompt_tokens);
  header.parts = static_cast<FrameParts>(parts);
  header.fidelity = static_cast<Fidelity>(fidelity);
  return header;
}

struct FrameCodec::Impl {
  PipelineSpec pipeline;
  ModelFacts model;
  std::shared_ptr<const SideInfo> side_info;
  Isa isa = Isa::kScalar;
  uint64_t profile_hash = 0;
  uint32_t pipeline_id = 0;
  std::unique_ptr<Selector> selector;
  StagedPart parts[2];

  [[nodiscard]] const StagedPart& part(kv::KvPart which) const {
    return parts[static_cast<size_t>(which)];
  }
  [[nodiscard]] bool lossy() const {
    return selector != nullptr || parts[0].lossy() || parts[1].lossy();
  }
  // Of a frame with these parts, from whose slots some are dropped or none.
  [[nodiscard]] Fidelity FidelityOf(FrameParts held, bool drops) const {
    const bool approximates = (Has(held, kv::KvPart::kKey) && parts[0].lossy()) ||
                              (Has(held, kv::KvPart::kValue) && parts[1].lossy());
    return drops ? Fidelity::kMasked : approximates ? Fidelity::kLossy : Fidelity::kExact;
  }

  // Kept ranges of every head of the frame.
  [[nodiscard]] std::vector<std::vector<TokenRange>> Kept(const KvRows& rows) const {
    const TokenRange all{rows.first_token, rows.first_token + rows.num_tokens};
    std::vector<std::vector<TokenRange>> kept(static_cast<size_t>(model.num_kv_heads), {all});
    if (selector != nullptr) {
      for (int32_t head = 0; head < model.num_kv_heads; ++head) {
        std::vector<TokenRange>& ranges = kept[static_cast<size_t>(head)];
        ranges.clear();
        selector->Kept(rows.layer, head, all.first, all.end, rows.prompt_tokens, ranges);
      }
    }
    return kept;
  }

  // The context of the first stage; workspace.positions[i] are the positions of stage i.
  [[nodiscard]] TileContext Context(int32_t layer, kv::KvPart which, const Group& group,
                                    int32_t prompt_tokens, Workspace& workspace) const {
    const StagedPart& staged = part(which);
    std::vector<std::vector<int32_t>>& positions = workspace.positions;
    positions.resize(std::max(positions.size(), staged.transforms.size() + 1));
    positions[0].clear();
    for (const TokenRange& range : group.kept) {
      for (int32_t position = range.first; position < range.end; ++position) {
        positions[0].push_back(position);
      }
    }
    for (size_t i = 0; i < staged.transforms.size(); ++i) {
      positions[i + 1] = positions[i];
      staged.transforms[i]->DropPositions(positions[i + 1]);
    }
    TileContext context;
    context.model = &model;
    context.isa = isa;
    context.layer = layer;
    context.part = which;
    context.heads = group.heads;
    context.positions = positions[0];
    context.prompt_tokens = prompt_tokens;
    return context;
  }

  Result<void> EncodePart(const KvRows& rows, kv::KvPart which, const std::vector<Group>& groups,
                          Workspace& workspace, std::vector<std::byte>& out) const;
  static Result<void> EncodeGroup(TileContext context, const StagedPart& part, Workspace& workspace,
                                  ByteWriter& out);
  Result<std::vector<Group>> ReadGroups(const FrameHeader& header, ByteReader& reader) const;
  Result<void> DecodePart(const FrameHeader& header, kv::KvPart which,
                          const std::vector<Group>& groups, Workspace& workspace,
                          ByteReader& reader, const KvRowsOut& to) const;
  class FinishedRows;
  Result<void> DecodeGroup(TileContext context, const StagedPart& part, int32_t heads,
                           ByteReader& reader, Workspace& workspace, const RowsOut& out) const;
};

Result<void> FrameCodec::Impl::EncodeGroup(TileContext context, const StagedPart& part,
                                           Workspace& workspace, ByteWriter& out) {
  const auto append_side = [&] {
    out.Varint(workspace.side.size());
    out.Bytes(workspace.side);
    workspace.side.clear();
  };
  workspace.side.clear();
  ByteWriter side(workspace.side);
  for (size_t i = 0; i < part.transforms.size(); ++i) {
    KVIK_TRY(part.transforms[i]->Forward(context, workspace.tile, side));
    append_side();
    context.positions = workspace.positions[i + 1];
  }
  workspace.planes.Clear();
  KVIK_TRY(part.quantizer->Quantize(context, workspace.tile, workspace.planes, side));
  append_side();
  workspace.payload.clear();
  ByteWriter payload(workspace.payload);
  KVIK_TRY(part.coder->Encode(context, workspace.planes, payload));
  out.Varint(workspace.payload.size());
  out.Bytes(workspace.payload);
  return {};
}

Result<void> FrameCodec::Impl::EncodePart(const KvRows& rows, kv::KvPart which,
                                          const std::vector<Group>& groups, Workspace& workspace,
                                          std::vector<std::byte>& out) const {
  const StagedPart& staged = part(which);
  const Bf16* const source = which == kv::KvPart::kKey ? rows.keys : rows.values;
  const auto dim = static_cast<size_t>(model.head_dim);
  const auto row_of = [&](int32_t head, int32_t position) {
    return source + static_cast<size_t>(head) * rows.head_stride +
           static_cast<size_t>(position - rows.first_token) * dim;
  };

  const RowsKernels& kernels = RowsKernelsOf(isa);
  // Exact pipelines only take NaNs out: on the way through float32 a signalling one turns quiet.
  const float limit = staged.lossy() ? kLargestValue : std::numeric_limits<float>::infinity();
  size_t kept_values = 0;
  workspace.exceptions.clear();
  for (const Group& group : groups) {
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
    for (const Group& group : groups) {
      const auto num_rows = static_cast<int32_t>(TokensIn(group.kept));
      if (num_rows == 0) {
        continue;
      }
      Tile& tile = workspace.tile;
      tile.Resize(static_cast<int32_t>(group.heads.size()), num_rows, model.head_dim);
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
      const TileContext context = Context(rows.layer, which, group, rows.prompt_tokens, workspace);
      const Result<void> done = EncodeGroup(context, staged, workspace, writer);
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
    for (const Group& group : groups) {
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

Result<std::vector<Group>> FrameCodec::Impl::ReadGroups(const FrameHeader& header,
                                                        ByteReader& reader) const {
  const TokenRange all{header.first_token, header.first_token + header.num_tokens};
  std::vector<std::vector<TokenRange>> kept(static_cast<size_t>(header.num_heads), {all});
  if (selector != nullptr) {
    for (std::vector<TokenRange>& ranges : kept) {
      ranges.clear();
      KVIK_ASSIGN(const uint64_t count, reader.Varint());
      if (count > static_cast<uint64_t>(header.num_tokens)) {
        return Err(ErrorCode::kCorrupt, "a head keeps %llu ranges of %d tokens",
                   static_cast<unsigned long long>(count), header.num_tokens);
      }
      int64_t at = all.first;
      for (uint64_t i = 0; i < count; ++i) {
        KVIK_ASSIGN(const uint64_t gap, reader.Varint());
        KVIK_ASSIGN(const uint64_t length_less_one, reader.Varint());
        const int64_t left = all.end - at;
        if (gap >= static_cast<uint64_t>(left) || (i > 0 && gap == 0) ||
            length_less_one >= static_cast<uint64_t>(left) - gap) {
          return Err(ErrorCode::kCorrupt, "a kept range leaves the frame's tokens [%d, %d)",
                     all.first, all.end);
        }
        const auto first = static_cast<int32_t>(at + static_cast<int64_t>(gap));
        const auto end = static_cast<int32_t>(first + 1 + static_cast<int64_t>(length_less_one));
        ranges.push_back({first, end});
        at = end;
      }
    }
  }
  return GroupHeads(std::move(kept));
}

// Finishes rows as the quantizer hands them out, while they are in the first-level cache: inverse
// transforms that work by rows, then rounding to where they belong.
class FrameCodec::Impl::FinishedRows final : public RowTarget {
 public:
  FinishedRows(const TileContext& context, const StagedPart& part, Workspace& workspace,
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
    for (size_t i = part_.transforms.size(); i-- > 0;) {
      ByteReader nothing({});
      KVIK_TRY(part_.transforms[i]->Inverse(context, workspace_.tile, nothing));
    }
    out_.Write(context, workspace_.tile);
    return {};
  }

 private:
  const TileContext& context_;
  const StagedPart& part_;
  Workspace& workspace_;
  const RowsOut& out_;
  int32_t channels_;  // of the rows that the quantizer gives
};

Result<void> FrameCodec::Impl::DecodeGroup(TileContext context, const StagedPart& part,
                                           int32_t heads, ByteReader& reader, Workspace& workspace,
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
      {static_cast<int32_t>(context.positions.size()), model.head_dim}};
  bool by_rows = part.quantizer->dequantizes_runs();
  for (const auto& transform : part.transforms) {
    KVIK_ASSIGN(ByteReader side, read_side());
    sides.push_back(side);
    shapes.push_back(transform->Output(shapes.back()));
    by_rows = by_rows && transform->by_rows() && side.left() == 0;
  }
  KVIK_ASSIGN(ByteReader side, read_side());
  const TileContext first_context = context;
  context.positions = workspace.positions[part.transforms.size()];
  Tile shape;
  shape.heads = heads;
  shape.rows = shapes.back().rows;
  shape.channels = shapes.back().channels;
  workspace.planes.Clear();
  KVIK_TRY(part.quantizer->Layout(context, shape, side, workspace.planes));
  KVIK_ASSIGN(const uint64_t payload_bytes, reader.Varint());
  if (payload_bytes > reader.left()) {
    return Err(ErrorCode::kCorrupt, "%llu bytes of symbols, %zu are left",
               static_cast<unsigned long long>(payload_bytes), reader.left());
  }
  KVIK_ASSIGN(const auto payload, reader.Bytes(payload_bytes));
  KVIK_TRY(part.coder->Decode(context, payload, workspace.planes));
  const auto finish_quantizer = [&]() -> Result<void> {
    if (side.left() != 0) {
      return Err(ErrorCode::kCorrupt, "%zu bytes of the quantizer are left over", side.left());
    }
    return {};
  };
  if (by_rows) {
    FinishedRows rows(first_context, part, workspace, out, shape.channels);
    KVIK_TRY(part.quantizer->DequantizeRuns(context, workspace.planes, side, shape, rows));
    return finish_quantizer();
  }
  Tile& tile = workspace.tile;
  tile.Resize(shape.heads, shape.rows, shape.channels);
  KVIK_TRY(part.quantizer->Dequantize(context, workspace.planes, side, tile));
  KVIK_TRY(finish_quantizer());
  for (size_t i = part.transforms.size(); i-- > 0;) {
    context.positions = workspace.positions[i];
    KVIK_TRY(part.transforms[i]->Inverse(context, tile, sides[i]));
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

Result<void> FrameCodec::Impl::DecodePart(const FrameHeader& header, kv::KvPart which,
                                          const std::vector<Group>& groups, Workspace& workspace,
                                          ByteReader& reader, const KvRowsOut& to) const {
  const auto dim = static_cast<size_t>(header.head_dim);
  const auto values_a_head = static_cast<size_t>(header.num_tokens) * dim;
  Bf16* const out = which == kv::KvPart::kKey ? to.keys : to.values;
  const size_t head_stride = to.head_stride;
  const auto row_of = [&](int32_t head, int32_t position) {
    return out + static_cast<size_t>(head) * head_stride +
           static_cast<size_t>(position - header.first_token) * dim;
  };
  const RowsOut rows_out{RowsKernelsOf(isa), header.first_token, dim, to.head_stride, out,
                         to.streaming};
  KVIK_ASSIGN(const uint8_t form, reader.U8());
  if (form != kCoded && form != kStored) {
    return Err(ErrorCode::kCorrupt, "a part of form %u", form);
  }
  if (out != nullptr && selector != nullptr) {
    for (int32_t head = 0; head < header.num_heads; ++head) {
      std::fill_n(row_of(head, header.first_token), values_a_head, Bf16{});
    }
  }
  if (form == kStored) {
    for (const Group& group : groups) {
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
  std::vector<const std::vector<TokenRange>*> kept_of_head(static_cast<size_t>(header.num_heads));
  for (const Group& group : groups) {
    for (const int32_t head : group.heads) {
      kept_of_head[static_cast<size_t>(head)] = &group.kept;
    }
  }
  const auto is_kept = [&](size_t index) {
    const auto position = header.first_token + static_cast<int32_t>(index % values_a_head / dim);
    const std::vector<TokenRange>& kept = *kept_of_head[index / values_a_head];
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
  for (const Group& group : groups) {
    if (group.kept.empty()) {
      continue;
    }
    const TileContext context =
        Context(header.layer, which, group, header.prompt_tokens, workspace);
    KVIK_TRY(DecodeGroup(context, part(which), static_cast<int32_t>(group.heads.size()), reader,
                         workspace, rows_out));
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

FrameCodec::FrameCodec(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FrameCodec::~FrameCodec() = default;

Result<std::unique_ptr<FrameCodec>> FrameCodec::Create(const PipelineSpec& pipeline,
                                                       const ModelFacts& model,
                                                       std::shared_ptr<const SideInfo> side_info,
                                                       Isa isa) {
  constexpr int32_t kMax = 0xFFFF;
  if (model.num_layers <= 0 || model.num_layers > kMax || model.num_kv_heads <= 0 ||
      model.num_kv_heads > kMax || model.head_dim <= 0 || model.head_dim > 4096) {
    return Err(ErrorCode::kInvalidInput, "a model of %d layers, %d kv heads of %d channels",
               model.num_layers, model.num_kv_heads, model.head_dim);
  }
  auto impl = std::make_unique<Impl>();
  impl->pipeline = pipeline;
  impl->model = model;
  impl->side_info = std::move(side_info);
  impl->isa = isa;
  impl->pipeline_id = static_cast<uint32_t>(pipeline.Hash());
  std::set<std::string, std::less<>> used;
  if (pipeline.selector.module != nullptr) {
    StageSite site;
    site.model = &impl->model;
    site.side_info = impl->side_info.get();
    site.used = &used;
    site.channels = model.head_dim;
    KVIK_ASSIGN(impl->selector,
                pipeline.selector.module->make_selector(pipeline.selector.args, site));
  }
  for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    KVIK_ASSIGN(impl->parts[static_cast<size_t>(which)],
                MakePart(pipeline.part(which), which, impl->model, impl->side_info.get(), used));
  }
  impl->profile_hash = HashProfile(pipeline, impl->side_info.get(), used);
  return std::unique_ptr<FrameCodec>(new FrameCodec(std::move(impl)));
}

const PipelineSpec& FrameCodec::pipeline() const { return impl_->pipeline; }
const ModelFacts& FrameCodec::model() const { return impl_->model; }
uint64_t FrameCodec::profile_hash() const { return impl_->profile_hash; }
bool FrameCodec::lossy() const { return impl_->lossy(); }

Result<size_t> FrameCodec::Encode(const KvRows& rows, FrameParts parts, Workspace& workspace,
                                  std::vector<std::byte>& out) const {
  const ModelFacts& model = impl_->model;
  if (rows.layer < 0 || rows.layer >= model.num_layers) {
    return Err(ErrorCode::kInvalidInput, "layer %d of a model of %d", rows.layer, model.num_layers);
  }
  if (rows.num_tokens < 1 || rows.num_tokens > kMaxFrameTokens || rows.first_token < 0 ||
      rows.first_token > INT32_MAX - rows.num_tokens || rows.prompt_tokens < 0) {
    return Err(ErrorCode::kInvalidInput,
               "tokens [%d, +%d) of a prompt of %d; a frame holds 1 to %d", rows.first_token,
               rows.num_tokens, rows.prompt_tokens, kMaxFrameTokens);
  }
  if (static_cast<size_t>(rows.num_tokens) * static_cast<size_t>(model.head_dim) *
          static_cast<size_t>(model.num_kv_heads) >
      size_t{1} << 28) {
    return Err(ErrorCode::kInvalidInput, "%d tokens are more than a frame holds", rows.num_tokens);
  }
  if ((Has(parts, kv::KvPart::kKey) && rows.keys == nullptr) ||
      (Has(parts, kv::KvPart::kValue) && rows.values == nullptr)) {
    return Err(ErrorCode::kInvalidInput, "the rows of a part that the frame holds are missing");
  }
  std::vector<std::vector<TokenRange>> kept = impl_->Kept(rows);
  const bool drops = std::any_of(kept.begin(), kept.end(), [&](const auto& ranges) {
    return TokensIn(ranges) != static_cast<size_t>(rows.num_tokens);
  });
  FrameHeader header;
  header.model_fingerprint = model.fingerprint;
  header.profile_hash = impl_->profile_hash;
  header.pipeline_id = impl_->pipeline_id;
  header.layer = rows.layer;
  header.parts = parts;
  header.first_token = rows.first_token;
  header.num_tokens = rows.num_tokens;
  header.prompt_tokens = rows.prompt_tokens;
  header.num_heads = model.num_kv_heads;
  header.head_dim = model.head_dim;
  header.fidelity = impl_->FidelityOf(parts, drops);
  const size_t first_byte = out.size();
  AppendHeader(header, out);
  if (impl_->selector != nullptr) {
    ByteWriter writer(out);
    for (const std::vector<TokenRange>& ranges : kept) {
      writer.Varint(ranges.size());
      int32_t at = rows.first_token;
      for (const TokenRange& range : ranges) {
        writer.Varint(static_cast<uint64_t>(range.first - at));
        writer.Varint(static_cast<uint64_t>(range.end - range.first - 1));
        at = range.end;
      }
    }
  }
  const std::vector<Group> groups = GroupHeads(std::move(kept));
  for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    if (Has(parts, which)) {
      const Result<void> done = impl_->EncodePart(rows, which, groups, workspace, out);
      if (!done) {
        out.resize(first_byte);
        return done.error();
      }
    }
  }
  const size_t payload = out.size() - first_byte - kHeaderBytes;
  if (payload > UINT32_MAX) {
    out.resize(first_byte);
    return Err(ErrorCode::kInvalidInput, "%zu bytes are more than a frame holds", payload);
  }
  const auto payload_bytes = static_cast<uint32_t>(payload);
  std::memcpy(out.data() + first_byte + 28, &payload_bytes, sizeof(payload_bytes));
  const uint32_t crc = Crc32c(std::span(out).subspan(first_byte + kCrcEnd));
  std::memcpy(out.data() + first_byte + kCrcOffset, &crc, sizeof(crc));
  return out.size() - first_byte;
}

Result<DecodedFrame> FrameCodec::Decode(std::span<const std::byte> bytes, Workspace& workspace,
                                        const KvRowsOut& out) const {
  KVIK_ASSIGN(const FrameHeader header, ReadFrameHeader(bytes));
  const ModelFacts& model = impl_->model;
  if (header.model_fingerprint != model.fingerprint) {
    return Err(ErrorCode::kInvalidInput, "a frame of model %016llx, not of %016llx (%s)",
               static_cast<unsigned long long>(header.model_fingerprint),
               static_cast<unsigned long long>(model.fingerprint), model.name.c_str());
  }
  if (header.profile_hash != impl_->profile_hash) {
    return Err(ErrorCode::kInvalidInput, "a frame of profile %016llx, not of %016llx%s",
               static_cast<unsigned long long>(header.profile_hash),
               static_cast<unsigned long long>(impl_->profile_hash),
               header.pipeline_id == impl_->pipeline_id
                   ? ": the same pipeline with another calibration"
                   : "");
  }
  if (header.layer >= model.num_layers || header.first_head != 0 ||
      header.num_heads != model.num_kv_heads || header.head_dim != model.head_dim) {
    return Err(ErrorCode::kCorrupt,
               "layer %d, heads [%d, +%d) of %d channels do not lie in the model", header.layer,
               header.first_head, header.num_heads, header.head_dim);
  }
  if (header.num_tokens != out.num_tokens || header.num_heads != out.num_heads) {
    return Err(ErrorCode::kInvalidInput, "a frame of %d tokens and %d heads; %d and %d are wanted",
               header.num_tokens, header.num_heads, out.num_tokens, out.num_heads);
  }
  ByteReader reader(bytes.subspan(header.header_bytes, header.payload_bytes));
  KVIK_ASSIGN(const std::vector<Group> groups, impl_->ReadGroups(header, reader));
  const bool drops = std::any_of(groups.begin(), groups.end(), [&](const Group& group) {
    return TokensIn(group.kept) != static_cast<size_t>(header.num_tokens);
  });
  if (header.fidelity != impl_->FidelityOf(header.parts, drops)) {
    return Err(ErrorCode::kCorrupt, "a frame that %s slots of a %s pipeline says fidelity %u",
               drops ? "drops" : "keeps all", impl_->lossy() ? "lossy" : "lossless",
               static_cast<unsigned>(header.fidelity));
  }
  for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    if (Has(header.parts, which)) {
      KVIK_TRY(impl_->DecodePart(header, which, groups, workspace, reader, out));
    }
  }
  if (reader.left() != 0) {
    return Err(ErrorCode::kCorrupt, "%zu bytes of payload are left over", reader.left());
  }

  DecodedFrame decoded;
  decoded.header = header;
  for (int32_t head = 0; head < header.num_heads && impl_->selector != nullptr; ++head) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return std::find(g.heads.begin(), g.heads.end(), head) != g.heads.end();
    });
    int32_t at = header.first_token;
    for (const TokenRange& range : group->kept) {
      if (range.first > at) {
        decoded.dropped.push_back({head, at, range.first});
      }
      at = range.end;
    }
    if (at < header.first_token + header.num_tokens) {
      decoded.dropped.push_back({head, at, header.first_token + header.num_tokens});
    }
  }
  return decoded;
}

}  // namespace kvik::codec
