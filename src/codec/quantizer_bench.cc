// SPDX-License-Identifier: Apache-2.0
// Speed of the quantizers alone, in GB of bf16 a second, beside memcpy of as many bytes in the same
// run: from float32 tile to symbols, and back.
//   quantizer_bench [--quick] [--only SUBSTRING] [--cpu-time]
// KVIK_KERNELS chooses the ISA. Every case is compared with the scalar kernels before it is timed.
// On AVX-512 exit 1 when a goal is missed: ecsq, the quantizer of our best pipelines, must run at
// more than 8 GB/s both ways, so that it does not hold up the entropy coder.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/isa.h"
#include "base/rng.h"
#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "codec/pipeline.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/testing/bench_main.h"

namespace kvik::codec {
namespace {

using kvik::testing::BenchClock;
using kvik::testing::BenchOptions;
using kvik::testing::OrDie;

constexpr double kEcsqGoal = 8;

struct Shape {
  const char* name;
  int32_t heads, rows, channels;
};
// A block of tokens of one layer, and a longer piece that fills the second-level cache.
constexpr Shape kShapes[] = {{"16 tokens", 8, 16, 128}, {"256 tokens", 4, 256, 128}};

constexpr const char* kQuantizers[] = {
    "none",
    "fp8(per=token)",
    "uniform(levels=16,per=channel)",
    "uniform(levels=4,per=channel,group=32)",
    "uniform(levels=16,per=token,group=32)",
    "uniform(levels=16,per=token,group=64)",
    "uniform(levels=16,per=token)",
    "uniform(levels=16,per=tensor)",
    "ecsq(d=1,sinks=0)",
    "ecsq(d=1,sinks=0,mode=self)",
};

struct Setup {
  explicit Setup(const Shape& shape) {
    model.name = "bench";
    model.num_layers = 1;
    model.num_kv_heads = shape.heads;
    model.head_dim = shape.channels;
    heads.resize(static_cast<size_t>(shape.heads));
    std::iota(heads.begin(), heads.end(), 0);
    positions.resize(static_cast<size_t>(shape.rows));
    std::iota(positions.begin(), positions.end(), 0);
    tile.Resize(shape.heads, shape.rows, shape.channels);
    Rng rng(1);
    std::vector<float> spreads;
    for (int32_t i = 0; i < shape.heads * shape.channels; ++i) {
      spreads.push_back(static_cast<float>(std::exp(rng.Uniform() - 0.5)));
    }
    for (size_t i = 0; i < tile.size(); ++i) {
      const size_t head = i / (tile.size() / static_cast<size_t>(shape.heads));
      // The sum of twelve uniform numbers is normal enough.
      double sum = -6;
      for (int j = 0; j < 12; ++j) {
        sum += rng.Uniform();
      }
      const auto channels = static_cast<size_t>(shape.channels);
      tile.values[i] = spreads[head * channels + i % channels] * static_cast<float>(sum);
    }
    const auto added = side_info.Add("ecsq/k//sigma", {1, shape.heads, shape.channels}, spreads);
    KVIK_CHECK(added.has_value());
  }

  [[nodiscard]] TileContext Context(Isa isa) const {
    TileContext context;
    context.model = &model;
    context.isa = isa;
    context.heads = heads;
    context.positions = positions;
    return context;
  }
  [[nodiscard]] std::unique_ptr<Quantizer> Make(const char* text) const {
    const PipelineSpec pipeline =
        OrDie(PipelineSpec::Parse(std::string("none -> ") + text + " -> none"));
    StageSite site;
    site.model = &model;
    site.side_info = &side_info;
    site.channels = tile.channels;
    site.side_key = SideKey(pipeline.key, kv::KvPart::kKey, 0);
    return OrDie(pipeline.key.quantizer.module->make_quantizer(pipeline.key.quantizer.args, site));
  }

