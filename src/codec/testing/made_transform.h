// SPDX-License-Identifier: Apache-2.0
// codec/testing/made_transform.h: one transform by its text, made for a made-up model with made-up
// calibration, and tiles to run it on.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "codec/pipeline.h"
#include "codec/registry.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/testing/made_kv.h"

namespace kvik::codec::testing {

// Random values of calibrated tensors that suit their stages, [cells, n] or [cells, n, n].
inline std::vector<float> MadeMeans(Rng& rng, size_t cells, size_t n) {
  std::vector<float> means;
  for (size_t i = 0; i < cells * n; ++i) {
    means.push_back(rng.Below(8) == 0 ? 211.0F * Normal(rng) : Normal(rng));
  }
  return means;
}
inline std::vector<float> MadeScales(Rng& rng, size_t cells, size_t n) {
  std::vector<float> scales;
  for (size_t i = 0; i < cells * n; ++i) {
    scales.push_back(std::exp(0.7F * Normal(rng)));
  }
  return scales;
}
// Orthonormal rows: a product of random reflections.
inline std::vector<float> MadeBases(Rng& rng, size_t cells, size_t n) {
  std::vector<float> bases;
  for (size_t cell = 0; cell < cells; ++cell) {
    std::vector<double> basis(n * n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      basis[i * n + i] = 1.0;
    }
    for (int reflection = 0; reflection < 4; ++reflection) {
      std::vector<double> normal(n);
      double squares = 0;
      for (double& v : normal) {
        v = static_cast<double>(Normal(rng));
        squares += v * v;
      }
      for (size_t row = 0; row < n; ++row) {
        double dot = 0;
        for (size_t i = 0; i < n; ++i) {
          dot += basis[row * n + i] * normal[i];
        }
        for (size_t i = 0; i < n; ++i) {
          basis[row * n + i] -= 2 * dot / squares * normal[i];
        }
      }
    }
    for (const double v : basis) {
      bases.push_back(static_cast<float>(v));
    }
  }
  return bases;
}
// Invertible, not orthogonal: scales in another basis.
inline std::vector<float> MadeMatrices(Rng& rng, size_t cells, size_t n) {
  const std::vector<float> bases = MadeBases(rng, cells, n);
  const std::vector<float> scales = MadeScales(rng, cells, n);
  std::vector<float> matrices(bases.size());
  for (size_t i = 0; i < bases.size(); ++i) {
    matrices[i] = bases[i] * scales[i / (n * n) * n + i % n];
  }
  return matrices;
}

// A tile of normal values; a few channels have a large constant part.
inline Tile MadeTile(Rng& rng, int32_t heads, int32_t rows, int32_t channels) {
  Tile tile;
  tile.Resize(heads, rows, channels);
  std::vector<float> constant(static_cast<size_t>(heads * channels));
  for (float& c : constant) {
    c = rng.Below(12) == 0 ? 211.0F * Normal(rng) : 0.0F;
  }
  for (int32_t head = 0; head < heads; ++head) {
    for (size_t i = 0; i < tile.Head(head).size(); ++i) {
      const auto channel = static_cast<int32_t>(i % static_cast<size_t>(channels));
      // As all tiles do, it starts as bf16.
      tile.Head(head)[i] =
          ToFloat(ToBf16(Normal(rng) + constant[static_cast<size_t>(head * channels + channel)]));
    }
  }
  return tile;
}

// One transform alone in a chain, `text` as in pipelines: "klt(share=0.5)".
struct MadeTransform {
  ModelFacts model;
  SideInfo side_info;
  std::unique_ptr<Transform> transform;
  std::vector<int32_t> heads;
  std::vector<int32_t> positions;
  TileContext context;

  MadeTransform(const std::string& text, const ModelFacts& facts, uint64_t seed) : model(facts) {
    Rng rng(seed, 99);
    const auto n = static_cast<size_t>(model.head_dim);
    const auto cells = static_cast<size_t>(model.num_layers * model.num_kv_heads);
    const auto add = [&](const char* name, int rank, const std::vector<float>& values) {
      std::vector<int32_t> shape = {model.num_layers, model.num_kv_heads};
      shape.insert(shape.end(), static_cast<size_t>(rank), model.head_dim);
      const auto added = side_info.Add(name, shape, values);
      KVIK_CHECK(added.has_value(), "%s", added.error().message.c_str());
    };
    add("center/k/", 1, MadeMeans(rng, cells, n));
    add("affine/k//diagonal", 1, MadeScales(rng, cells, n));
    add("affine/k//full", 2, MadeMatrices(rng, cells, n));
    add("klt/k/", 2, MadeBases(rng, cells, n));
    add("qklt/k/", 2, MadeMatrices(rng, cells, n));
    const auto all = static_cast<size_t>(model.num_kv_heads) * n;
    if (text == "jklt") {
      const int32_t extent = static_cast<int32_t>(all);
      const auto added =
          side_info.Add("jklt/k/", {model.num_layers, extent, extent},
                        MadeMatrices(rng, static_cast<size_t>(model.num_layers), all));
      KVIK_CHECK(added.has_value(), "%s", added.error().message.c_str());
    }
    Make(text);
    heads.resize(static_cast<size_t>(model.num_kv_heads));
    std::iota(heads.begin(), heads.end(), 0);
    context.model = &model;
    context.layer = model.num_layers - 1;
    context.heads = heads;
    SetRows(0, 0);
  }
  MadeTransform(const MadeTransform&) = delete;
  MadeTransform& operator=(const MadeTransform&) = delete;

  // Made again, from what side_info holds now.
  void Make(const std::string& text) {
    auto made = TryMake(text);
    KVIK_CHECK(made.has_value(), "%s", made.error().message.c_str());
    transform = std::move(made).value();
  }
  Result<std::unique_ptr<Transform>> TryMake(const std::string& text) const {
    KVIK_ASSIGN(const PipelineSpec pipeline,
                PipelineSpec::Parse("k:" + text + "|v:none -> none -> none"));
    const StageSpec& stage = pipeline.key.transforms[0];
    StageSite site;
    site.model = &model;
    site.side_info = &side_info;
    site.channels = model.head_dim;
    site.side_key = SideKey(pipeline.key, kv::KvPart::kKey, 0);
    return stage.module->make_transform(stage.args, site);
  }

  void SetRows(int32_t first_position, int32_t rows) {
    positions.resize(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), first_position);
    context.positions = positions;
  }

  // Forward on `isa`; appends to `side`.
  Result<Tile> Forward(Isa isa, Tile tile, std::vector<std::byte>& side) {
    ByteWriter writer(side);
    context.isa = isa;
    KVIK_TRY(transform->Forward(context, tile, writer));
    return tile;
  }
  // Inverse on `isa`; what lies beyond the tile's values is spoilt first, and all of `side` must
  // have been read.
  Result<Tile> Inverse(Isa isa, Tile tile, const std::vector<std::byte>& side) {
    ByteReader reader(side);
    context.isa = isa;
    std::fill(tile.values.begin() + static_cast<ptrdiff_t>(tile.size()), tile.values.end(), NAN);
    KVIK_TRY(transform->Inverse(context, tile, reader));
    if (reader.left() != 0) {
      return Err(ErrorCode::kCorrupt, "%zu bytes are left over", reader.left());
    }
    return tile;
  }
};

}  // namespace kvik::codec::testing
