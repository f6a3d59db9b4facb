// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "codec/registry.h"
#include "codec/testing/quantizer_runs.h"

namespace kvik::codec {
namespace {

using testing::DecodeRun;
using testing::QuantizerCase;
using testing::QuantizerRun;
using testing::RunQuantizer;

constexpr uint64_t kSeed = 20240901;

// The nearest half that is not above x.
float DownToHalf(float x) {
  for (uint32_t bits = ToF16(x).bits;;) {
    const float half = ToFloat(F16{static_cast<uint16_t>(bits)});
    if (half <= x) {
      return half;
    }
    bits = bits == 0 ? 0x8001 : (bits & 0x8000) != 0 ? bits + 1 : bits - 1;
  }
}

struct Settings {
  std::string per = "token";
  int32_t group = 0;
  int32_t levels = 16;
  bool symmetric = false;
  int32_t body_begin = 0;  // rows that are not protected
  int32_t body_end = 0;
};

// Names the range that a value of the body belongs to.
std::array<int32_t, 3> RangeOf(const Settings& s, int32_t h, int32_t r, int32_t c) {
  if (s.per == "tensor") {
    return {h, 0, 0};
  }
  if (s.per == "token") {
    return s.group == 0 ? std::array<int32_t, 3>{0, r, 0}
                        : std::array<int32_t, 3>{h, r, c / s.group};
  }
  return {h, s.group == 0 ? 0 : (r - s.body_begin) / s.group, c};
}

// What every value of the body becomes, the slow way.
class Reference {
 public:
  struct Expected {
    float step = 0;
    float value = 0;
  };

  Reference(const Settings& s, const Tile& tile) : s_(s), tile_(tile) {
    for (int32_t h = 0; h < tile.heads; ++h) {
      for (int32_t r = s.body_begin; r < s.body_end; ++r) {
        for (int32_t c = 0; c < tile.channels; ++c) {
          const float x = QuantizerCase::At(tile, h, r, c);
          const auto [at, is_new] = ranges_.try_emplace(RangeOf(s, h, r, c), x, x);
          at->second = {std::min(at->second.first, x), std::max(at->second.second, x)};
        }
      }
    }
  }

  [[nodiscard]] Expected Of(int32_t h, int32_t r, int32_t c) const {
    auto [lo, hi] = ranges_.at(RangeOf(s_, h, r, c));
    if (s_.symmetric) {
      hi = -DownToHalf(-std::max(-lo, hi));
      lo = -hi;
    } else {
      lo = DownToHalf(lo);
      hi = -DownToHalf(-hi);
    }
    const auto intervals = static_cast<float>(s_.levels - 1);
    const float range = hi - lo;
    const float step = range > 0 ? range / intervals : 0;
    const float inv = range > 0 ? intervals / range : 0;
    const float q = std::nearbyint((QuantizerCase::At(tile_, h, r, c) - lo) * inv);
    return {step, std::fma(q, step, lo)};
  }

