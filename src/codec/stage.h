// SPDX-License-Identifier: Apache-2.0
// codec/stage.h: the kinds of stages of a pipeline and how they describe themselves.
//
//   bf16 rows -> [Selector] -> Transform* -> Quantizer -> EntropyCoder -> bytes
//
// A stage is made once for a model and then only read: its methods are const and thread-safe.
// Whatever a decoder cannot know (scales, offsets, tables of a frame) goes through `side`: each
// stage has its own, and its bytes are counted like all others. A stage's bytes and values do not
// depend on the ISA, on threads or on earlier calls.
//
// A new stage is one file in codec/stages/ that defines a StageModule, see codec/registry.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/byte_stream.h"
#include "codec/stage_args.h"
#include "codec/tile.h"

namespace kvik::codec {

struct PipelineSpec;
struct SideTensor;
class SideInfo;

// Positions [first, end).
struct TokenRange {
  int32_t first = 0;
  int32_t end = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// Where a stage stands: what it may look up when it is made.
struct StageSite {
  const ModelFacts* model = nullptr;
  const SideInfo* side_info = nullptr;  // null: nothing is calibrated
  // Unless null, gets the names of the tensors that the stage looked up: a frame's profile hash
  // covers these and no other ones. Stages therefore look tensors up below, not in `side_info`.
  std::set<std::string, std::less<>>* used = nullptr;
  kv::KvPart part = kv::KvPart::kKey;
  // Of the tiles that reach this stage: head_dim unless a transform before it changes them
  // (Transform::Output).
  int32_t channels = 0;
  // Name of this stage's calibrated tensors: "<stage>/<k|v>/<transforms before it>", see
  // side_info.h.
  std::string side_key;

