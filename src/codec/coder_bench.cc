// SPDX-License-Identifier: Apache-2.0
// Symbols per second of the entropy coders as stages, in cache and in memory, beside memcpy, zstd
// and lz4. Every result is verified before it is timed; the best of some rounds is printed.
//
//   coder_bench [seconds per measurement, 0.1]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/isa.h"
#include "base/rng.h"
#include "codec/registry.h"
#include "codec/side_info.h"

namespace kvik::codec {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Symbols of a bell, as a Gaussian leaves them on a uniform grid.
struct Source {
  const char* name;
  int alphabet;
  double sigma;  // in steps
  bool uniform = false;
};

// Standard normal.
double Normal(Rng& rng) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - rng.Uniform()));
  return radius * std::cos(6.283185307179586 * rng.Uniform());
}

void Fill(const Source& source, uint64_t seed, std::vector<uint8_t>& symbols) {
  Rng rng(seed);
  for (auto& symbol : symbols) {
    if (source.uniform) {
      symbol = static_cast<uint8_t>(rng.Below(static_cast<uint64_t>(source.alphabet)));
      continue;
    }
    const double x = Normal(rng);
    symbol = static_cast<uint8_t>(std::clamp(std::floor(0.5 * source.alphabet + source.sigma * x),
                                             0.0, source.alphabet - 1.0));
  }
}

// The exponents of Gaussian bf16 values.
void FillExponents(uint64_t seed, std::vector<uint8_t>& symbols) {
  Rng rng(seed);
  for (auto& symbol : symbols) {
    const double x = Normal(rng);
    symbol =
        static_cast<uint8_t>(std::clamp(127 + std::ilogb(std::max(std::abs(x), 1e-30)), 0, 255));
  }
}

// A working set: tiles of planes, and their bytes.
struct Set {
  std::vector<SymbolPlanes> tiles;
  std::vector<SymbolPlanes> decoded;
  std::vector<std::vector<std::byte>> bytes;
  size_t symbols = 0;
};

Set MakeSet(const Source& source, size_t symbols, size_t tile_symbols, uint64_t seed) {
  Set set;
  const size_t tiles = std::max<size_t>(symbols / tile_symbols, 1);
  std::vector<uint8_t> one(tile_symbols);
  if (source.alphabet == 256 && !source.uniform) {
    FillExponents(seed, one);
  } else {
    Fill(source, seed, one);
  }
  for (size_t t = 0; t < tiles; ++t) {
    SymbolPlanes planes;
    planes.Add(source.alphabet, 0, tile_symbols).symbols = one;
    std::rotate(one.begin(), one.begin() + 17, one.end());
    set.tiles.push_back(planes);
    planes.planes[0].symbols.assign(tile_symbols, 0);
    set.decoded.push_back(std::move(planes));
  }
  set.bytes.resize(tiles);
  set.symbols = tiles * tile_symbols;
  return set;
}

struct Speed {
  double encode = 0;  // Gsym/s, all threads together
  double decode = 0;
  double bits = 0;
};

// Best of the rounds that fit into `seconds`, by the slowest of the threads.
template <typename F>
double BestGsyms(std::vector<Set>& sets, double seconds, F f) {
  double best = 0;
  const double until = Now() + seconds;
  do {
    std::vector<double> took(sets.size());
    const auto round = [&](size_t i) {
      const double begin = Now();
      size_t repeats = std::max<size_t>(2000000 / sets[i].symbols, 1);
      for (size_t r = 0; r < repeats; ++r) {
        f(sets[i]);
      }
      took[i] = (Now() - begin) / static_cast<double>(repeats * sets[i].symbols);
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < sets.size(); ++i) {
      threads.emplace_back(round, i);
    }
    round(0);
    for (auto& thread : threads) {
      thread.join();
    }
    const double slowest = *std::max_element(took.begin(), took.end());
    best = std::max(best, 1e-9 * static_cast<double>(sets.size()) / slowest);
  } while (Now() < until);
  return best;
}

void EncodeSet(const EntropyCoder& coder, const TileContext& context, Set& set) {
  for (size_t t = 0; t < set.tiles.size(); ++t) {
    set.bytes[t].clear();
    ByteWriter out(set.bytes[t]);
    KVIK_CHECK(coder.Encode(context, set.tiles[t], out).has_value());
  }
}

void DecodeSet(const EntropyCoder& coder, const TileContext& context, Set& set) {
  for (size_t t = 0; t < set.tiles.size(); ++t) {
    KVIK_CHECK(coder.Decode(context, set.bytes[t], set.decoded[t]).has_value());
  }
}

