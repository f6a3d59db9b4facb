// SPDX-License-Identifier: Apache-2.0
// A frame is a header (frame_header.h), which slots are kept when the pipeline has a selector
// (kept_slots.h), then a part for the keys and one for the values, those that it holds
// (part_codec.h).
#include "codec/frame.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/sha256.h"
#include "codec/byte_stream.h"
#include "codec/kept_slots.h"
#include "codec/part_codec.h"
#include "codec/registry.h"
#include "codec/stage.h"

namespace kvik::codec {
namespace {

constexpr std::array<kv::KvPart, 2> kParts = {kv::KvPart::kKey, kv::KvPart::kValue};

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

TokenRange TokensOf(const FrameHeader& header) {
  return {header.first_token, header.first_token + header.num_tokens};
}

bool Drops(std::span<const HeadGroup> groups, int32_t num_tokens) {
  return std::any_of(groups.begin(), groups.end(), [&](const HeadGroup& group) {
    return TokensIn(group.kept) != static_cast<size_t>(num_tokens);
  });
}

}  // namespace

struct FrameCodec::Impl {
  PipelineSpec pipeline;
  ModelFacts model;
  std::shared_ptr<const SideInfo> side_info;
  uint64_t profile_hash = 0;
  uint32_t pipeline_id = 0;
  std::unique_ptr<Selector> selector;
  std::vector<PartCodec> parts;  // keys, values

  [[nodiscard]] const PartCodec& part(kv::KvPart which) const {
    return parts[static_cast<size_t>(which)];
  }
  [[nodiscard]] bool lossy() const {
    return selector != nullptr || parts[0].lossy() || parts[1].lossy();
  }
  // Of a frame with these parts, from whose slots some are dropped or none.
  [[nodiscard]] Fidelity FidelityOf(FrameParts held, bool drops) const {
    const bool approximates = std::any_of(kParts.begin(), kParts.end(), [&](kv::KvPart which) {
      return Has(held, which) && part(which).lossy();
    });
    return drops ? Fidelity::kMasked : approximates ? Fidelity::kLossy : Fidelity::kExact;
  }
  // Kept ranges of every head of a frame: as the selector chooses, and as a frame says.
  [[nodiscard]] std::vector<KeptRanges> Kept(const FrameHeader& header) const {
    const TokenRange all = TokensOf(header);
    if (selector == nullptr) {
      return std::vector<KeptRanges>(static_cast<size_t>(header.num_heads), {all});
    }
    std::vector<KeptRanges> kept(static_cast<size_t>(header.num_heads));
    for (int32_t head = 0; head < header.num_heads; ++head) {
      selector->Kept(header.layer, head, all.first, all.end, header.prompt_tokens,
                     kept[static_cast<size_t>(head)]);
    }
    return kept;
  }
  [[nodiscard]] Result<std::vector<KeptRanges>> ReadKept(const FrameHeader& header,
                                                         ByteReader& reader) const {
    const auto heads = static_cast<size_t>(header.num_heads);
    if (selector == nullptr) {
      return std::vector<KeptRanges>(heads, {TokensOf(header)});
    }
    return ReadKeptRanges(heads, TokensOf(header), reader);
  }
};

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
  for (const kv::KvPart which : kParts) {
    KVIK_ASSIGN(PartCodec part, PartCodec::Make(pipeline.part(which), which, impl->model,
                                                impl->side_info.get(), isa, used));
    impl->parts.push_back(std::move(part));
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
  const std::vector<KeptRanges> kept = impl_->Kept(header);
  const std::vector<HeadGroup> groups = GroupHeads(kept);
  header.fidelity = impl_->FidelityOf(parts, Drops(groups, rows.num_tokens));
  const size_t first_byte = out.size();
  AppendFrameHeader(header, out);
  if (impl_->selector != nullptr) {
    ByteWriter writer(out);
    WriteKeptRanges(kept, TokensOf(header), writer);
  }
  for (const kv::KvPart which : kParts) {
    if (Has(parts, which)) {
      const Result<void> done = impl_->part(which).Encode(rows, groups, workspace, out);
      if (!done) {
        out.resize(first_byte);
        return done.error();
      }
    }
  }
  SealFrame(std::span(out).subspan(first_byte));
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
  ByteReader reader(bytes.subspan(kFrameHeaderBytes, header.payload_bytes));
  KVIK_ASSIGN(const std::vector<KeptRanges> kept, impl_->ReadKept(header, reader));
  const std::vector<HeadGroup> groups = GroupHeads(kept);
  const bool drops = Drops(groups, header.num_tokens);
  if (header.fidelity != impl_->FidelityOf(header.parts, drops)) {
    return Err(ErrorCode::kCorrupt, "a frame that %s slots of a %s pipeline says fidelity %u",
               drops ? "drops" : "keeps all", impl_->lossy() ? "lossy" : "lossless",
               static_cast<unsigned>(header.fidelity));
  }
  for (const kv::KvPart which : kParts) {
    if (Has(header.parts, which)) {
      KVIK_TRY(impl_->part(which).Decode(header, groups, workspace, reader, out));
    }
  }
  if (reader.left() != 0) {
    return Err(ErrorCode::kCorrupt, "%zu bytes of payload are left over", reader.left());
  }

  DecodedFrame decoded;
  decoded.header = header;
  for (int32_t head = 0; drops && head < header.num_heads; ++head) {
    int32_t at = header.first_token;
    for (const TokenRange& range : kept[static_cast<size_t>(head)]) {
      if (range.first > at) {
        decoded.dropped.push_back({head, at, range.first});
      }
      at = range.end;
    }
    if (at < TokensOf(header).end) {
      decoded.dropped.push_back({head, at, TokensOf(header).end});
    }
  }
  return decoded;
}

}  // namespace kvik::codec