 private:
  Settings s_;
  const Tile& tile_;
  std::map<std::array<int32_t, 3>, std::pair<float, float>> ranges_;
};

void ExpectBodyEqualsReference(const Settings& s, const QuantizerCase& c, const Tile& decoded) {
  const Reference reference(s, c.tile);
  for (int32_t h = 0; h < decoded.heads; ++h) {
    for (int32_t r = s.body_begin; r < s.body_end; ++r) {
      for (int32_t ch = 0; ch < decoded.channels; ++ch) {
        const auto expected = reference.Of(h, r, ch);
        const float actual = QuantizerCase::At(decoded, h, r, ch);
        ASSERT_EQ(actual, expected.value) << "head " << h << " row " << r << " channel " << ch;
        const float x = QuantizerCase::At(c.tile, h, r, ch);
        ASSERT_LE(std::abs(x - actual), 0.5F * expected.step * (1 + 1e-5F) + 1e-6F * std::abs(x));
      }
    }
  }
}

TEST(Uniform, EqualsTheReferenceOverOddShapes) {
  Rng rng(kSeed);
  for (const int32_t head_dim : {64, 80, 96, 100, 112, 128, 192, 256}) {
    for (const int32_t heads : {1, 2, 5}) {
      for (const char* per : {"tensor", "token", "channel"}) {
        const int32_t rows = std::vector<int32_t>{1, 2, 3, 7}[rng.Below(4)];
        QuantizerCase c(heads, rows, head_dim);
        c.FillMade(rng.Next());
        Settings s;
        s.per = per;
        s.group = s.per == "tensor" ? 0 : std::vector<int32_t>{0, 2, 32}[rng.Below(3)];
        if (s.per == "token" && s.group == 2) {
          s.group = 24;  // not a multiple of a vector
        }
        s.levels = static_cast<int32_t>(rng.Range(2, 256));
        s.symmetric = rng.Below(2) == 0;
        s.body_end = rows;
        const std::string text = "uniform(levels=" + std::to_string(s.levels) +
                                 ",mode=" + (s.symmetric ? "symmetric" : "asymmetric") +
                                 ",per=" + per + ",group=" + std::to_string(s.group) + ")";
        SCOPED_TRACE(text + " of " + std::to_string(heads) + " heads, " + std::to_string(rows) +
                     " rows, " + std::to_string(head_dim) + " channels");
        ExpectBodyEqualsReference(s, c, RunQuantizer(text, c).decoded);
      }
    }
  }
}

TEST(Uniform, RowsThatAreNoMultipleOfTheGroup) {
  for (const int32_t rows : {1, 31, 32, 33, 70}) {
    QuantizerCase c(1, rows, 64);
    c.FillMade(kSeed);
    Settings s{.per = "channel", .group = 32, .levels = 4, .body_end = rows};
    ExpectBodyEqualsReference(s, c, RunQuantizer("uniform(4,per=channel,group=32)", c).decoded);
    s = {.per = "token", .group = 32, .levels = 4, .body_end = rows};
    ExpectBodyEqualsReference(s, c, RunQuantizer("uniform(4,per=token,group=32)", c).decoded);
  }
}

TEST(Uniform, NoRowsMakeNoPlanes) {
  QuantizerCase c(2, 0, 64);
  for (const char* text : {"uniform(16)", "uniform(16,per=channel)", "uniform(16,per=tensor)",
                           "uniform(16,sinks=4,recent=8)"}) {
    const QuantizerRun run = RunQuantizer(text, c);
    EXPECT_EQ(run.planes.count, 0U);
    EXPECT_TRUE(run.side.empty());
  }
}

TEST(Uniform, KiviTendsTo5Point33) {
  // Two bits a value and two halves for every 32 of them; the last 128 tokens stay bf16.
  for (const char* per : {"channel", "token"}) {
    const std::string text = std::string("uniform(levels=4,per=") + per + ",group=32,recent=128)";
    QuantizerCase body(2, 1536, 64);
    body.FillMade(kSeed);
    EXPECT_DOUBLE_EQ(RunQuantizer(text, body).PackedBits(), 3.0);
    EXPECT_NEAR(16 / RunQuantizer(text, body).PackedBits(), 5.33, 0.01);
    body.prompt_tokens = 1536;
    EXPECT_DOUBLE_EQ(RunQuantizer(text, body).PackedBits(), (1408 * 3.0 + 128 * 16.0) / 1536);
  }
}

TEST(Uniform, ProtectedRowsStayBf16) {
  QuantizerCase c(3, 40, 80);
  c.FillMade(kSeed);
  c.prompt_tokens = 40;
  for (const char* per : {"tensor", "token", "channel"}) {
    const std::string text = std::string("uniform(levels=3,sinks=4,recent=6,per=") + per + ")";
    const QuantizerRun run = RunQuantizer(text, c);
    for (int32_t h = 0; h < 3; ++h) {
      for (int32_t r = 0; r < 40; ++r) {
        for (int32_t ch = 0; ch < 80 && (r < 4 || r >= 34); ++ch) {
          ASSERT_EQ(QuantizerCase::At(run.decoded, h, r, ch), QuantizerCase::At(c.tile, h, r, ch));
        }
      }
    }
    const Settings s{.per = per, .levels = 3, .body_begin = 4, .body_end = 34};
    ExpectBodyEqualsReference(s, c, run.decoded);
  }
}

TEST(Uniform, ProtectedRowsMayHaveLevelsOfTheirOwn) {
  QuantizerCase c(2, 40, 64);
  c.FillMade(kSeed);
  c.prompt_tokens = 42;  // two of the recent tokens are in another frame
  for (const char* per : {"tensor", "token", "channel"}) {
    const std::string text =
        std::string("uniform(levels=4,sinks=4,recent=8,protect=64,per=") + per + ")";
    const QuantizerRun run = RunQuantizer(text, c);
    ExpectBodyEqualsReference({.per = per, .levels = 4, .body_begin = 4, .body_end = 34}, c,
                              run.decoded);
    ExpectBodyEqualsReference({.per = per, .levels = 64, .body_begin = 0, .body_end = 4}, c,
                              run.decoded);
    ExpectBodyEqualsReference({.per = per, .levels = 64, .body_begin = 34, .body_end = 40}, c,
                              run.decoded);
  }
}

TEST(Uniform, RecentRowsNeedToKnowThePrompt) {
  QuantizerCase c(1, 16, 64);
  c.FillMade(kSeed);
  EXPECT_EQ(RunQuantizer("uniform(levels=4,recent=8)", c).planes.count, 1U);
  c.prompt_tokens = 100;  // the tile ends long before the last 8 tokens
  EXPECT_EQ(RunQuantizer("uniform(levels=4,recent=8)", c).planes.count, 1U);
  c.prompt_tokens = 16;
  EXPECT_EQ(RunQuantizer("uniform(levels=4,recent=8)", c).planes.count, 3U);
  EXPECT_EQ(RunQuantizer("uniform(levels=4,recent=999)", c).planes.count, 2U);  // no body
}

TEST(Uniform, HeadsMixLevels) {
  QuantizerCase c(5, 20, 64);
  c.FillMade(kSeed);
  c.layer = 11;
  std::vector<float> scores(size_t{12} * 5);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>((i * 37) % 60);
  }
  ASSERT_TRUE(c.side_info->Add("scores/output", {12, 5}, scores));
  const std::string text = "uniform(levels=mix(0.5,16,5),per=channel,scores=output)";
  const QuantizerRun run = RunQuantizer(text, c);
  ASSERT_EQ(run.planes.count, 2U);
  EXPECT_EQ(run.planes.planes[0].alphabet, 5);
  EXPECT_EQ(run.planes.planes[1].alphabet, 16);
  for (int32_t h = 0; h < 5; ++h) {
    const bool low = scores[size_t{11} * 5 + static_cast<size_t>(h)] < 30;
    const Settings s{.per = "channel", .levels = low ? 5 : 16, .body_end = 20};
    for (int32_t ch = 0; ch < 64; ++ch) {
      EXPECT_EQ(QuantizerCase::At(run.decoded, h, 3, ch), Reference(s, c.tile).Of(h, 3, ch).value);
    }
  }
  EXPECT_EQ(c.Make("uniform(levels=mix(0.5,16,5))").error().code, ErrorCode::kUnsupported);

