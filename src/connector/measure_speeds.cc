// SPDX-License-Identifier: Apache-2.0
#include "connector/measure_speeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
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
// Of the time of a frame, the most that is taken for its fixed cost.
constexpr double kLargestShare = 0.95;

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

// The clock counts microseconds: what takes about one is repeated until it takes so many.
constexpr int64_t kTimeableUs = 50;

// Microseconds of `run`, the least of as many as the budget allows; 0: it failed.
template <typename Run>
double LeastUs(int64_t budget_us, const Clock& clock, Run&& run) {
  double best_us = 0;
  int64_t repeats = 1;
  const int64_t begin_us = clock.NowMicros();
  int rounds = 0;
  do {
    const int64_t start_us = clock.NowMicros();
    for (int64_t i = 0; i < repeats; ++i) {
      if (!run()) {
        return 0;
      }
    }
    const int64_t took_us = std::max<int64_t>(clock.NowMicros() - start_us, 1);
    const double one_us = static_cast<double>(took_us) / static_cast<double>(repeats);
    best_us = rounds == 0 ? one_us : std::min(best_us, one_us);
    if (rounds == 0) {
      repeats = std::max<int64_t>(1, kTimeableUs / took_us);
      best_us = repeats == 1 ? best_us : std::numeric_limits<double>::infinity();
    }
    ++rounds;
  } while (rounds < 3 || (rounds < 100 && clock.NowMicros() - begin_us < budget_us));
  return best_us;
}

// Early, middle and late layers have other KV.
std::array<int32_t, 3> SomeLayers(int32_t num_layers) {
  return {num_layers / 6, num_layers / 2, num_layers * 5 / 6};
}

struct FrameUs {
  double bytes = 0;   // of raw KV
  double encode = 0;  // microseconds; 0: it does not work
  double decode = 0;
};

// Frames that are this short show what a frame costs whatever it holds.
constexpr std::array<int32_t, 2> kShortTokens = {16, 64};

// Where the line through (bytes, us) begins; each point counts by its relative error, since that is
// what noise is. Not below 0, and not above the least of the points: no byte takes negative time.
template <typename Us>
double Intercept(const std::vector<FrameUs>& points, const Us& us_of) {
  double w = 0;
  double wx = 0;
  double wy = 0;
  double wxx = 0;
  double wxy = 0;
  for (const FrameUs& point : points) {
    const double x = point.bytes;
    const double y = us_of(point);
    const double weight = 1 / (y * y);
    w += weight;
    wx += weight * x;
    wy += weight * y;
    wxx += weight * x * x;
    wxy += weight * x * y;
  }
  const double determinant = w * wxx - wx * wx;
  if (!(determinant > 1e-9 * w * wxx)) {
    return 0;  // one length only
  }
  double intercept = std::max(0.0, (wy * wxx - wx * wxy) / determinant);
  for (const FrameUs& point : points) {
    intercept = std::min(intercept, kLargestShare * us_of(point));
  }
  return intercept;
}

// What a frame of each tabulated length takes, as its fixed cost and the rest by byte: exact at
// that length. `threads` work on different frames.
control::StageSpeed SpeedOf(double bytes, double us, double frame_us, int threads) {
  return {0, bytes * 1e6 / (us - frame_us) * threads, frame_us / threads};
}

class Meter {
 public:
  Meter(const KvSample& sample, const Clock& clock) : sample_(sample), clock_(clock) {}

  // A frame of so many tokens, on one thread: the mean over some layers.
  FrameUs Measure(const codec::FrameCodec& codec, int32_t tokens, int64_t budget_us) {
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
    return {static_cast<double>(source.raw_bytes()) / geometry.num_layers,
            encode_us / static_cast<double>(layers.size()),
            decode_us / static_cast<double>(layers.size())};
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
    // Longer prompts are several chunks.
    const auto frame_tokens = [&](int32_t tokens) {
      return std::min(tokens, profile.chunk_tokens);
    };
    std::map<int32_t, FrameUs> frames;  // by tokens
    for (const int32_t tokens : kShortTokens) {
      frames[frame_tokens(std::max(tokens, options.block_size_tokens))];
    }
    for (const int32_t tokens : control::kLengths) {
      frames[frame_tokens(tokens)];
    }
    // The longest of a published method's own chunks are no line with the others.
    std::vector<FrameUs> on_line;
    const int64_t budget_us =
        options.budget_us_per_profile / static_cast<int64_t>(2 * frames.size());
    bool works = true;
    for (auto& [tokens, frame] : frames) {
      frame = meter.Measure(*profile.codec, tokens, budget_us);
      works = works && frame.encode > 0 && frame.decode > 0;
      if (tokens <= kMadeTokens) {
        on_line.push_back(frame);
      }
    }
    if (works) {
      const double encode_us = Intercept(on_line, [](const FrameUs& f) { return f.encode; });
      const double decode_us = Intercept(on_line, [](const FrameUs& f) { return f.decode; });
      for (size_t i = 0; i < control::kNumLengths; ++i) {
        const FrameUs& frame = frames[frame_tokens(control::kLengths[i])];
        measured.encode[i] = SpeedOf(frame.bytes, frame.encode, encode_us, options.threads);
        measured.decode[i] = SpeedOf(frame.bytes, frame.decode, decode_us, options.threads);
      }
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
