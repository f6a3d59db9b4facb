// SPDX-License-Identifier: Apache-2.0
// codec/part_codec.h: the keys or the values of a frame as bytes, and back: what
// docs/wire-format.md calls a part. frame.h puts header, kept ranges and parts together.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/isa.h"
#include "base/result.h"
#include "codec/byte_stream.h"
#include "codec/frame.h"
#include "codec/kept_slots.h"
#include "codec/stage.h"

namespace kvik::codec {

// The stages of one part, made ready for one model. Immutable, as FrameCodec.
class PartCodec {
 public:
  // `model` outlives the codec; of `side_info` only the making needs to be. Adds the names of the
  // tensors that stages look up to `used`. Fails as the makers of StageModule.
  static Result<PartCodec> Make(const PartSpec& spec, kv::KvPart which, const ModelFacts& model,
                                const SideInfo* side_info, Isa isa,
                                std::set<std::string, std::less<>>& used);

  [[nodiscard]] bool lossy() const { return !transforms_.empty() || quantizer_->lossy(); }

  // Appends the part of `rows`, whose heads keep the slots of `groups`, to `out`. REQUIRES: rows
  // that FrameCodec::Encode takes.
  Result<void> Encode(const KvRows& rows, std::span<const HeadGroup> groups, Workspace& workspace,
                      std::vector<std::byte>& out) const;

  // Decodes the part that `reader` stands at. kCorrupt: it contradicts itself or the header.
  // REQUIRES: a header of this model, with as many tokens and heads as `to` has room for.
  Result<void> Decode(const FrameHeader& header, std::span<const HeadGroup> groups,
                      Workspace& workspace, ByteReader& reader, const KvRowsOut& to) const;

 private:
  struct RowsOut;
  class FinishedRows;

  PartCodec(kv::KvPart which, const ModelFacts& model, Isa isa)
      : which_(which), model_(&model), isa_(isa) {}
  // The context of the first stage; workspace.positions[i] are the positions of stage i.
  [[nodiscard]] TileContext Context(int32_t layer, const HeadGroup& group, int32_t prompt_tokens,
                                    Workspace& workspace) const;
  Result<void> EncodeGroup(TileContext context, Workspace& workspace, ByteWriter& out) const;
  Result<void> DecodeGroup(TileContext context, ByteReader& reader, Workspace& workspace,
                           const RowsOut& out) const;

  kv::KvPart which_;
  const ModelFacts* model_;
  Isa isa_;
  std::vector<std::unique_ptr<Transform>> transforms_;
  std::unique_ptr<Quantizer> quantizer_;
  std::unique_ptr<EntropyCoder> coder_;
};

}  // namespace kvik::codec
