// SPDX-License-Identifier: Apache-2.0
// All entropy coders as stages: what every coder owes, then what is special to some.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "codec/registry.h"
#include "codec/side_info.h"
#include "codec/stage.h"

namespace kvik::codec {
namespace {

constexpr const char* kTables = "tables/k/->test";
using Arguments = std::vector<std::pair<std::string, ArgValue>>;

struct CoderCase {
  std::string name;
  Arguments arguments;
};

void PrintTo(const CoderCase& of, std::ostream* out) {
  *out << of.name;
  for (const auto& [key, value] : of.arguments) {
    *out << "_" << value.word;
  }
}

std::vector<CoderCase> AllCoders() {
  std::vector<CoderCase> cases;
  for (const StageModule* stage : AllStages()) {
    if (stage->kind != StageKind::kCoder) {
      continue;
    }
    cases.push_back({stage->name, {}});
    for (const ParamSpec& param : stage->params) {
      for (const std::string& word : param.words) {
        cases.push_back({stage->name, {{param.name, ArgValue::Word(word)}}});
      }
    }
  }
  return cases;
}

Result<std::unique_ptr<EntropyCoder>> TryMake(const CoderCase& of, const SideInfo* side_info) {
  const StageModule* stage = FindStage(StageKind::kCoder, of.name);
  KVIK_CHECK(stage != nullptr, "no coder %s", of.name.c_str());
  KVIK_ASSIGN(const StageArgs args, StageArgs::Check(stage->name, stage->params, of.arguments));
  StageSite site;
  site.side_info = side_info;
  site.side_key = kTables;
  return stage->make_coder(args, site);
}

std::unique_ptr<EntropyCoder> Make(const CoderCase& of, const SideInfo* side_info) {
  auto coder = TryMake(of, side_info);
  KVIK_CHECK(coder.has_value(), "%s", coder.error().message.c_str());
  return std::move(coder).value();
}

TileContext On(Isa isa) {
  TileContext context;
  context.isa = isa;
  return context;
}

std::vector<std::byte> Encode(const EntropyCoder& coder, const SymbolPlanes& planes,
                              Isa isa = SupportedIsas().back()) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  const auto done = coder.Encode(On(isa), planes, out);
  KVIK_CHECK(done.has_value(), "%s", done.error().message.c_str());
  return bytes;
}

// The same sizes, alphabets and contexts, other symbols.
SymbolPlanes Blank(const SymbolPlanes& planes) {
  SymbolPlanes blank = planes;
  for (SymbolPlane& plane : blank.used()) {
    std::fill(plane.symbols.begin(), plane.symbols.end(), uint8_t{0xEE});
  }
  return blank;
}

void ExpectSame(const SymbolPlanes& a, const SymbolPlanes& b) {
  ASSERT_EQ(a.count, b.count);
  for (size_t p = 0; p < a.count; ++p) {
    ASSERT_EQ(a.planes[p].symbols, b.planes[p].symbols) << "plane " << p;
  }
}

// Bits of the best order-0 code.
double Entropy(const std::vector<uint8_t>& symbols) {
  std::vector<double> counts(256);
  for (const uint8_t symbol : symbols) {
    ++counts[symbol];
  }
  double bits = 0;
  for (const double count : counts) {
    bits += count > 0 ? -count * std::log2(count / static_cast<double>(symbols.size())) : 0;
  }
  return bits;
}

// n symbols around the middle of the alphabet, as a quantizer leaves them.
void AddBell(Rng& rng, int alphabet, int context, size_t n, double width, SymbolPlanes& planes) {
  SymbolPlane& plane = planes.Add(alphabet, context, n);
  for (auto& symbol : plane.symbols) {
    double sum = 0;
    for (int i = 0; i < 6; ++i) {
      sum += rng.Uniform() - 0.5;
    }
    const double at = 0.5 * alphabet + sum * std::sqrt(2.0) * width * alphabet;
    symbol = static_cast<uint8_t>(std::clamp(at, 0.0, alphabet - 1.0));
  }
}

SymbolPlanes RandomPlanes(Rng& rng) {
  SymbolPlanes planes;
  for (uint64_t i = 0, n = rng.Below(7); i < n; ++i) {
    const int alphabets[] = {2, 3, 4, 6, 12, 16, 17, 32, 33, 100, 256};
    const int alphabet = rng.Below(4) == 0 ? static_cast<int>(2 + rng.Below(255))
                                           : alphabets[rng.Below(std::size(alphabets))];
    const size_t sizes[] = {0, 1, 2, 16, 200, 1024, 1111, 9000};
    AddBell(rng, alphabet, static_cast<int>(rng.Below(4)), sizes[rng.Below(std::size(sizes))],
            0.01 + 0.4 * rng.Uniform(), planes);
    planes.planes[planes.count - 1].uniform = rng.Below(5) == 0;
  }
  return planes;
}

// Counts of symbols for alphabets up to 256: [4, 256], skewed differently, zeros among them.
SideInfo MadeTables() {
  std::vector<float> counts(4 * 256);
  for (size_t context = 0; context < 4; ++context) {
    for (size_t s = 0; s < 256; ++s) {
      counts[context * 256 + s] =
          s % 7 == context ? 0.0F : 1000.0F / (1.0F + static_cast<float>((s * (context + 1)) % 61));
    }
  }
  SideInfo side_info;
  KVIK_CHECK(side_info.Add(kTables, {4, 256}, counts).has_value());
  return side_info;
}

class Coder : public ::testing::TestWithParam<CoderCase> {
 protected:
  SideInfo tables_ = MadeTables();
  std::unique_ptr<EntropyCoder> coder_ = Make(GetParam(), &tables_);
};

TEST_P(Coder, RandomPlanesComeBackAndEveryIsaWritesTheSameBytes) {
  constexpr uint64_t kSeed = 40;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  for (int trial = 0; trial < 60; ++trial) {
    const SymbolPlanes planes = RandomPlanes(rng);
    const auto expected = Encode(*coder_, planes, Isa::kScalar);
    for (const Isa isa : SupportedIsas()) {
      ASSERT_EQ(Encode(*coder_, planes, isa), expected) << IsaName(isa) << ", trial " << trial;
      SymbolPlanes decoded = Blank(planes);
      const auto done = coder_->Decode(On(isa), expected, decoded);
      ASSERT_TRUE(done.has_value()) << IsaName(isa) << ": " << done.error().message;
      ASSERT_NO_FATAL_FAILURE(ExpectSame(decoded, planes)) << IsaName(isa) << ", trial " << trial;
    }
  }
}

TEST_P(Coder, NoPlanesAndEmptyPlanesTakeNoSymbols) {
  SymbolPlanes planes;
  for (int i = 0; i < 3; ++i) {
    const auto bytes = Encode(*coder_, planes);
    EXPECT_LE(bytes.size(), 1U);
    SymbolPlanes decoded = Blank(planes);
    EXPECT_TRUE(coder_->Decode(On(Isa::kScalar), bytes, decoded).has_value());
    planes.Add(5, i, 0);
  }
}

TEST_P(Coder, OneSymbolAndEqualSymbolsOfEveryAlphabetComeBack) {
  for (int alphabet = 2; alphabet <= 256; ++alphabet) {
    for (const int symbol : {0, alphabet / 2, alphabet - 1}) {
      for (const size_t n : {size_t{1}, size_t{300}}) {
        SymbolPlanes planes;
        auto& symbols = planes.Add(alphabet, 1, n).symbols;
        std::fill(symbols.begin(), symbols.end(), static_cast<uint8_t>(symbol));
        const auto bytes = Encode(*coder_, planes);
        SymbolPlanes decoded = Blank(planes);
        const auto done = coder_->Decode(On(SupportedIsas().back()), bytes, decoded);
        ASSERT_TRUE(done.has_value()) << alphabet << ": " << done.error().message;
        ASSERT_NO_FATAL_FAILURE(ExpectSame(decoded, planes)) << alphabet << " " << symbol;
      }
    }
  }
}

TEST_P(Coder, ManyThreadsAndEarlierCallsChangeNothing) {
  Rng rng(41);
  std::vector<SymbolPlanes> tiles;
  std::vector<std::vector<std::byte>> expected;
  for (int i = 0; i < 8; ++i) {
    tiles.push_back(RandomPlanes(rng));
    expected.push_back(Encode(*coder_, tiles.back()));
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(3);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 3 * tiles.size(); ++i) {
        const size_t tile = (i * (2 * t + 1) + t) % tiles.size();
        wrong[t] += Encode(*coder_, tiles[tile]) == expected[tile] ? 0 : 1;
        SymbolPlanes decoded = Blank(tiles[tile]);
        wrong[t] +=
            coder_->Decode(On(SupportedIsas().back()), expected[tile], decoded).has_value() ? 0 : 1;
        for (size_t p = 0; p < decoded.count; ++p) {
          wrong[t] += decoded.planes[p].symbols == tiles[tile].planes[p].symbols ? 0 : 1;
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), 0), 0);
}

