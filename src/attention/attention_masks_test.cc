// SPDX-License-Identifier: Apache-2.0
// Attention with dropped slots: what it computes, and that all the promises of attention.h hold.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/testing/runner.h"
#include "base/isa.h"
#include "base/rng.h"

namespace kvik::attention {
namespace {

class MaskedAttentionTest : public TargetTest {};

INSTANTIATE_TEST_SUITE_P(Isas, MaskedAttentionTest, testing::ValuesIn(AllTargets()),
                         [](const auto& param) { return TargetName(param.param); });

// One token of one request, dropped for one kv head.
struct DroppedToken {
  size_t request = 0;
  int pos = 0;
  int kv_head = 0;
};

// Of positions [0, num_tokens): which a head drops, in one of the ways that compression has.
std::vector<bool> RandomDrops(Rng& rng, int num_tokens) {
  std::vector<bool> drops(static_cast<size_t>(num_tokens));
  const auto fill = [&](int64_t begin, int64_t end, bool drop) {
    for (int64_t i = std::max<int64_t>(0, begin); i < std::min<int64_t>(num_tokens, end); ++i) {
      drops[static_cast<size_t>(i)] = drop;
    }
  };
  const auto drop_aligned = [&](int64_t size) {
    const int64_t first =
        static_cast<int64_t>(rng.Below(static_cast<uint64_t>(num_tokens / size + 1))) * size;
    fill(first, first + size * rng.Range(1, 3), true);
  };
  switch (rng.Below(8)) {
    case 0:  // a head that keeps everything
      break;
    case 1:  // a streaming head: the first and the latest tokens stay
      fill(rng.Range(0, 70), num_tokens - rng.Range(0, 100), true);
      break;
    case 2:  // ranges
      for (int64_t n = rng.Range(1, 6); n > 0; --n) {
        const int64_t first = rng.Range(0, num_tokens);
        fill(first, first + rng.Range(1, 200), true);
      }
      break;
    case 3:  // tiles
      drop_aligned(kTileTokens);
      drop_aligned(kTileTokens);
      break;
    case 4:  // spans
      drop_aligned(kSpanTokens);
      break;
    case 5:  // groups of lanes
      for (int i = 0; i < 8; ++i) {
        drop_aligned(16);
      }
      break;
    case 6: {  // scattered tokens, few or most of them
      const double share = rng.Uniform();
      for (int i = 0; i < num_tokens; ++i) {
        fill(i, i + 1, rng.Uniform() < share);
      }
      break;
    }
    default:  // everything
      fill(0, num_tokens, true);
  }
  return drops;
}

// Drops among the cached tokens: those that are computed see themselves.
std::vector<DroppedToken> RandomDroppedTokens(Rng& rng, const Work& work,
                                              const std::vector<Request>& requests,
                                              int num_kv_heads) {
  std::vector<DroppedToken> dropped;
  for (size_t r = 0; r < requests.size(); ++r) {
    for (int head = 0; head < num_kv_heads; ++head) {
      const std::vector<bool> drops = RandomDrops(rng, requests[r].num_tokens);
      for (const Piece& piece : work.cached) {
        for (int pos = piece.first_pos; pos < piece.first_pos + piece.num_tokens; ++pos) {
          if (piece.request == r && drops[static_cast<size_t>(pos)]) {
            dropped.push_back({r, pos, head});
          }
        }
      }
    }
  }
  return dropped;
}

// Caches and drops; what dropped slots hold is different every time, and never harmless.
void CacheAndDrop(Runner& runner, const Work& work, const std::vector<DroppedToken>& dropped,
                  int layer, Rng& rng) {
  constexpr float kBytes[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 1e38F};
  for (const Piece& piece : work.cached) {
    runner.Cache(piece, layer);
  }
  for (const DroppedToken& token : dropped) {
    runner.Drop(token.request, token.pos, layer, token.kv_head,
                kBytes[rng.Below(std::size(kBytes))]);
  }
}

// Positions [0, cached) of the only request have KV; the rest is to be computed.
Work PrefixWork(int cached, int num_tokens) {
  return {{{0, 0, cached}}, {{{0, cached, num_tokens - cached}}}};
}

double LargestError(const std::vector<float>& got, size_t first, const std::vector<double>& want) {
  double error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::abs(static_cast<double>(got[first + i]) - want[i]);
    error = e <= error ? error : e;  // max() would drop a NaN
  }
  return error;
}

TEST_P(MaskedAttentionTest, EqualsTheReferenceForEveryHeadLayoutAndBlockSize) {
  const AttentionShape shapes[] = {Shape(9, 3, 64), Shape(14, 2, 64), Shape(28, 4, 128),
                                   Shape(8, 8, 80), Shape(6, 1, 96),  Shape(4, 2, 256),
                                   Shape(2, 1, 16), Shape(3, 3, 112), Shape(4, 2, 64, 150),
                                   Shape(5, 5, 64), Shape(50, 1, 32)};
  constexpr int kBlockSizes[] = {16, 32, 64};
  const std::vector<uint64_t> seeds = Seeds(std::size(shapes));
  for (size_t i = 0; i < std::size(shapes); ++i) {
    const AttentionShape& shape = shapes[i];
    const uint64_t seed = seeds[i];
    const int block_size = kBlockSizes[(seed + i) % 3];
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ": heads " << shape.num_q_heads << "/" << shape.num_kv_heads
                 << " dim " << shape.head_dim << " block size " << block_size);
    Rng rng(seed);
    const int cached = Length(static_cast<int>(rng.Range(1, kSpanTokens + 200)));
    const int computed = static_cast<int>(rng.Below(3) == 0 ? 1 : rng.Range(2, 40));
    const std::vector<Request> requests = {RandomRequest(rng, shape, cached + computed)};
    const Work work = PrefixWork(cached, cached + computed);
    Runner runner = MakeRunner(shape, block_size, requests, seed);
    CacheAndDrop(runner, work, RandomDroppedTokens(rng, work, requests, shape.num_kv_heads), 1,
                 rng);
    const Step& step = work.todo[0];
    runner.Run(step, 1);
    const auto width = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
    ASSERT_LE(
        LargestError(runner.out(0), static_cast<size_t>(cached) * width, runner.Reference(step, 1)),
        Tolerance());
  }
}