  // Null: there is no such tensor.
  [[nodiscard]] const SideTensor* Find(std::string_view name) const;
  // kUnsupported when it is missing or has another shape; the message names it.
  [[nodiscard]] Result<const SideTensor*> Need(std::string_view name,
                                               std::span<const int32_t> shape) const;
};

// Which slots are kept at all. Stands first among the transforms, alike for keys and values.
class Selector {
 public:
  virtual ~Selector() = default;
  // Ranges of positions that kv head `head` of `layer` keeps, ascending, disjoint, not empty,
  // within [first_token, end_token). They depend on nothing but the arguments, so a decoder knows
  // them.
  virtual void Kept(int32_t layer, int32_t head, int32_t first_token, int32_t end_token,
                    int32_t prompt_tokens, std::vector<TokenRange>& kept) const = 0;
};

// Input is finite: what is not has been taken out of the rows before (frame.h).
class Transform {
 public:
  virtual ~Transform() = default;
  // In place. May change rows and channels of the tile. kUnsupported: these values cannot be
  // represented (the caller stores them another way).
  virtual Result<void> Forward(const TileContext& context, Tile& tile, ByteWriter& side) const = 0;
  // The reverse; on entry the tile has the shape that Forward left. `side` is not trusted:
  // kCorrupt.
  virtual Result<void> Inverse(const TileContext& context, Tile& tile, ByteReader& side) const = 0;
  // The shape [rows, channels] that Forward makes of [rows, channels]. Decoders size their tiles by
  // it.
  struct Shape {
    int32_t rows = 0;
    int32_t channels = 0;
  };
  [[nodiscard]] virtual Shape Output(Shape input) const { return input; }
  // Whether a row of one head is transformed and comes back the same alone (with its position in
  // the context) as among others, and without bytes in `side`.
  [[nodiscard]] virtual bool by_rows() const { return false; }
  // Takes out of `positions` [input rows] those of rows that Forward takes out of the tile: the
  // stages after this one, in both directions, have a context with the rest.
  virtual void DropPositions(std::vector<int32_t>& /*positions*/) const {}
};

// Where decoded rows go. Room and Done come in pairs, for runs of rows [first_row, first_row + n)
// of one head that together are the tile, each row once.
class RowTarget {
 public:
  virtual ~RowTarget() = default;
  // [n, channels], valid until Done.
  virtual float* Room(int32_t head, int32_t first_row, int32_t n) = 0;
  virtual Result<void> Done(int32_t head, int32_t first_row, int32_t n) = 0;
};

class Quantizer {
 public:
  virtual ~Quantizer() = default;
  // Appends planes. kUnsupported as above.
  virtual Result<void> Quantize(const TileContext& context, const Tile& tile, SymbolPlanes& planes,
                                ByteWriter& side) const = 0;
  // Decoding is two calls with the same reader: Layout reads `side` as far as the sizes and
  // alphabets of the planes depend on it and adds the planes, then the coder fills them, then
  // Dequantize reads the rest and writes the tile (its shape is set by the caller).
  virtual Result<void> Layout(const TileContext& context, const Tile& shape, ByteReader& side,
                              SymbolPlanes& planes) const = 0;
  virtual Result<void> Dequantize(const TileContext& context, const SymbolPlanes& planes,
                                  ByteReader& side, Tile& tile) const = 0;
  // Whether DequantizeRuns is there: Dequantize in pieces that can be worked on while they are in
  // the first-level cache.
  [[nodiscard]] virtual bool dequantizes_runs() const { return false; }
  // As Dequantize, for a tile of the given shape. REQUIRES: dequantizes_runs().
  virtual Result<void> DequantizeRuns(const TileContext& /*context*/,
                                      const SymbolPlanes& /*planes*/, ByteReader& /*side*/,
                                      const Tile& /*shape*/, RowTarget& /*target*/) const {
    return Err(ErrorCode::kInternal, "this quantizer decodes whole tiles");
  }
  // False: values come back as the same bf16, bit for bit.
  [[nodiscard]] virtual bool lossy() const { return true; }
};

class EntropyCoder {
 public:
  virtual ~EntropyCoder() = default;
  virtual Result<void> Encode(const TileContext& context, const SymbolPlanes& planes,
                              ByteWriter& out) const = 0;
  // Fills the symbols of `planes` (sizes and alphabets are set) from exactly `in`. Every symbol is
  // checked to be below its alphabet. kCorrupt otherwise.
  virtual Result<void> Decode(const TileContext& context, std::span<const std::byte> in,
                              SymbolPlanes& planes) const = 0;
};

enum class StageKind { kSelector, kTransform, kQuantizer, kCoder };

// What a stage is, for the parser, for help texts and for a search that enumerates the space.
struct StageModule {
  StageKind kind = StageKind::kTransform;
  std::string name;     // as in pipeline strings
  std::string summary;  // one line
  std::vector<ParamSpec> params;

  // Exactly one, that of the kind. kInvalidInput: arguments that do not fit the model (head_dim,
  // ...). kUnsupported: a calibrated tensor is missing; the message names it.
  Result<std::unique_ptr<Selector>> (*make_selector)(const StageArgs&, const StageSite&) = nullptr;
  Result<std::unique_ptr<Transform>> (*make_transform)(const StageArgs&,
                                                       const StageSite&) = nullptr;
  Result<std::unique_ptr<Quantizer>> (*make_quantizer)(const StageArgs&,
                                                       const StageSite&) = nullptr;
  Result<std::unique_ptr<EntropyCoder>> (*make_coder)(const StageArgs&, const StageSite&) = nullptr;

  // Why this stage cannot stand at `index` of the transforms (or as selector, quantizer or coder)
  // of this part of a pipeline, or nothing. Null: it can stand anywhere.
  std::optional<std::string> (*refuse)(const StageArgs& args, const PipelineSpec& pipeline,
                                       kv::KvPart part, size_t index) = nullptr;
  // Names of the calibrated tensors it cannot do without, appended to side_key; for calibration.
  std::vector<std::string> needs;
};

}  // namespace kvik::codec
