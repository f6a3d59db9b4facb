// SPDX-License-Identifier: Apache-2.0
// codec/tile.h: the piece of KV that the stages of a pipeline work on, and what they may know of
// it.
//
// A tile holds the keys or the values of one layer, of some kv heads, at some positions. All stages
// see float32; what enters and leaves a pipeline is bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/isa.h"
#include "codec/model_facts.h"
#include "kv/geometry.h"

namespace kvik::codec {

// Borrowed for one call.
struct TileContext {
  const ModelFacts* model = nullptr;
  Isa isa = Isa::kScalar;  // results are the same bits on every one
  int32_t layer = 0;
  kv::KvPart part = kv::KvPart::kKey;
  std::span<const int32_t> heads;  // kv heads of the model, ascending, [tile heads]
  // Positions of the tile's rows, ascending, [rows].
  std::span<const int32_t> positions;
  // Tokens of the prompt the rows belong to, where that is known when the frame is written (the
  // most recent ones are counted from there); 0: not known, no row counts as recent.
  int32_t prompt_tokens = 0;
};

// [heads, rows, channels] float32, channels innermost. Channels are head_dim unless a transform
// says otherwise.
struct Tile {
  int32_t heads = 0;
  int32_t rows = 0;
  int32_t channels = 0;
  std::vector<float> values;  // at least size(); what lies beyond is scratch

  [[nodiscard]] size_t size() const {
    return static_cast<size_t>(heads) * static_cast<size_t>(rows) * static_cast<size_t>(channels);
  }
  // [rows, channels] of one of the tile's heads (an index, not the model's number of it).
  [[nodiscard]] std::span<float> Head(int32_t head) {
    return {values.data() + Offset(head), Page()};
  }
  [[nodiscard]] std::span<const float> Head(int32_t head) const {
    return {values.data() + Offset(head), Page()};
  }
  // n values beyond the tile's own, of any content. Valid, like all views, until values grow.
  [[nodiscard]] std::span<float> Scratch(size_t n) {
    if (values.size() < size() + n) {
      values.resize(size() + n);
    }
    return {values.data() + size(), n};
  }
  void Resize(int32_t new_heads, int32_t new_rows, int32_t new_channels) {
    heads = new_heads;
    rows = new_rows;
    channels = new_channels;
    if (values.size() < size()) {
      values.resize(size());
    }
  }

 private:
  [[nodiscard]] size_t Page() const {
    return static_cast<size_t>(rows) * static_cast<size_t>(channels);
  }
  [[nodiscard]] size_t Offset(int32_t head) const { return static_cast<size_t>(head) * Page(); }
};

// One run of symbols with a common distribution.
struct SymbolPlane {
  int32_t alphabet = 2;  // symbols are in [0, alphabet), 2..256
  // Which of the calibrated tables describes them (side_info.h); a quantizer numbers its own.
  int32_t context = 0;
  bool uniform = false;  // nothing to gain from their distribution: coders may just pack them
  std::vector<uint8_t> symbols;
};

// What a quantizer makes of a tile. Reused from call to call: planes beyond `count` are spare.
struct SymbolPlanes {
  std::vector<SymbolPlane> planes;
  size_t count = 0;

  void Clear() { count = 0; }
  // The next plane, its symbols resized to n (their values are left over) and the rest reset.
  SymbolPlane& Add(int32_t alphabet, int32_t context, size_t n) {
    if (count == planes.size()) {
      planes.emplace_back();
    }
    SymbolPlane& plane = planes[count++];
    plane.alphabet = alphabet;
    plane.context = context;
    plane.uniform = false;
    plane.symbols.resize(n);
    return plane;
  }
  [[nodiscard]] std::span<SymbolPlane> used() { return {planes.data(), count}; }
  [[nodiscard]] std::span<const SymbolPlane> used() const { return {planes.data(), count}; }
};

}  // namespace kvik::codec