TEST_P(MaskedAttentionTest, OutputDependsOnPositionContentAndDropsOnly) {
  const AttentionShape shapes[] = {Shape(9, 3, 64), Shape(14, 2, 64), Shape(4, 1, 80),
                                   Shape(4, 2, 128, 70), Shape(2, 2, 96, 600)};
  for (const uint64_t seed : Seeds(Cases(2))) {
    Rng rng(seed);
    const AttentionShape& shape = shapes[rng.Below(std::size(shapes))];
    const int length = Length(static_cast<int>(rng.Range(kSpanTokens, 3 * kSpanTokens)));
    const std::vector<Request> requests = {RandomRequest(rng, shape, length),
                                           RandomRequest(rng, shape, Length(200)),
                                           RandomRequest(rng, shape, 9)};
    const Work work = RandomWork(rng, requests, true);
    const std::vector<DroppedToken> dropped =
        RandomDroppedTokens(rng, work, requests, shape.num_kv_heads);
    Runner whole = MakeRunner(shape, 16, requests, seed);
    CacheAndDrop(whole, work, dropped, 0, rng);
    for (const std::vector<Piece>& todo : work.todo) {
      whole.Run(todo);
    }
    for (const int block_size : {16, 32, 64}) {
      Runner run = MakeRunner(shape, block_size, requests, seed * 10 + 1,
                              1 + static_cast<int>(rng.Below(3)));
      CacheAndDrop(run, work, dropped, 1, rng);
      for (const Step& step : CutIntoSteps(rng, work.todo)) {
        run.Run(step, 1);
      }
      for (size_t r = 0; r < requests.size(); ++r) {
        ExpectSameRows(whole.out(r), run.out(r), work.todo[r], shape.num_q_heads * shape.head_dim,
                       seed);
      }
    }
  }
}

TEST_P(MaskedAttentionTest, LongDecodesAreSplitAndEqualPrefill) {
  const AttentionShape shape = Shape(6, 2, 64);
  const int length = Length(4 * kSpanTokens + 77);
  for (const uint64_t seed : Seeds(2)) {
    Rng rng(seed);
    const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
    const Work work = PrefixWork(length - 2, length);
    const std::vector<DroppedToken> dropped =
        RandomDroppedTokens(rng, work, requests, shape.num_kv_heads);
    Runner prefill = MakeRunner(shape, 16, requests, seed);
    CacheAndDrop(prefill, work, dropped, 0, rng);
    prefill.Run(work.todo[0]);
    for (const int threads : {1, 3, 4}) {
      Runner decode = MakeRunner(shape, 32, requests, seed + 1, threads);
      CacheAndDrop(decode, work, dropped, 0, rng);
      for (int pos = length - 2; pos < length; ++pos) {
        decode.Run({{0, pos, 1}});
        EXPECT_EQ(decode.plan().splits().empty(), threads == 1 || length <= kSpanTokens);
      }
      ExpectSameRows(prefill.out(0), decode.out(0), work.todo[0],
                     shape.num_q_heads * shape.head_dim, seed);
    }
  }
}