TEST_P(Coder, DamageIsRefusedOrGivesSymbolsOfTheAlphabet) {
  constexpr uint64_t kSeed = 42;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  for (int trial = 0; trial < 300; ++trial) {
    const SymbolPlanes planes = RandomPlanes(rng);
    auto bytes = Encode(*coder_, planes);
    const uint64_t damage = rng.Below(5);
    if (damage == 0) {
      bytes.resize(rng.Below(bytes.size() + 1));
    } else if (damage == 1) {
      for (uint64_t i = 0, n = 1 + rng.Below(9); i < n; ++i) {
        bytes.push_back(static_cast<std::byte>(rng.Next()));
      }
    } else if (damage == 2) {
      for (auto& byte : bytes) {
        byte = static_cast<std::byte>(rng.Next());
      }
    } else if (!bytes.empty()) {
      // The head of the bytes is where lengths and tables are.
      const size_t reach = damage == 3 ? std::min<size_t>(bytes.size(), 24) : bytes.size();
      for (uint64_t i = 0, n = 1 + rng.Below(3); i < n; ++i) {
        bytes[rng.Below(reach)] ^= static_cast<std::byte>(1U << rng.Below(8));
      }
    }
    bytes.shrink_to_fit();  // so that a sanitizer sees the end
    for (const Isa isa : SupportedIsas()) {
      SymbolPlanes decoded = Blank(planes);
      const auto done = coder_->Decode(On(isa), bytes, decoded);
      if (!done.has_value()) {
        ASSERT_EQ(done.error().code, ErrorCode::kCorrupt) << done.error().message;
        continue;
      }
      for (const SymbolPlane& plane : decoded.used()) {
        for (const uint8_t symbol : plane.symbols) {
          ASSERT_LT(symbol, plane.alphabet) << IsaName(isa) << ", trial " << trial;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Coder, ::testing::ValuesIn(AllCoders()),
                         ::testing::PrintToStringParamName());

// --- zstd, lz4 -----------------------------------------------------------------------------------

TEST(LibraryCoders, ZstdIsNearTheEntropyAndNeitherExpands) {
  Rng rng(48);
  const auto zstd = Make({"zstd", {}}, nullptr);
  const auto lz4 = Make({"lz4", {}}, nullptr);
  SymbolPlanes planes;
  AddBell(rng, 16, 0, 200000, 0.12, planes);
  EXPECT_LT(8.0 * static_cast<double>(Encode(*zstd, planes).size()),
            1.02 * Entropy(planes.planes[0].symbols));
  EXPECT_LE(Encode(*lz4, planes).size(), 100001U);
  // Four symbols to a byte, and what repeats costs next to nothing.
  auto& few = planes.Add(4, 0, 400000).symbols;
  std::fill(few.begin(), few.end(), uint8_t{3});
  EXPECT_LT(Encode(*lz4, planes).size(), 102000U);
}

TEST(LibraryCoders, LevelsOfZstdAreItsOwn) {
  const StageModule* stage = FindStage(StageKind::kCoder, "zstd");
  ASSERT_NE(stage, nullptr);
  EXPECT_TRUE(
      StageArgs::Check("zstd", stage->params, {{"level", ArgValue::Number(19)}}).has_value());
  EXPECT_FALSE(
      StageArgs::Check("zstd", stage->params, {{"level", ArgValue::Number(0)}}).has_value());
}

// --- rans ----------------------------------------------------------------------------------------

CoderCase Rans(const std::string& tables) { return {"rans", {{"tables", ArgValue::Word(tables)}}}; }

TEST(RansCoder, ReachesTheEntropyOnLargePlanes) {
  Rng rng(43);
  const auto coder = Make(Rans("adaptive"), nullptr);
  for (const int alphabet : {3, 6, 12, 16, 24, 32}) {
    SymbolPlanes planes;
    AddBell(rng, alphabet, 0, 400000, 0.15, planes);
    const auto bytes = Encode(*coder, planes);
    EXPECT_LE(8.0 * static_cast<double>(bytes.size()), 1.005 * Entropy(planes.planes[0].symbols))
        << "alphabet " << alphabet;
  }
  // Too skewed for 8 bits, or too wide: 12 bits.
  for (const auto& [alphabet, width] : {std::pair{16, 0.012}, {3, 0.09}, {200, 0.2}, {256, 0.15}}) {
    SymbolPlanes planes;
    AddBell(rng, alphabet, 0, 4000000, width, planes);
    const double entropy = Entropy(planes.planes[0].symbols);
    const auto bytes = Encode(*coder, planes);
    EXPECT_LE(8.0 * static_cast<double>(bytes.size()), 1.0015 * entropy)
        << "alphabet " << alphabet << ", " << entropy / 4e6 << " bits a symbol";
  }
}

TEST(RansCoder, StaticTablesCostSmallFramesNoTable) {
  Rng rng(44);
  SymbolPlanes sample;
  AddBell(rng, 12, 0, 200000, 0.12, sample);
  std::vector<float> counts(12);
  for (const uint8_t symbol : sample.planes[0].symbols) {
    counts[symbol] += 0.1F;
  }
  SideInfo tables;
  ASSERT_TRUE(tables.Add(kTables, {1, 12}, counts).has_value());
  const auto with = Make(Rans("auto"), &tables);
  const auto without = Make(Rans("auto"), nullptr);
  double with_bits = 0;
  double without_bits = 0;
  double entropy = 0;
  for (int i = 0; i < 50; ++i) {
    SymbolPlanes planes;
    AddBell(rng, 12, 0, 1024, 0.12, planes);
    with_bits += 8.0 * static_cast<double>(Encode(*with, planes).size());
    without_bits += 8.0 * static_cast<double>(Encode(*without, planes).size());
    entropy += Entropy(planes.planes[0].symbols);
  }
  EXPECT_LT(with_bits, 1.025 * entropy);
  EXPECT_GT(without_bits, with_bits + 50 * 8 * 4);
}

TEST(RansCoder, SymbolsThatCalibrationNeverSawAreStillCoded) {
  SideInfo tables;
  const std::vector<float> counts = {0, 1000, 2000, 0, 0, 0, 0, 0};
  ASSERT_TRUE(tables.Add(kTables, {1, 8}, counts).has_value());
  const auto coder = Make(Rans("static"), &tables);
  SymbolPlanes planes;
  auto& symbols = planes.Add(8, 0, 4000).symbols;
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i] = static_cast<uint8_t>(i % 500 == 0 ? i / 500 : 1 + i % 3 / 2);
  }
  const auto bytes = Encode(*coder, planes);
  EXPECT_LT(bytes.size(), 4000U * 3 / 8);
  SymbolPlanes decoded = Blank(planes);
  ASSERT_TRUE(coder->Decode(On(Isa::kScalar), bytes, decoded).has_value());
  ASSERT_NO_FATAL_FAILURE(ExpectSame(decoded, planes));
}

TEST(RansCoder, NeverTakesMoreThanTwoBytesAbovePacking) {
  Rng rng(45);
  const SideInfo tables = MadeTables();
  const auto pack = Make({"pack", {}}, nullptr);
  for (const char* which : {"auto", "static", "adaptive"}) {
    const auto coder = Make(Rans(which), &tables);
    for (int trial = 0; trial < 200; ++trial) {
      SymbolPlanes planes;
      const int alphabet = static_cast<int>(2 + rng.Below(255));
      for (auto& symbol : planes.Add(alphabet, 0, 1 + rng.Below(3000)).symbols) {
        symbol = static_cast<uint8_t>(rng.Below(static_cast<uint64_t>(alphabet)));
      }
      EXPECT_LE(Encode(*coder, planes).size(), Encode(*pack, planes).size() + 2)
          << which << ", alphabet " << alphabet;
    }
  }
}

TEST(RansCoder, SmallFramesSpendLittleOnStates) {
  // 3 heads of 16 tokens and 64 channels with a table known to both sides.
  Rng rng(46);
  SymbolPlanes sample;
  AddBell(rng, 6, 0, 100000, 0.14, sample);
  std::vector<float> counts(6);
  for (const uint8_t symbol : sample.planes[0].symbols) {
    counts[symbol] += 0.25F;
  }
  SideInfo tables;
  ASSERT_TRUE(tables.Add(kTables, {1, 6}, counts).has_value());
  const auto coder = Make(Rans("auto"), &tables);
  double bits = 0;
  double entropy = 0;
  for (int i = 0; i < 50; ++i) {
    SymbolPlanes planes;
    std::vector<uint8_t> all;
    for (int head = 0; head < 3; ++head) {
      AddBell(rng, 6, 0, 1024, 0.14, planes);
      const auto& symbols = planes.planes[planes.count - 1].symbols;
      all.insert(all.end(), symbols.begin(), symbols.end());
    }
    bits += 8.0 * static_cast<double>(Encode(*coder, planes).size());
    entropy += Entropy(all);
  }
  EXPECT_LT(bits, 1.015 * entropy);
}

TEST(RansCoder, ExponentsTakeAWindowAndRareOnesEscape) {
  Rng rng(49);
  SymbolPlanes planes;
  planes.Add(256, 0, 300000);
  planes.Add(256, 1, 300000).uniform = true;
  for (auto& symbol : planes.planes[0].symbols) {
    int exponent = 126;
    while (exponent > 90 && rng.Below(2) == 0) {
      --exponent;
    }
    symbol = rng.Below(3000) == 0 ? static_cast<uint8_t>(rng.Below(256))
                                  : static_cast<uint8_t>(exponent);
  }
  for (auto& symbol : planes.planes[1].symbols) {
    symbol = static_cast<uint8_t>(rng.Next());
  }
  const auto coder = Make(Rans("auto"), nullptr);
  const auto bytes = Encode(*coder, planes);
  EXPECT_LT(8.0 * static_cast<double>(bytes.size() - 300000),
            1.02 * Entropy(planes.planes[0].symbols));
  for (const Isa isa : SupportedIsas()) {
    SymbolPlanes decoded = Blank(planes);
    ASSERT_TRUE(coder->Decode(On(isa), bytes, decoded).has_value());
    ASSERT_NO_FATAL_FAILURE(ExpectSame(decoded, planes));
  }
}

TEST(RansCoder, StaticNeedsItsTensorAndSaysWhich) {
  const auto coder = TryMake(Rans("static"), nullptr);
  ASSERT_FALSE(coder.has_value());
  EXPECT_EQ(coder.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(coder.error().message.find(kTables), std::string::npos);
  SideInfo tables;
  ASSERT_TRUE(tables.Add(kTables, {3}, std::vector<float>(3, 1.0F)).has_value());
  EXPECT_FALSE(TryMake(Rans("static"), &tables).has_value());
}

TEST(RansCoder, AFrameWithATableNobodyHasIsCorrupt) {
  Rng rng(47);
  const SideInfo tables = MadeTables();
  SymbolPlanes planes;
  planes.Add(256, 2, 5000);
  for (auto& symbol : planes.planes[0].symbols) {
    do {
      symbol = static_cast<uint8_t>(rng.Below(256));
    } while (rng.Uniform() * 20 > 1000.0 / (1.0 + (symbol * 3) % 61) / 50);
  }
  const auto bytes = Encode(*Make(Rans("static"), &tables), planes);
  SymbolPlanes decoded = Blank(planes);
  const auto done = Make(Rans("auto"), nullptr)->Decode(On(Isa::kScalar), bytes, decoded);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace kvik::codec