  // Some heads of the layer alone decode to the same values: ranges are theirs.
  QuantizerCase some(5, 20, 64);
  some.layer = 11;
  some.side_info = c.side_info;
  some.heads = {1, 4};
  some.tile.Resize(2, 20, 64);
  std::copy(c.tile.Head(1).begin(), c.tile.Head(1).end(), some.tile.Head(0).begin());
  std::copy(c.tile.Head(4).begin(), c.tile.Head(4).end(), some.tile.Head(1).begin());
  const QuantizerRun part = RunQuantizer(text, some);
  EXPECT_TRUE(std::equal(part.decoded.Head(0).begin(), part.decoded.Head(0).end(),
                         run.decoded.Head(1).begin()));
  EXPECT_TRUE(std::equal(part.decoded.Head(1).begin(), part.decoded.Head(1).end(),
                         run.decoded.Head(4).begin()));
}

TEST(Uniform, LayersAboveNineAreOrderedAsNumbers) {
  for (int32_t layer = 0; layer < 12; ++layer) {
    QuantizerCase c(1, 4, 64);
    c.layer = layer;
    EXPECT_EQ(RunQuantizer("uniform(levels=thirds(32,16,12))", c).planes.planes[0].alphabet,
              layer < 4   ? 32
              : layer < 8 ? 16
                          : 12);
    EXPECT_EQ(RunQuantizer("uniform(levels=pyramid(24,2))", c).planes.planes[0].alphabet,
              24 - 2 * layer);
  }
}

TEST(Uniform, ConstantZeroAndSubnormalChannels) {
  for (const char* mode : {"asymmetric", "symmetric"}) {
    for (const char* per : {"tensor", "token", "channel"}) {
      QuantizerCase c(1, 5, 64);
      c.Fill([](int32_t, int32_t r, int32_t ch) {
        switch (ch % 4) {
          case 0:
            return 3.140625F;
          case 1:
            return r % 2 == 0 ? 0.0F : -0.0F;
          case 2:
            return 0x1.0p-130F * static_cast<float>(r - 2);  // subnormal, as bf16 too
          default:
            return 1000.1F;  // no half
        }
      });
      const Settings s{
          .per = per, .levels = 15, .symmetric = std::string(mode) == "symmetric", .body_end = 5};
      const QuantizerRun run =
          RunQuantizer(std::string("uniform(levels=15,mode=") + mode + ",per=" + per + ")", c);
      ExpectBodyEqualsReference(s, c, run.decoded);
    }
  }
}

TEST(Uniform, AllZeroIsExact) {
  QuantizerCase c(2, 33, 96);
  for (const char* per : {"tensor", "token", "channel"}) {
    const QuantizerRun run = RunQuantizer(std::string("uniform(levels=2,per=") + per + ")", c);
    EXPECT_TRUE(std::all_of(run.decoded.values.begin(), run.decoded.values.end(),
                            [](float v) { return v == 0; }));
  }
}

TEST(Uniform, SideInformationThatOverflowsAHalfIsRefused) {
  for (const char* per : {"tensor", "token", "channel"}) {
    for (const float extreme : {65505.0F, -65520.0F, 1e38F}) {
      QuantizerCase c(2, 20, 64);
      c.FillMade(kSeed);
      QuantizerCase::At(c.tile, 1, 7, 63) = extreme;
      const auto quantizer = c.Make(std::string("uniform(levels=16,per=") + per + ")");
      ASSERT_TRUE(quantizer);
      for (const Isa isa : SupportedIsas()) {
        SymbolPlanes planes;
        std::vector<std::byte> side;
        ByteWriter writer(side);
        const auto done = (*quantizer)->Quantize(c.Context(isa), c.tile, planes, writer);
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
      }
      QuantizerCase::At(c.tile, 1, 7, 63) = 65504.0F;
      RunQuantizer(std::string("uniform(levels=16,per=") + per + ")", c);
    }
  }
}

TEST(Uniform, SideBytesTruncatedOrLying) {
  QuantizerCase c(2, 70, 64);
  c.FillMade(kSeed);
  c.prompt_tokens = 70;
  for (const char* text :
       {"uniform(levels=16,per=tensor)", "uniform(levels=16,per=token,group=32,sinks=2)",
        "uniform(levels=16,per=channel,group=32,recent=9,protect=64)",
        "uniform(levels=16,mode=symmetric)"}) {
    const auto quantizer = c.Make(text);
    const QuantizerRun run = RunQuantizer(text, c);
    for (size_t size = 0; size < run.side.size(); size += 1 + run.side.size() / 97) {
      const auto decoded =
          DecodeRun(**quantizer, c, Isa::kScalar, run.planes, std::span(run.side).first(size));
      ASSERT_FALSE(decoded) << text << " with " << size << " bytes";
      EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
    }
    std::vector<std::byte> lying = run.side;
    lying[1] = std::byte{0x7C};  // an infinite or NaN half
    EXPECT_EQ(DecodeRun(**quantizer, c, Isa::kScalar, run.planes, lying).error().code,
              ErrorCode::kCorrupt);
  }
}

TEST(Uniform, RefusesWhatMakesNoSense) {
  for (const char* text :
       {"none -> uniform(levels=1) -> none", "none -> uniform(levels=257) -> none",
        "none -> uniform(levels=4.5) -> none", "none -> uniform(per=tensor,group=32) -> none",
        "none -> uniform(protect=1) -> none", "none -> uniform(levels=mix(0.5,16)) -> none"}) {
    const auto pipeline = PipelineSpec::Parse(text);
    ASSERT_FALSE(pipeline) << text;
    EXPECT_EQ(pipeline.error().code, ErrorCode::kInvalidInput);
  }
}

TEST(Uniform, TheSearchedLevelsHoldThePublishedGridOfMixes) {
  const StageModule* const stage = FindStage(StageKind::kQuantizer, "uniform");
  ASSERT_NE(stage, nullptr);
  // High and low levels of keys and of values, at the same share of heads.
  size_t candidates = 0;
  for (const ArgValue& key : stage->params[0].search) {
    for (const ArgValue& value : stage->params[0].search) {
      candidates += key.word == "mix" && value.word == "mix" && key.list[0] == value.list[0];
    }
  }
  EXPECT_EQ(candidates, 3969U);
}

}  // namespace
}  // namespace kvik::codec
