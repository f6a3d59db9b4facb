// SPDX-License-Identifier: Apache-2.0
#include "connector/measure_speeds.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "connector/chunk_codec.h"

namespace kvik::connector {
namespace {

// KV of one chunk in an arena of its own, and room to decode it into.
struct MadeKv {
  kv::KvGeometry geometry;
  std::vector<std::byte> arena;
  std::vector<BlockId> from;
  std::vector<BlockId> to;

  MadeKv(const codec::ModelFacts& model, int32_t block_size_tokens, int32_t tokens, uint64_t seed) {
    geometry.num_layers = 1;  // every layer costs the same
    geometry.num_kv_heads = model.num_kv_heads;
    geometry.head_dim = model.head_dim;
    geometry.block_size_tokens = block_size_tokens;
    const int32_t blocks = std::max(1, tokens / block_size_tokens);
    from.resize(static_cast<size_t>(blocks));
    to.resize(static_cast<size_t>(blocks));
    std::iota(from.begin(), from.end(), 0);
    std::iota(to.begin(), to.end(), blocks);
    arena.resize(2 * static_cast<size_t>(blocks) * geometry.bytes_per_block());
    Rng rng(seed);
    auto* const values = reinterpret_cast<Bf16*>(arena.data());
    for (size_t i = 0; i + 1 < arena.size() / 4; i += 2) {
      const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
      const double angle = 2 * std::numbers::pi * rng.Uniform();
      values[i] = ToBf16(static_cast<float>(radius * std::cos(angle)));
      values[i + 1] = ToBf16(static_cast<float>(radius * std::sin(angle)));
    }
  }
};

// Raw bytes a second of `run`, which moves `raw_bytes`, best of as many as the budget allows.
template <typename Run>
double BestBytesPerS(size_t raw_bytes, int64_t budget_us, const Clock& clock, Run&& run) {
  int64_t best_us = 0;
  const int64_t begin_us = clock.NowMicros();
  int rounds = 0;
  do {
    const int64_t start_us = clock.NowMicros();
    if (!run()) {
      return 0;
    }
    const int64_t took_us = std::max<int64_t>(clock.NowMicros() - start_us, 1);
    best_us = rounds == 0 ? took_us : std::min(best_us, took_us);
    ++rounds;
  } while (rounds < 3 || (rounds < 100 && clock.NowMicros() - begin_us < budget_us));
  return static_cast<double>(raw_bytes) * 1e6 / static_cast<double>(best_us);
}

}  // namespace

control::MachineSpeeds MeasureSpeeds(
    const ProfileSet& profiles, const MeasureOptions& options, const Clock& clock,
    const std::function<void(size_t done, size_t total)>& progress) {
  control::MachineSpeeds speeds;
  CodecScratch scratch;
  size_t done = 0;
  for (const CodecProfile& profile : profiles.all()) {
    control::ProfileSpeeds measured;
    // Raw KV is an encoding like any other here; the controller knows it by a hash of its own.
    measured.profile_hash = &profile == &profiles.raw() ? control::kRawHash : profile.hash;
    bool works = true;
    for (size_t i = 0; i < control::kNumLengths && works; ++i) {
      // Longer prompts are several chunks.
      const int32_t tokens = std::min(control::kLengths[i], profile.chunk_tokens);
      if (i > 0 && tokens == std::min(control::kLengths[i - 1], profile.chunk_tokens)) {
        measured.encode[i] = measured.encode[i - 1];
        measured.decode[i] = measured.decode[i - 1];
        continue;
      }
      MadeKv kv(profiles.model(), options.block_size_tokens, tokens, options.seed);
      const ChunkPages source{&kv.geometry, kv.arena, 0, kv.from};
      const ChunkPages target{&kv.geometry, kv.arena, 0, kv.to};
      std::vector<std::byte> frame;
      const int64_t budget_us =
          options.budget_us_per_profile / static_cast<int64_t>(2 * control::kNumLengths);
      const double encode = BestBytesPerS(source.raw_bytes(), budget_us, clock, [&] {
        frame.clear();
        return EncodeLayer(*profile.codec, source, 0, scratch, frame).has_value();
      });
      const double decode =
          encode == 0 ? 0 : BestBytesPerS(source.raw_bytes(), budget_us, clock, [&] {
            return DecodeLayer(*profile.codec, frame, target, scratch).has_value();
          });
      works = encode > 0 && decode > 0;
      measured.encode[i] = {0, encode * options.threads};
      measured.decode[i] = {0, decode * options.threads};
    }
    if (works) {
      speeds.Set(measured);
    }
    if (progress) {
      progress(++done, profiles.all().size());
    }
  }
  return speeds;
}

}  // namespace kvik::connector