  ModelFacts model;
  SideInfo side_info;
  std::vector<int32_t> heads;
  std::vector<int32_t> positions;
  Tile tile;
};

struct Coded {
  SymbolPlanes planes;
  std::vector<std::byte> side;
  Tile decoded;
};

void Encode(const Quantizer& quantizer, const Setup& setup, Isa isa, Coded& coded) {
  coded.planes.Clear();
  coded.side.clear();
  ByteWriter side(coded.side);
  const auto done = quantizer.Quantize(setup.Context(isa), setup.tile, coded.planes, side);
  KVIK_CHECK(done.has_value(), "%s", done.error().message.c_str());
}

// The symbols are there already: a coder fills them between Layout and Dequantize.
void Decode(const Quantizer& quantizer, const Setup& setup, Isa isa, Coded& coded) {
  ByteReader side(coded.side);
  coded.planes.Clear();
  auto done = quantizer.Layout(setup.Context(isa), coded.decoded, side, coded.planes);
  KVIK_CHECK(done.has_value());
  done = quantizer.Dequantize(setup.Context(isa), coded.planes, side, coded.decoded);
  KVIK_CHECK(done.has_value(), "%s", done.error().message.c_str());
}

Coded Code(const Quantizer& quantizer, const Setup& setup, Isa isa) {
  Coded coded;
  coded.decoded.Resize(setup.tile.heads, setup.tile.rows, setup.tile.channels);
  Encode(quantizer, setup, isa, coded);
  Decode(quantizer, setup, isa, coded);
  return coded;
}

void Verify(const char* text, const Quantizer& quantizer, const Setup& setup, Isa isa) {
  const Coded expected = Code(quantizer, setup, Isa::kScalar);
  const Coded actual = Code(quantizer, setup, isa);
  bool same = expected.side == actual.side && expected.planes.count == actual.planes.count &&
              std::memcmp(expected.decoded.values.data(), actual.decoded.values.data(),
                          expected.decoded.size() * sizeof(float)) == 0;
  for (size_t i = 0; same && i < expected.planes.count; ++i) {
    same = expected.planes.planes[i].symbols == actual.planes.planes[i].symbols;
  }
  if (!same) {
    std::fprintf(stderr, "quantizer_bench: %s differs from the scalar kernels\n", text);
    std::exit(1);
  }
}

class Bench {
 public:
  Bench(Isa isa, const BenchOptions& options)
      : isa_(isa), options_(options), clock_(options.cpu_time) {}

  // GB/s of the fastest of some runs of enough calls each.
  template <class Fn>
  double Speed(double bytes, const Fn& fn) const {
    const auto calls = static_cast<int>(std::max(1.0, 4e6 / bytes));
    double best = std::numeric_limits<double>::infinity();
    for (int run = 0; run < (options_.quick ? 10 : 60); ++run) {
      const double start = clock_.NowSeconds();
      for (int i = 0; i < calls; ++i) {
        fn();
      }
      best = std::min(best, (clock_.NowSeconds() - start) / calls);
    }
    return bytes / best * 1e-9;
  }

  // Returns whether the goals are met.
  bool Run(const Shape& shape) const {
    const Setup setup(shape);
    const double bytes = static_cast<double>(setup.tile.size()) * 2;
    const std::vector<std::byte> from(setup.tile.size() * 2, std::byte{1});
    std::vector<std::byte> to(from.size());
    std::printf("%s, %d heads of %d channels: %.0f KB\n", shape.name, shape.heads, shape.channels,
                bytes / 1024);
    std::printf("  %-42s %8s %8s\n", "GB/s of bf16", "encode", "decode");
    const double copy = Speed(bytes, [&] {
      std::memcpy(to.data(), from.data(), from.size());
      __asm__ volatile("" : : "r"(to.data()) : "memory");
    });
    std::printf("  %-42s %8.1f %8.1f\n", "memcpy", copy, copy);
    bool met = true;
    for (const char* text : kQuantizers) {
      if (std::string(text).find(options_.only) == std::string::npos) {
        continue;
      }
      const auto quantizer = setup.Make(text);
      Verify(text, *quantizer, setup, isa_);
      Coded coded = Code(*quantizer, setup, isa_);
      const double encode = Speed(bytes, [&] { Encode(*quantizer, setup, isa_, coded); });
      const double decode = Speed(bytes, [&] { Decode(*quantizer, setup, isa_, coded); });
      std::printf("  %-42s %8.1f %8.1f\n", text, encode, decode);
      if (isa_ >= Isa::kAvx512 && std::string(text) == "ecsq(d=1,sinks=0)") {
        met = met && encode > kEcsqGoal && decode > kEcsqGoal;
      }
    }
    return met;
  }

 private:
  Isa isa_;
  BenchOptions options_;
  BenchClock clock_;
};

int Main(int argc, char** argv) {
  const int status = testing::BenchMain<Bench>(argc, argv, kShapes);
  if (status == 1) {
    std::printf("ecsq is slower than %.0f GB/s\n", kEcsqGoal);
  }
  return status;
}

}  // namespace
}  // namespace kvik::codec

int main(int argc, char** argv) { return kvik::codec::Main(argc, argv); }
