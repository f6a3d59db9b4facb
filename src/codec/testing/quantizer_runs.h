// SPDX-License-Identifier: Apache-2.0
// codec/testing/quantizer_runs.h: a quantizer on a tile, on every ISA, there and back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "codec/pipeline.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/testing/made_kv.h"

namespace kvik::codec::testing {

// A tile and what is around it.
struct QuantizerCase {
  ModelFacts model;
  int32_t layer = 0;
  kv::KvPart part = kv::KvPart::kKey;
  std::vector<int32_t> heads;
  std::vector<int32_t> positions;
  int32_t prompt_tokens = 0;
  Tile tile;
  std::shared_ptr<SideInfo> side_info = std::make_shared<SideInfo>();

  // All heads of a model of 12 layers, positions [0, rows), zeros.
  QuantizerCase(int32_t num_heads, int32_t rows, int32_t channels)
      : model(MadeModel(12, num_heads, channels)) {
    heads.resize(static_cast<size_t>(num_heads));
    std::iota(heads.begin(), heads.end(), 0);
    positions.resize(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), 0);
    tile.Resize(num_heads, rows, channels);
  }

  // Every value is fn(head, row, channel).
  void Fill(const std::function<float(int32_t, int32_t, int32_t)>& fn) {
    for (int32_t h = 0; h < tile.heads; ++h) {
      for (int32_t r = 0; r < tile.rows; ++r) {
        for (int32_t c = 0; c < tile.channels; ++c) {
          At(tile, h, r, c) = fn(h, r, c);
        }
      }
    }
  }
  // bf16 values of channels that differ in spread and position.
  void FillMade(uint64_t seed) {
    Rng rng(seed);
    std::vector<float> spread;
    std::vector<float> middle;
    for (int32_t c = 0; c < tile.heads * tile.channels; ++c) {
      spread.push_back(std::exp(Normal(rng)));
      middle.push_back(rng.Below(4) == 0 ? 20.0F * Normal(rng) : 0.0F);
    }
    Fill([&](int32_t h, int32_t /*r*/, int32_t c) {
      const auto i = static_cast<size_t>(h * tile.channels + c);
      return ToFloat(ToBf16(middle[i] + spread[i] * Normal(rng)));
    });
  }
  static float& At(Tile& tile, int32_t h, int32_t r, int32_t c) {
    return tile.Head(
        h)[static_cast<size_t>(r) * static_cast<size_t>(tile.channels) + static_cast<size_t>(c)];
  }
  static float At(const Tile& tile, int32_t h, int32_t r, int32_t c) {
    return tile.Head(
        h)[static_cast<size_t>(r) * static_cast<size_t>(tile.channels) + static_cast<size_t>(c)];
  }

  [[nodiscard]] TileContext Context(Isa isa) const {
    TileContext context;
    context.model = &model;
    context.isa = isa;
    context.layer = layer;
    context.part = part;
    context.heads = heads;
    context.positions = positions;
    context.prompt_tokens = prompt_tokens;
    return context;
  }

  [[nodiscard]] Result<std::unique_ptr<Quantizer>> Make(const std::string& text) const {
    KVIK_ASSIGN(const PipelineSpec pipeline, PipelineSpec::Parse("none -> " + text + " -> none"));
    const StageSpec& stage = pipeline.part(part).quantizer;
    StageSite site;
    site.model = &model;
    site.side_info = side_info.get();
    site.part = part;
    site.channels = tile.channels;
    site.side_key = SideKey(pipeline.part(part), part, 0);
    return stage.module->make_quantizer(stage.args, site);
  }
};

// What a quantizer made of a case.
struct QuantizerRun {
  SymbolPlanes planes;
  std::vector<std::byte> side;
  Tile decoded;

