// SPDX-License-Identifier: Apache-2.0
#include "connector/measure_speeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "connector/chunk_codec.h"

namespace kvik::connector {
namespace {

constexpr int32_t kMadeTokens = 256;

// A sample of KV that is made up, with the arena it lies in.
struct MadeKv {
  std::vector<std::byte> arena;
  KvSample sample;

  MadeKv(const codec::ModelFacts& model, int32_t block_size_tokens, uint64_t seed) {
    kv::KvGeometry& geometry = sample.geometry;
    geometry.num_layers = model.num_layers;
    geometry.num_kv_heads = model.num_kv_heads;
    geometry.head_dim = model.head_dim;
    geometry.block_size_tokens = block_size_tokens;
    sample.blocks.resize(static_cast<size_t>(std::max(1, kMadeTokens / block_size_tokens)));
    std::iota(sample.blocks.begin(), sample.blocks.end(), 0);
    arena.resize(sample.blocks.size() * geometry.bytes_per_block());
    Rng rng(seed);
    auto* const values = reinterpret_cast<Bf16*>(arena.data());
    for (size_t i = 0; i + 1 < arena.size() / sizeof(Bf16); i += 2) {
      const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
      const double angle = 2 * std::numbers::pi * rng.Uniform();
      values[i] = ToBf16(static_cast<float>(radius * std::cos(angle)));
      values[i + 1] = ToBf16(static_cast<float>(radius * std::sin(angle)));
    }
    sample.arena = arena;
  }
};

// Microseconds of `run`, the least of as many as the budget allows; 0: it failed.
template <typename Run>
double LeastUs(int64_t budget_us, const Clock& clock, Run&& run) {
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
  return static_cast<double>(best_us);
}

// Early, middle and late layers have other KV.
std::array<int32_t, 3> SomeLayers(int32_t num_layers) {
  return {num_layers / 6, num_layers / 2, num_layers * 5 / 6};
}

struct BytesPerS {
  double encode = 0;  // 0: it does not work
  double decode = 0;
};

class Meter {
 public:
  Meter(const KvSample& sample, const Clock& clock) : sample_(sample), clock_(clock) {}

  // Raw bytes a second of one thread, with frames of so many tokens.
  BytesPerS Measure(const codec::FrameCodec& codec, int32_t tokens, int64_t budget_us) {
    const kv::KvGeometry& geometry = sample_.geometry;
    std::vector<BlockId> from(
        static_cast<size_t>(std::max(1, tokens / geometry.block_size_tokens)));
    std::vector<BlockId> to(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      from[i] = sample_.blocks[i % sample_.blocks.size()];
    }
    std::iota(to.begin(), to.end(), 0);
    room_.resize(std::max(room_.size(), to.size() * geometry.bytes_per_block()));
    const ChunkPages source{&geometry, sample_.arena, 0, from};
    const ChunkPages target{&geometry, room_, 0, to};
    const std::array<int32_t, 3> layers = SomeLayers(geometry.num_layers);
    const auto each = static_cast<int64_t>(layers.size());
    double encode_us = 0;
    double decode_us = 0;
    for (const int32_t layer : layers) {
      std::vector<std::byte> frame;
      const double encode = LeastUs(budget_us / each, clock_, [&] {
        frame.clear();
        return EncodeLayer(codec, source, layer, scratch_, frame).has_value();
      });
      const double decode = encode == 0 ? 0 : LeastUs(budget_us / each, clock_, [&] {
        return DecodeLayer(codec, frame, target, scratch_).has_value();
      });
      if (decode == 0) {
        return {};
      }
      encode_us += encode;
      decode_us += decode;
    }
    const double raw_bytes = static_cast<double>(source.raw_bytes()) / geometry.num_layers *
                             static_cast<double>(layers.size());
    return {raw_bytes * 1e6 / encode_us, raw_bytes * 1e6 / decode_us};
  }

 private:
  const KvSample& sample_;
  const Clock& clock_;
  CodecScratch scratch_;
  std::vector<std::byte> room_;  // to decode into
};

// Raw KV is an encoding like any other here; the controller knows it by a hash of its own.
uint64_t NameOf(const ProfileSet& profiles, const CodecProfile& profile) {
  return &profile == &profiles.raw() ? control::kRawHash : profile.hash;
}

}  // namespace

control::MachineSpeeds MeasureSpeeds(
    const ProfileSet& profiles, const MeasureOptions& options, const Clock& clock,
    const std::function<void(size_t done, size_t total)>& progress) {
  std::optional<MadeKv> made;
  if (options.sample == nullptr) {
    made.emplace(profiles.model(), options.block_size_tokens, options.seed);
  } else {
    KVIK_CHECK(!options.sample->blocks.empty());
  }
  Meter meter(made ? made->sample : *options.sample, clock);
  control::MachineSpeeds speeds;
  size_t done = 0;
  for (const CodecProfile& profile : profiles.all()) {
    control::ProfileSpeeds measured;
    measured.profile_hash = NameOf(profiles, profile);
    bool works = true;
    for (size_t i = 0; i < control::kNumLengths && works; ++i) {
      // Longer prompts are several chunks.
      const int32_t tokens = std::min(control::kLengths[i], profile.chunk_tokens);
      if (i > 0 && tokens == std::min(control::kLengths[i - 1], profile.chunk_tokens)) {
        measured.encode[i] = measured.encode[i - 1];
        measured.decode[i] = measured.decode[i - 1];
        continue;
      }
      const int64_t budget_us =
          options.budget_us_per_profile / static_cast<int64_t>(2 * control::kNumLengths);
      const BytesPerS one = meter.Measure(*profile.codec, tokens, budget_us);
      works = one.encode > 0 && one.decode > 0;
      measured.encode[i] = {0, one.encode * options.threads};
      measured.decode[i] = {0, one.decode * options.threads};
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

bool HasSpeedsOf(const ProfileSet& profiles, const control::MachineSpeeds& speeds) {
  return std::all_of(profiles.all().begin(), profiles.all().end(),
                     [&](const CodecProfile& profile) {
                       return speeds.Find(NameOf(profiles, profile)) != nullptr;
                     });
}

}  // namespace kvik::connector