// A query that has lost everything before its window is a query with that window.
TEST_P(MaskedAttentionTest, DroppingABeginningGivesTheBitsOfASlidingWindow) {
  for (const uint64_t seed : Seeds(4)) {
    Rng rng(seed);
    const int length = Length(static_cast<int>(rng.Range(2, 3 * kSpanTokens)));
    const int window = static_cast<int>(rng.Range(1, length));
    const AttentionShape shape = Shape(6, 2, 80);
    AttentionShape window_shape = shape;
    window_shape.sliding_window = window;
    const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
    const Work work = PrefixWork(length - 1, length);
    std::vector<DroppedToken> dropped;
    for (int pos = 0; pos < length - window; ++pos) {
      dropped.push_back({0, pos, 0});
      dropped.push_back({0, pos, 1});
    }
    Runner masked = MakeRunner(shape, 16, requests, seed);
    CacheAndDrop(masked, work, dropped, 0, rng);
    masked.Run(work.todo[0]);
    Runner windowed = MakeRunner(window_shape, 16, requests, seed);
    CacheAndDrop(windowed, work, {}, 0, rng);
    windowed.Run(work.todo[0]);
    ExpectSameRows(windowed.out(0), masked.out(0), work.todo[0], shape.num_q_heads * shape.head_dim,
                   seed);
  }
}

TEST_P(MaskedAttentionTest, DropsOfOtherBlocksLayersAndHeadsChangeNothing) {
  const AttentionShape shape = Shape(6, 3, 64);
  const int group = 2;
  const int length = Length(700);
  Rng rng(4);
  const std::vector<Request> requests = {RandomRequest(rng, shape, length),
                                         RandomRequest(rng, shape, 40)};
  const Step step = {{0, length - 30, 30}, {1, 39, 1}};
  Runner plain = MakeRunner(shape, 16, requests, 1);
  Runner masked = MakeRunner(shape, 16, requests, 1);
  for (Runner* runner : {&plain, &masked}) {
    runner->Cache({0, 0, length - 30}, 0);
    runner->Cache({1, 0, 39}, 0);
  }
  for (int pos = 0; pos < length - 30; ++pos) {
    masked.Drop(0, pos, 1, 0);  // layer 1, which nobody asks for
    if (pos % 3 != 0) {
      masked.Drop(0, pos, 0, 1);
    }
  }
  plain.Run(step);
  masked.Run(step);
  EXPECT_TRUE(SameBits(plain.out(1), masked.out(1))) << "another request's drops";
  const auto dim = static_cast<size_t>(shape.head_dim);
  const size_t width = static_cast<size_t>(shape.num_q_heads) * dim;
  for (size_t row = static_cast<size_t>(length) - 30; row < static_cast<size_t>(length); ++row) {
    for (int head = 0; head < shape.num_q_heads; ++head) {
      const size_t at = row * width + static_cast<size_t>(head) * dim;
      const bool same = std::memcmp(plain.out(0).data() + at, masked.out(0).data() + at,
                                    dim * sizeof(float)) == 0;
      EXPECT_EQ(same, head / group != 1) << "row " << row << " head " << head;
    }
  }
}

// The trap: a key of zeros has a score of zero, and so a share of the softmax.
TEST_P(MaskedAttentionTest, ZeroKeysAndValuesAreNotDroppedOnes) {
  const AttentionShape shape = Shape(4, 2, 64);
  const int length = 300;
  Rng rng(9);
  const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
  const Work work = PrefixWork(length - 8, length);
  Runner masked = MakeRunner(shape, 16, requests, 1);
  Runner zeroed = MakeRunner(shape, 16, requests, 1);
  for (Runner* runner : {&masked, &zeroed}) {
    runner->Cache(work.cached[0], 0);
    for (int pos = 20; pos < length - 60; ++pos) {
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        runner->Drop(0, pos, 0, head, 0.0F);
      }
    }
  }
  for (BlockId block = 0; block < zeroed.masks().num_blocks(); ++block) {
    zeroed.masks().Clear(block);
  }
  const auto width = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
  const auto first = static_cast<size_t>(length - 8) * width;
  masked.Run(work.todo[0]);
  zeroed.Run(work.todo[0]);
  EXPECT_LE(LargestError(masked.out(0), first, masked.Reference(work.todo[0])), Tolerance());
  EXPECT_LE(LargestError(zeroed.out(0), first, zeroed.Reference(work.todo[0])), Tolerance());
  EXPECT_GT(LargestError(zeroed.out(0), first, masked.Reference(work.todo[0])), 0.1);
}

