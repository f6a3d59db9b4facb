// SPDX-License-Identifier: Apache-2.0
// Speed of the transforms alone, in GB of bf16 a second (a tile holds twice the bytes, as float32),
// and as a share of memcpy of as many bf16 in the same run. Tiles lie in the second-level cache, as
// those of a pipeline do.
//   transform_bench [--quick] [--only SUBSTRING] [--cpu-time]
// KVIK_KERNELS chooses the ISA. Every case is compared with the scalar kernels, and what comes back
// with what went in, before it is timed. On AVX-512 exit 1 when a goal is missed: hadamard faster
// than 13 GB/s both ways, so that it holds up neither quantizers nor coders; klt of 128 channels
// faster than 0.87 GB/s.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/isa.h"
#include "base/rng.h"
#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "codec/testing/bench_main.h"
#include "codec/testing/made_transform.h"

namespace kvik::codec {
namespace {

using kvik::testing::BenchClock;
using kvik::testing::BenchOptions;
using kvik::testing::OrDie;
using testing::MadeTransform;

constexpr double kHadamardGoal = 13;
constexpr double kKltGoal = 0.87;

struct Shape {
  const char* name;
  int32_t heads, rows, channels;
};
constexpr Shape kShapes[] = {{"a block", 8, 16, 128}, {"a long frame", 4, 256, 64}};

// With what of the largest value of a tile may come back changed.
struct Case {
  const char* text;
  double error;
  double goal = 0;  // GB/s both ways, on AVX-512 and 128 channels
};
constexpr Case kCases[] = {
    {"center", 1e-6},        {"selfcenter", 1e-6},
    {"prerope", 1e-6},       {"hadamard", 1e-6, kHadamardGoal},
    {"affine", 1e-6},        {"delta", 4.1e-3},
    {"klt", 1e-6, kKltGoal}, {"klt(share=0.5)", 2},
    {"qklt", 2e-5},          {"affine(kind=full)", 2e-5},
};

constexpr size_t kSetBytes = 512 << 10;  // of float32

class Bench {
 public:
  Bench(Isa isa, const BenchOptions& options)
      : isa_(isa), options_(options), clock_(options.cpu_time) {}

  // Returns whether the goals are met.
  bool Run(const Shape& shape) const {
    Rng rng(1);
    const Tile tile = testing::MadeTile(rng, shape.heads, shape.rows, shape.channels);
    const double bytes = static_cast<double>(tile.size()) * 2;
    const size_t tiles = std::max<size_t>(1, kSetBytes / (tile.size() * sizeof(float)));
    std::printf("%s: %d tokens, %d heads of %d channels, %.0f KB; %zu of them\n", shape.name,
                shape.rows, shape.heads, shape.channels, bytes / 1024, tiles);
    std::printf("  %-20s %8s %8s %18s\n", "GB/s of bf16", "forward", "inverse", "share of memcpy");
    const double copy = Copy(tile.size() * 2, tiles);
    std::printf("  %-20s %8.1f %8.1f\n", "memcpy", copy, copy);
    bool met = true;
    for (const Case& c : kCases) {
      if (std::string(c.text).find(options_.only) == std::string::npos) {
        continue;
      }
      MadeTransform made(c.text, testing::MadeModel(1, shape.heads, shape.channels), 1);
      made.SetRows(1000, shape.rows);
      Verify(c, made, tile);
      const Speeds speeds = Time(made, tile, tiles);
      std::printf("  %-20s %8.2f %8.2f %8.2f %8.2f\n", c.text, speeds.forward, speeds.inverse,
                  speeds.forward / copy, speeds.inverse / copy);
      if (isa_ >= Isa::kAvx512 && shape.channels == 128 && c.goal > 0 &&
          std::min(speeds.forward, speeds.inverse) < c.goal) {
        std::printf("  %s is slower than %.2f GB/s\n", c.text, c.goal);
        met = false;
      }
    }
    return met;
  }

 private:
  struct Speeds {
    double forward = 0;
    double inverse = 0;
  };

  double Copy(size_t bytes, size_t times) const {
    std::vector<std::vector<std::byte>> from(times, std::vector<std::byte>(bytes, std::byte{1}));
    std::vector<std::vector<std::byte>> to = from;
    double best = std::numeric_limits<double>::infinity();
    for (int run = 0; run < Runs(); ++run) {
      const double start = clock_.NowSeconds();
      for (size_t i = 0; i < times; ++i) {
        std::memcpy(to[i].data(), from[i].data(), bytes);
        __asm__ volatile("" : : "r"(to[i].data()) : "memory");
      }
      best = std::min(best, clock_.NowSeconds() - start);
    }
    return static_cast<double>(bytes * times) / best * 1e-9;
  }

  // The fastest of some runs over all tiles, there and back again.
  Speeds Time(MadeTransform& made, const Tile& tile, size_t times) const {
    std::vector<Tile> tiles(times, tile);
    std::vector<std::vector<std::byte>> sides(times);
    made.context.isa = isa_;
    double forward = std::numeric_limits<double>::infinity();
    double inverse = forward;
    for (int run = 0; run < Runs(); ++run) {
      for (std::vector<std::byte>& side : sides) {
        side.clear();
      }
      const double start = clock_.NowSeconds();
      for (size_t i = 0; i < times; ++i) {
        ByteWriter side(sides[i]);
        KVIK_CHECK(made.transform->Forward(made.context, tiles[i], side).has_value());
      }
      const double middle = clock_.NowSeconds();
      for (size_t i = 0; i < times; ++i) {
        ByteReader side(sides[i]);
        KVIK_CHECK(made.transform->Inverse(made.context, tiles[i], side).has_value());
      }
      forward = std::min(forward, middle - start);
      inverse = std::min(inverse, clock_.NowSeconds() - middle);
    }
    const double gigabytes = static_cast<double>(tile.size() * 2 * times) * 1e-9;
    return {gigabytes / forward, gigabytes / inverse};
  }

  void Verify(const Case& c, MadeTransform& made, const Tile& tile) const {
    std::vector<std::byte> expected_side;
    std::vector<std::byte> side;
    const Tile expected = OrDie(made.Forward(Isa::kScalar, tile, expected_side));
    const Tile forward = OrDie(made.Forward(isa_, tile, side));
    const Tile expected_back = OrDie(made.Inverse(Isa::kScalar, expected, expected_side));
    const Tile back = OrDie(made.Inverse(isa_, forward, side));
    double largest = 0;
    double error = 0;
    for (size_t i = 0; i < tile.size(); ++i) {
      largest = std::max(largest, static_cast<double>(std::abs(tile.values[i])));
      error = std::max(error, static_cast<double>(std::abs(tile.values[i] - back.values[i])));
    }
    if (side != expected_side || !Same(forward, expected) || !Same(back, expected_back) ||
        error > c.error * largest) {
      std::fprintf(stderr, "transform_bench: %s differs from the scalar kernels, or errs by %g\n",
                   c.text, error / largest);
      std::exit(1);
    }
  }
  static bool Same(const Tile& a, const Tile& b) {
    return a.size() == b.size() &&
           std::memcmp(a.values.data(), b.values.data(), a.size() * sizeof(float)) == 0;
  }

  [[nodiscard]] int Runs() const { return options_.quick ? 50 : 300; }

  Isa isa_;
  BenchOptions options_;
  BenchClock clock_;
};

int Main(int argc, char** argv) { return testing::BenchMain<Bench>(argc, argv, kShapes); }

}  // namespace
}  // namespace kvik::codec

int main(int argc, char** argv) { return kvik::codec::Main(argc, argv); }
