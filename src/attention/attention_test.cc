// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "attention/testing/runner.h"
#include "base/rng.h"

namespace kvik::attention {
namespace {

class AttentionTest : public TargetTest {};

INSTANTIATE_TEST_SUITE_P(Isas, AttentionTest, testing::ValuesIn(AllTargets()),
                         [](const auto& param) { return TargetName(param.param); });

TEST_P(AttentionTest, EqualsTheReferenceForEveryHeadLayout) {
  const AttentionShape shapes[] = {Shape(9, 3, 64), Shape(14, 2, 64), Shape(28, 4, 128),
                                   Shape(8, 8, 80), Shape(6, 1, 96),  Shape(4, 2, 256),
                                   Shape(2, 1, 16), Shape(50, 1, 32), Shape(3, 3, 112)};
  for (const AttentionShape& shape : shapes) {
    for (int length : {1, 17, Length(150)}) {
      Rng rng(static_cast<uint64_t>(shape.head_dim * 1000 + length));
      const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
      Runner runner = MakeRunner(shape, 16, requests, 1);
      const Step step = {{0, 0, length}};
      runner.Run(step);
      const std::vector<double> want = runner.Reference(step);
      for (size_t i = 0; i < want.size(); ++i) {
        const double error = std::abs(static_cast<double>(runner.out(0)[i]) - want[i]);
        ASSERT_LE(error, Tolerance())
            << "heads " << shape.num_q_heads << "/" << shape.num_kv_heads << " dim "
            << shape.head_dim << " length " << length << " at " << i;
      }
    }
  }
}

TEST_P(AttentionTest, OutputDependsOnPositionAndContentOnly) {
  const AttentionShape shapes[] = {Shape(9, 3, 64), Shape(14, 2, 64), Shape(4, 1, 80),
                                   Shape(4, 2, 128, 70), Shape(2, 2, 96, 100)};
  for (const uint64_t seed : Seeds(Cases(3))) {
    Rng rng(seed);
    const AttentionShape& shape = shapes[seed % std::size(shapes)];
    // Past one span, so that merges happen.
    const int length = Length(static_cast<int>(rng.Range(kSpanTokens, 3 * kSpanTokens)));
    std::vector<Request> requests = {RandomRequest(rng, shape, length),
                                     RandomRequest(rng, shape, Length(200)),
                                     RandomRequest(rng, shape, 9)};
    Runner whole = MakeRunner(shape, 16, requests, seed);
    for (size_t r = 0; r < requests.size(); ++r) {
      whole.Run({{r, 0, requests[r].num_tokens}});
    }
    for (int variant = 0; variant < 3; ++variant) {
      const int block_sizes[] = {16, 32, 64};
      const int block_size = block_sizes[(seed + static_cast<uint64_t>(variant)) % 3];
      const Work work = RandomWork(rng, requests, variant > 0);
      const std::vector<Step> steps = CutIntoSteps(rng, work.todo);
      Runner run = MakeRunner(shape, block_size, requests, seed * 10 + 1,
                              1 + static_cast<int>(rng.Below(3)));
      for (const Piece& piece : work.cached) {
        run.Cache(piece, 1);
      }
      for (const Step& step : steps) {
        run.Run(step, 1);
      }
      for (size_t r = 0; r < requests.size(); ++r) {
        ExpectSameRows(whole.out(r), run.out(r), work.todo[r], shape.num_q_heads * shape.head_dim,
                       seed);
      }
    }
  }
}

TEST_P(AttentionTest, LongDecodeIsSplitAndEqualsPrefill) {
  const AttentionShape shape = Shape(6, 2, 64);
  const int length = Length(4 * kSpanTokens + 77);
  Rng rng(3);
  const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
  Runner prefill = MakeRunner(shape, 16, requests, 3);
  prefill.Run({{0, 0, length}});
  for (int threads : {1, 2, 3, 4}) {
    Runner decode = MakeRunner(shape, 32, requests, 4, threads);
    decode.Cache({0, 0, length - 1}, 0);
    decode.Run({{0, length - 1, 1}});
    if (threads != 2) {  // two threads may get a kv head each
      EXPECT_EQ(decode.plan().splits().empty(), threads == 1 || length <= kSpanTokens);
    }
    const std::ptrdiff_t last =
        static_cast<std::ptrdiff_t>(length - 1) * shape.num_q_heads * shape.head_dim;
    const std::vector<float> want(prefill.out(0).begin() + last, prefill.out(0).end());
    const std::vector<float> got(decode.out(0).begin() + last, decode.out(0).end());
    EXPECT_TRUE(SameBits(want, got)) << threads << " threads";
  }
}

TEST_P(AttentionTest, DecodesOfAllHeadsAtOnceEqualPrefill) {
  for (const auto& [q_heads, kv_heads] : {std::pair(9, 3), std::pair(14, 2), std::pair(8, 8)}) {
    const AttentionShape shape = Shape(q_heads, kv_heads, 64);
    const int length = Length(kSpanTokens + 90);
    const auto length_of = [&](size_t r) { return length - 31 * static_cast<int>(r); };
    Rng rng(5);
    std::vector<Request> requests;
    Step prompts, decodes;
    for (size_t r = 0; r < 5; ++r) {
      const int tokens = length_of(r);
      requests.push_back(RandomRequest(rng, shape, tokens));
      prompts.push_back({r, 0, tokens});
      decodes.push_back({r, tokens - 1, 1});
    }
    Runner prefill = MakeRunner(shape, 16, requests, 6);
    prefill.Run(prompts);
    Runner decode = MakeRunner(shape, 64, requests, 7, 1);
    for (size_t r = 0; r < 5; ++r) {
      decode.Cache({r, 0, length_of(r) - 1}, 0);
    }
    decode.Run(decodes);
    EXPECT_TRUE(std::any_of(decode.plan().items().begin(), decode.plan().items().end(),
                            [](const AttentionItem& item) { return item.num_kv_heads > 1; }));
    for (size_t r = 0; r < 5; ++r) {
      const std::ptrdiff_t last =
          static_cast<std::ptrdiff_t>(length_of(r) - 1) * q_heads * shape.head_dim;
      const std::vector<float> want(prefill.out(r).begin() + last, prefill.out(r).end());
      const std::vector<float> got(decode.out(r).begin() + last, decode.out(r).end());
      EXPECT_TRUE(SameBits(want, got)) << q_heads << "/" << kv_heads << " request " << r;
    }
  }
}

TEST_P(AttentionTest, SlidingWindowEqualsTheReference) {
  for (int window : {1, 5, 64, 100, 700}) {
    const AttentionShape shape = Shape(4, 2, 64, window);
    const int length = Length(800);
    Rng rng(static_cast<uint64_t>(window));
    const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
    Runner runner = MakeRunner(shape, 16, requests, 5);
    const Step step = {{0, 0, length}};
    runner.Run(step);
    const std::vector<double> want = runner.Reference(step);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_LE(std::abs(static_cast<double>(runner.out(0)[i]) - want[i]), Tolerance())
          << "window " << window << " at " << i;
    }
  }
}

TEST_P(AttentionTest, LargeAndEqualScoresStayFinite) {
  // Scores grow along the sequence by far more than a float32 exponent holds, then stay equal.
  const AttentionShape shape = Shape(2, 1, 64);
  const int length = Length(400);
  Rng rng(11);
  std::vector<Request> requests = {RandomRequest(rng, shape, length)};
  for (size_t i = 0; i < requests[0].k.size(); ++i) {
    const size_t pos = i / 64;
    requests[0].k[i] = pos < 200 ? static_cast<float>(pos) : 200.0F;
  }
  for (size_t i = 0; i < requests[0].q.size(); ++i) {
    requests[0].q[i] = i / 128 % 2 == 0 ? 1.0F : -1.0F;
  }
  Runner runner = MakeRunner(shape, 16, requests, 6);
  const Step step = {{0, 0, length}};
  runner.Run(step);
  const std::vector<double> want = runner.Reference(step);
  for (size_t i = 0; i < want.size(); ++i) {
    // Scores of up to 1600 carry 1600 * 2^-24 of error.
    ASSERT_LE(std::abs(static_cast<double>(runner.out(0)[i]) - want[i]),
              std::max(Tolerance(), 2e-3))
        << "at " << i;
  }
}

TEST_P(AttentionTest, WritesExactlyThePagesOfItsLayer) {
  const AttentionShape shape = Shape(4, 2, 80);
  const int length = 75;
  Rng rng(8);
  const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
  for (int block_size : {16, 32, 64}) {
    // Odd cuts: pairs of values are written by halves.
    Runner pieces = MakeRunner(shape, block_size, requests, 9, 2);
    pieces.Run({{0, 0, 1}}, 1);
    pieces.Run({{0, 1, 30}, {0, 31, 2}}, 1);
    pieces.Run({{0, 33, 42}}, 1);
    Runner want = MakeRunner(shape, block_size, requests, 9);
    want.Cache({0, 0, length}, 1);
    ASSERT_EQ(pieces.arena().size(), want.arena().size());
    EXPECT_EQ(std::memcmp(pieces.arena().data(), want.arena().data(), want.arena().size()), 0)
        << "block size " << block_size;
  }
}

TEST(Attention, Float32ArithmeticHasTheSameBitsOnEveryIsa) {
  for (kv::KvDtype dtype : {kv::KvDtype::kBf16, kv::KvDtype::kF32}) {
    for (const AttentionShape& shape : {Shape(9, 3, 64), Shape(7, 1, 80, 50)}) {
      const int length = 600;
      Rng rng(21);
      const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
      // The tail is enough for the slow portable code: it sees every key.
      const Piece cached = {0, 0, length - 20};
      const Step step = {{0, length - 20, 20}};
      Runner scalar(Isa::kScalar, ComputeType::kF32, shape, dtype, 16, requests, 1);
      scalar.Cache(cached, 0);
      scalar.Run(step);
      for (Isa isa : SupportedIsas()) {
        Runner other(isa, ComputeType::kF32, shape, dtype, 16, requests, 1);
        other.Cache(cached, 0);
        other.Run(step);
        EXPECT_TRUE(SameBits(scalar.out(0), other.out(0))) << IsaName(isa);
      }
    }
  }
}

TEST(Attention, Bf16ArithmeticHasTheSameBitsInTheScalarTwin) {
  if (!IsaSupported(Isa::kAvx512Bf16)) {
    GTEST_SKIP() << "avx512bf16 is not supported by this CPU";
  }
  for (const AttentionShape& shape : {Shape(9, 3, 64), Shape(7, 1, 80, 50)}) {
    const int length = 600;
    Rng rng(22);
    const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
    std::vector<std::vector<float>> outs;
    for (Isa isa : {Isa::kScalar, Isa::kAvx512Bf16}) {
      Runner run(isa, ComputeType::kBf16, shape, kv::KvDtype::kBf16, 16, requests, 1);
      run.Cache({0, 0, length - 20}, 0);
      run.Run({{0, length - 20, 20}});
      outs.push_back(run.out(0));
    }
    EXPECT_TRUE(SameBits(outs[0], outs[1]));
  }
}

TEST(Attention, RejectsWhatItCannotCompute) {
  const AttentionShape shape = Shape(9, 3, 64);
  const kv::KvGeometry geometry{1, 3, 64, 16, kv::KvDtype::kBf16};
  const auto code = [](const AttentionShape& s, const kv::KvGeometry& g) {
    auto attention = Attention::Create(Isa::kScalar, ComputeType::kF32, s, g);
    return attention.has_value() ? std::string("ok") : attention.error().message;
  };
  EXPECT_EQ(code(shape, geometry), "ok");
  AttentionShape heads = shape;
  heads.num_q_heads = 8;
  EXPECT_NE(code(heads, geometry).find("8 query heads"), std::string::npos);
  AttentionShape dim = shape;
  dim.head_dim = 72;
  EXPECT_NE(code(dim, geometry).find("72"), std::string::npos);
  kv::KvGeometry block = geometry;
  block.block_size_tokens = 8;
  EXPECT_NE(code(shape, block).find("block size 8"), std::string::npos);
  kv::KvGeometry other = geometry;
  other.num_kv_heads = 9;
  EXPECT_NE(code(shape, other).find("contradict"), std::string::npos);
  EXPECT_FALSE(Attention::Create(Isa::kAvx2, ComputeType::kBf16, shape, geometry).has_value());
}

TEST(AttentionPlan, ItemsCoverEveryRowHeadAndSpanOnce) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    const AttentionShape shape =
        Shape(static_cast<int>(rng.Range(1, 4)) * 3, 3, 64, rng.Below(2) == 0 ? 0 : 600);
    std::vector<MsaSegment> segments;
    int row = 0;
    for (int64_t n = rng.Range(1, 6); n > 0; --n) {
      const int tokens = rng.Below(2) == 0 ? 1 : static_cast<int>(rng.Range(1, 300));
      segments.push_back({row, tokens, static_cast<int32_t>(rng.Below(3000)), nullptr});
      row += tokens;
    }
    AttentionPlan plan;
    plan.Build(shape, segments, static_cast<int>(rng.Range(1, 8)));
    EXPECT_EQ(plan.num_rows(), row);
    std::vector<std::tuple<int, int, int>> want, got;  // row, kv head, span
    for (const MsaSegment& s : segments) {
      for (int t = 0; t < s.num_tokens; ++t) {
        const int pos = s.first_pos + t;
        const int first =
            shape.sliding_window > 0 ? std::max(0, pos - shape.sliding_window + 1) : 0;
        for (int head = 0; head < 3; ++head) {
          for (int span = first / kSpanTokens; span <= pos / kSpanTokens; ++span) {
            want.emplace_back(s.first_row + t, head, span);
          }
        }
      }
    }
    std::vector<int> parts(plan.splits().size());
    for (const AttentionItem& item : plan.items()) {
      const MsaSegment& s = segments[static_cast<size_t>(item.segment)];
      EXPECT_LE(item.first_token + item.num_tokens, s.num_tokens);
      if (item.split >= 0) {
        ++parts[static_cast<size_t>(item.split)];
      }
      for (int t = item.first_token; t < item.first_token + item.num_tokens; ++t) {
        const int pos = s.first_pos + t;
        const int first =
            shape.sliding_window > 0 ? std::max(0, pos - shape.sliding_window + 1) : 0;
        for (int span = item.first_span; span < item.end_span; ++span) {
          // An item may hold spans that only other rows of it see.
          if (span >= first / kSpanTokens && span <= pos / kSpanTokens) {
            for (int head = 0; head < item.num_kv_heads; ++head) {
              got.emplace_back(s.first_row + t, item.kv_head + head, span);
            }
          }
        }
      }
    }
    std::sort(want.begin(), want.end());
    std::sort(got.begin(), got.end());
    EXPECT_EQ(want, got) << "seed " << seed;
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i], plan.splits()[i].num_spans);
    }
  }
}

}  // namespace
}  // namespace kvik::attention