Speed Measure(const EntropyCoder& coder, Isa isa, std::vector<Set>& sets, double seconds) {
  TileContext context;
  context.isa = isa;
  size_t bytes = 0;
  size_t symbols = 0;
  for (Set& set : sets) {
    EncodeSet(coder, context, set);
    DecodeSet(coder, context, set);
    for (size_t t = 0; t < set.tiles.size(); ++t) {
      KVIK_CHECK(set.decoded[t].planes[0].symbols == set.tiles[t].planes[0].symbols,
                 "symbols differ");
      bytes += set.bytes[t].size();
    }
    symbols += set.symbols;
  }
  Speed speed;
  speed.bits = 8.0 * static_cast<double>(bytes) / static_cast<double>(symbols);
  speed.encode = BestGsyms(sets, seconds, [&](Set& set) { EncodeSet(coder, context, set); });
  speed.decode = BestGsyms(sets, seconds, [&](Set& set) { DecodeSet(coder, context, set); });
  return speed;
}

// Of the symbols, byte by byte.
double MeasureCopy(std::vector<Set>& sets, double seconds) {
  return BestGsyms(sets, seconds, [&](Set& set) {
    for (size_t t = 0; t < set.tiles.size(); ++t) {
      std::memcpy(set.decoded[t].planes[0].symbols.data(), set.tiles[t].planes[0].symbols.data(),
                  set.tiles[t].planes[0].symbols.size());
    }
  });
}

double Entropy(const std::vector<uint8_t>& symbols) {
  std::vector<double> counts(256);
  for (const uint8_t symbol : symbols) {
    ++counts[symbol];
  }
  double bits = 0;
  for (const double count : counts) {
    const double p = count / static_cast<double>(symbols.size());
    bits -= p > 0 ? p * std::log2(p) : 0;
  }
  return bits;
}

void Run(const Source& source, const char* where, size_t symbols, size_t tile_symbols,
         size_t num_threads, double seconds) {
  std::vector<Set> sets;
  for (size_t i = 0; i < num_threads; ++i) {
    sets.push_back(MakeSet(source, symbols, tile_symbols, 7 + i));
  }
  std::printf("%s, %s: %zu thread%s, tiles of %zu symbols, entropy %.3f bits; memcpy %.1f G/s\n",
              source.name, where, num_threads, num_threads == 1 ? "" : "s", tile_symbols,
              Entropy(sets[0].tiles[0].planes[0].symbols), MeasureCopy(sets, seconds));
  SideInfo tables;
  std::vector<float> counts(static_cast<size_t>(source.alphabet));
  for (const uint8_t symbol : sets[0].tiles[0].planes[0].symbols) {
    counts[symbol] += 60000.0F / static_cast<float>(tile_symbols);
  }
  KVIK_CHECK(tables.Add("tables", {1, source.alphabet}, counts).has_value());
  StageSite site;
  site.side_info = &tables;
  site.side_key = "tables";
  for (const char* name : {"pack", "rans", "zstd", "lz4"}) {
    const StageModule* stage = FindStage(StageKind::kCoder, name);
    const auto args = StageArgs::Check(name, stage->params, {});
    KVIK_CHECK(args.has_value());
    const auto coder = stage->make_coder(*args, site);
    KVIK_CHECK(coder.has_value());
    const bool library = name == std::string("zstd") || name == std::string("lz4");
    for (const Isa isa : SupportedIsas()) {
      if (library && isa != SupportedIsas().back()) {
        continue;
      }
      const Speed speed = Measure(**coder, isa, sets, seconds);
      std::printf("  %-5s %-10s %6.3f bits  encode %6.2f  decode %6.2f Gsym/s\n", name,
                  library ? "" : IsaName(isa), speed.bits, speed.encode, speed.decode);
    }
  }
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.1;
  constexpr size_t kL2 = 192 << 10;  // symbols; copies and bytes fit beside them
  constexpr size_t kDram = 96 << 20;
  const Source sources[] = {
      {"16 levels, min-max of 64", 16, 3.3},
      {"16 levels, fixed range", 16, 2.1},
      {"6 levels", 6, 1.0},
      {"3 levels, mostly zero", 3, 0.3},
      {"32 levels", 32, 4.0},
      {"exponents of bf16", 256, 0},
      {"mantissas of bf16", 256, 0, true},
      {"12 levels, uniform", 12, 0, true},
  };
  for (const Source& source : sources) {
    Run(source, "L2", kL2, kL2, 1, seconds);
  }
  Run(sources[1], "L2", kL2, kL2, 2, seconds);
  Run(sources[1], "small tiles", kL2, 3072, 1, seconds);
  Run(sources[1], "block tiles", kL2, 24576, 1, seconds);
  Run(sources[1], "DRAM", kDram, 1 << 18, 1, seconds);
  Run(sources[1], "DRAM", kDram, 1 << 18, 2, seconds);
  Run(sources[5], "DRAM", kDram, 1 << 18, 1, seconds);
  return 0;
}

}  // namespace
}  // namespace kvik::codec

int main(int argc, char** argv) { return kvik::codec::Main(argc, argv); }
