// SPDX-License-Identifier: Apache-2.0
// codec/testing/made_side_info.h: calibrated tensors made up for tests: of the right names and
// shapes, with plausible values that were not measured on anything.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "codec/model_facts.h"
#include "codec/pipeline.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/testing/made_kv.h"

namespace kvik::codec::testing {

// An orthonormal basis, by Gram and Schmidt of random vectors; rows [n, n].
inline std::vector<float> MadeBasis(int32_t n, Rng& rng) {
  const auto size = static_cast<size_t>(n);
  std::vector<double> rows(size * size);
  for (size_t r = 0; r < size; ++r) {
    double* const row = rows.data() + r * size;
    for (size_t c = 0; c < size; ++c) {
      row[c] = static_cast<double>(Normal(rng)) + (r == c ? 4.0 : 0.0);
    }
    for (size_t before = 0; before < r; ++before) {
      const double* const other = rows.data() + before * size;
      double dot = 0;
      for (size_t c = 0; c < size; ++c) {
        dot += row[c] * other[c];
      }
      for (size_t c = 0; c < size; ++c) {
        row[c] -= dot * other[c];
      }
    }
    double norm = 0;
    for (size_t c = 0; c < size; ++c) {
      norm += row[c] * row[c];
    }
    for (size_t c = 0; c < size; ++c) {
      row[c] /= std::sqrt(norm);
    }
  }
  return {rows.begin(), rows.end()};
}

// Everything that the stages of `pipeline` ask for.
inline std::shared_ptr<SideInfo> MadeSideInfo(const PipelineSpec& pipeline, const ModelFacts& model,
                                              uint64_t seed) {
  auto side = std::make_shared<SideInfo>();
  Rng rng(seed);
  const int32_t layers = model.num_layers;
  const int32_t heads = model.num_kv_heads;
  const auto add = [&](const std::string& name, std::vector<int32_t> shape,
                       const std::vector<float>& values) {
    const auto added = side->Add(name, std::move(shape), values);
    KVIK_CHECK(added.has_value(), "%s", added.error().message.c_str());
  };
  const auto cells = static_cast<size_t>(layers) * static_cast<size_t>(heads);
  for (const char* method : {"scores/attention", "scores/output"}) {
    std::vector<float> scores;
    for (size_t i = 0; i < cells; ++i) {
      scores.push_back(static_cast<float>(rng.Uniform()));
    }
    add(method, {layers, heads}, scores);
  }
  for (const kv::KvPart which : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    const PartSpec& part = pipeline.part(which);
    int32_t channels = model.head_dim;
    for (size_t i = 0; i <= part.transforms.size(); ++i) {
      const StageSpec& stage = i < part.transforms.size() ? part.transforms[i] : part.quantizer;
      const std::string key = SideKey(part, which, i);
      const std::string& name = stage.module->name;
      const auto vectors = [&](auto draw) {
        std::vector<float> values;
        for (size_t v = 0; v < cells * static_cast<size_t>(channels); ++v) {
          values.push_back(draw());
        }
        return values;
      };
      const auto bases = [&] {
        std::vector<float> values;
        for (size_t cell = 0; cell < cells; ++cell) {
          const std::vector<float> basis = MadeBasis(channels, rng);
          values.insert(values.end(), basis.begin(), basis.end());
        }
        return values;
      };
      if (name == "center") {
        add(key, {layers, heads, channels}, vectors([&] { return 0.1F * Normal(rng); }));
      } else if (name == "klt" || name == "qklt") {
        add(key, {layers, heads, channels, channels}, bases());
      } else if (name == "affine") {
        add(key + "/diagonal", {layers, heads, channels},
            vectors([&] { return std::exp(0.3F * Normal(rng)); }));
        add(key + "/full", {layers, heads, channels, channels}, bases());
      } else if (name == "ecsq") {
        add(key + "/sigma", {layers, heads, channels},
            vectors([&] { return std::exp(0.3F * Normal(rng)); }));
      }
    }
  }
  return side;
}

}  // namespace kvik::codec::testing