// Not what attention.h asks for, but what it promises for it.
TEST_P(MaskedAttentionTest, ARowThatSeesNothingGivesZeros) {
  const AttentionShape shape = Shape(4, 2, 96);
  const int length = Length(2 * kSpanTokens + 30);
  Rng rng(10);
  const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
  const auto width = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
  const auto head_values = static_cast<size_t>(2 * shape.head_dim);  // of a kv head
  for (const int threads : {1, 3}) {
    for (const int computed : {1, 20}) {  // a decode that three threads split, and a prefill
      Runner runner = MakeRunner(shape, 16, requests, 2, threads);
      runner.Cache({0, 0, length - computed}, 0);
      for (int pos = 0; pos < length; ++pos) {
        runner.Drop(0, pos, 0, 1);
      }
      const Step step = {{0, length - computed, computed}};
      runner.Run(step);
      const size_t first = static_cast<size_t>(length - computed) * width;
      EXPECT_LE(LargestError(runner.out(0), first, runner.Reference(step)), Tolerance());
      for (size_t row = first; row < runner.out(0).size(); row += width) {
        for (size_t i = 0; i < head_values; ++i) {
          ASSERT_EQ(runner.out(0)[row + head_values + i], 0.0F);
        }
      }
    }
  }
}

// Makes the pages of memory that lie wholly in [begin, begin + size) unreadable while it lives.
class Forbidden {
 public:
  Forbidden(std::byte* begin, size_t size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t skip = (page - reinterpret_cast<uintptr_t>(begin) % page) % page;
    KVIK_CHECK(size >= skip + page);
    begin_ = begin + skip;
    size_ = (size - skip) / page * page;
    KVIK_CHECK(mprotect(begin_, size_, PROT_NONE) == 0);
  }
  ~Forbidden() { KVIK_CHECK(mprotect(begin_, size_, PROT_READ | PROT_WRITE) == 0); }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;

 private:
  std::byte* begin_;
  size_t size_;
};

TEST_P(MaskedAttentionTest, WhatIsDroppedIsNotRead) {
  const AttentionShape shape = Shape(4, 4, 64);
  const int length = Length(600) / 64 * 64 + 64;
  for (const int block_size : {16, 64}) {
    for (const int computed : {1, 24}) {
      Rng rng(12);
      const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
      Runner runner = MakeRunner(shape, block_size, requests, 3);
      runner.Cache({0, 0, length - computed}, 0);
      // Whole tiles, and blocks within a tile: all but the first and the last 32 tokens or so.
      std::vector<std::unique_ptr<Forbidden>> forbidden;
      const int last = (length - computed - 32) / block_size;
      for (int block = std::max(1, 32 / block_size); block < last; ++block) {
        for (int pos = block * block_size; pos < (block + 1) * block_size; ++pos) {
          for (int head = 0; head < shape.num_kv_heads; ++head) {
            runner.Drop(0, pos, 0, head);
          }
        }
        const size_t bytes = runner.geometry().bytes_per_block();
        const auto id = static_cast<size_t>(runner.table(0)[static_cast<size_t>(block)]);
        forbidden.push_back(std::make_unique<Forbidden>(runner.arena().data() + id * bytes, bytes));
      }
      ASSERT_GT(forbidden.size(), block_size == 64 ? 0U : 4U);
      const Step step = {{0, length - computed, computed}};
      runner.Run(step);  // reading would end the program
      forbidden.clear();
      const auto first = static_cast<size_t>(length - computed) *
                         static_cast<size_t>(shape.num_q_heads * shape.head_dim);
      EXPECT_LE(LargestError(runner.out(0), first, runner.Reference(step)), Tolerance());
    }
  }
}

TEST(MaskedAttention, ArithmeticHasTheSameBitsOnEveryIsa) {
  struct Arithmetic {
    ComputeType compute;
    kv::KvDtype dtype;
  };
  for (const Arithmetic& arithmetic : {Arithmetic{ComputeType::kF32, kv::KvDtype::kBf16},
                                       Arithmetic{ComputeType::kF32, kv::KvDtype::kF32},
                                       Arithmetic{ComputeType::kBf16, kv::KvDtype::kBf16}}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const AttentionShape shape = seed % 2 == 0 ? Shape(9, 3, 64) : Shape(14, 2, 80, 300);
      const int length = 600;
      Rng rng(seed);
      const std::vector<Request> requests = {RandomRequest(rng, shape, length)};
      const Work work = PrefixWork(length - 15, length);
      const std::vector<DroppedToken> dropped =
          RandomDroppedTokens(rng, work, requests, shape.num_kv_heads);
      std::vector<float> scalar;
      for (const Isa isa : SupportedIsas()) {
        if (!ComputeSupported(isa, arithmetic.compute)) {
          continue;
        }
        Runner runner(isa, arithmetic.compute, shape, arithmetic.dtype, 16, requests, 1);
        CacheAndDrop(runner, work, dropped, 0, rng);
        runner.Run(work.todo[0]);
        if (isa == Isa::kScalar) {
          scalar = runner.out(0);
        }
        EXPECT_TRUE(SameBits(scalar, runner.out(0))) << IsaName(isa) << " seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace kvik::attention