  // Bits a value when symbols cost as much as bit packing: log2 of their alphabet, rounded up.
  [[nodiscard]] double PackedBits() const {
    double bits = 8.0 * static_cast<double>(side.size());
    for (const SymbolPlane& plane : planes.used()) {
      const int width = std::bit_width(static_cast<unsigned>(plane.alphabet - 1));
      bits += width * static_cast<double>(plane.symbols.size());
    }
    return bits / static_cast<double>(decoded.size());
  }
};

// Decodes `symbols` and `side` into a tile of that shape filled with what must be overwritten.
inline Result<Tile> DecodeRun(const Quantizer& quantizer, const QuantizerCase& c, Isa isa,
                              const SymbolPlanes& symbols, std::span<const std::byte> side) {
  Tile tile;
  tile.Resize(c.tile.heads, c.tile.rows, c.tile.channels);
  std::fill(tile.values.begin(), tile.values.end(), -12345.0F);
  ByteReader reader(side);
  SymbolPlanes planes;
  KVIK_TRY(quantizer.Layout(c.Context(isa), tile, reader, planes));
  if (planes.count != symbols.count) {
    return Err(ErrorCode::kCorrupt, "%zu planes, not %zu", planes.count, symbols.count);
  }
  for (size_t i = 0; i < planes.count; ++i) {
    const SymbolPlane& from = symbols.planes[i];
    SymbolPlane& to = planes.planes[i];
    if (to.alphabet != from.alphabet || to.symbols.size() != from.symbols.size()) {
      return Err(ErrorCode::kCorrupt, "plane %zu has another shape", i);
    }
    EXPECT_EQ(to.context, from.context);
    EXPECT_EQ(to.uniform, from.uniform);
    to.symbols = from.symbols;
  }
  KVIK_TRY(quantizer.Dequantize(c.Context(isa), planes, reader, tile));
  if (reader.left() != 0) {
    return Err(ErrorCode::kCorrupt, "%zu bytes are left over", reader.left());
  }
  return tile;
}

// Runs `text` on every ISA, expects the same bytes and values of all, and returns them.
inline QuantizerRun RunQuantizer(const std::string& text, const QuantizerCase& c) {
  QuantizerRun first;
  const auto quantizer = c.Make(text);
  KVIK_CHECK(quantizer.has_value(), "%s", quantizer.error().message.c_str());
  for (const Isa isa : SupportedIsas()) {
    QuantizerRun run;
    ByteWriter side(run.side);
    const auto done = (*quantizer)->Quantize(c.Context(isa), c.tile, run.planes, side);
    KVIK_CHECK(done.has_value(), "%s: %s", text.c_str(), done.error().message.c_str());
    for (const SymbolPlane& plane : run.planes.used()) {
      for (const uint8_t symbol : plane.symbols) {
        KVIK_CHECK(symbol < plane.alphabet, "%s: symbol %d of %d", text.c_str(), symbol,
                   plane.alphabet);
      }
    }
    auto decoded = DecodeRun(**quantizer, c, isa, run.planes, run.side);
    KVIK_CHECK(decoded.has_value(), "%s: %s", text.c_str(), decoded.error().message.c_str());
    run.decoded = std::move(decoded).value();
    if (isa == Isa::kScalar) {
      first = std::move(run);
      continue;
    }
    EXPECT_EQ(run.side, first.side) << text << " on " << IsaName(isa);
    EXPECT_EQ(run.planes.count, first.planes.count);
    for (size_t i = 0; i < first.planes.count; ++i) {
      EXPECT_EQ(run.planes.planes[i].symbols, first.planes.planes[i].symbols)
          << text << " plane " << i << " on " << IsaName(isa);
    }
    // By bits: a zero's sign counts, and a NaN would equal itself.
    EXPECT_TRUE(std::equal(
        run.decoded.values.begin(),
        run.decoded.values.begin() + static_cast<ptrdiff_t>(first.decoded.size()),
        first.decoded.values.begin(),
        [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }))
        << text << " on " << IsaName(isa);
  }
  return first;
}

}  // namespace kvik::codec::testing
