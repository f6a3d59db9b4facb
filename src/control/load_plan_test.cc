// SPDX-License-Identifier: Apache-2.0
#include "control/load_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace kvik::control {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kChunk = 256;

// A prompt of `chunks` chunks and a tail that nobody has, all of it missing.
class Prompt {
 public:
  Prompt(int num_chunks, double wire_bytes, double decode_us, int64_t tail = 40) {
    encodings_.push_back({{.wire_bytes = wire_bytes, .decode_us = decode_us}});
    for (int i = 0; i < num_chunks; ++i) {
      chunks_.push_back({{i * kChunk, (i + 1) * kChunk}, encodings_[0]});
    }
    missing_ = {{0, num_chunks * kChunk + tail}};
    problem.missing = missing_;
    problem.chunks = chunks_;
    problem.us_per_byte = 0.01;
    problem.frames_per_chunk = 30;
    problem.compute = {.token_us = 100, .square_us = 0.005};
  }
  [[nodiscard]] double ComputeUs(int64_t first, int64_t end) const {
    return problem.compute.RecomputeUs(first, end - first);
  }
  LoadProblem problem;

 private:
  std::vector<std::vector<LoadEncoding>> encodings_;
  std::vector<LoadChunk> chunks_;
  std::vector<TokenRange> missing_;
};

TEST(PlanLoad, AFastLinkLoadsAllAndASlowOneNothing) {
  Prompt fast(8, 1e5, 10);
  EXPECT_EQ(PlanLoad(fast.problem).first_loaded, 0);
  EXPECT_THAT(PlanLoad(fast.problem).encoding, Each(0));
  Prompt slow(8, 1e8, 10);
  const LoadPlan plan = PlanLoad(slow.problem);
  EXPECT_EQ(plan.first_loaded, 8);
  EXPECT_THAT(plan.encoding, Each(LoadPlan::kCompute));
  EXPECT_EQ(plan.load_us, 0);
  EXPECT_EQ(plan.expected_us, plan.all_compute_us);
  EXPECT_NEAR(plan.all_compute_us, slow.ComputeUs(0, 8 * kChunk + 40), 1e-6);
}

TEST(PlanLoad, WhenTheyTieBothAtOnceTakeHalfAsLong) {
  // A chunk takes as long on the wire as to compute, on average.
  Prompt prompt(16, 0, 100, 1);
  const double chunk_us = prompt.ComputeUs(0, 16 * kChunk) / 16;
  std::vector<LoadEncoding> encoding = {{.wire_bytes = chunk_us / 0.01, .decode_us = 100}};
  std::vector<LoadChunk> chunks;
  for (int i = 0; i < 16; ++i) {
    chunks.push_back({{i * kChunk, (i + 1) * kChunk}, encoding});
  }
  prompt.problem.chunks = chunks;
  const LoadPlan plan = PlanLoad(prompt.problem);
  EXPECT_NEAR(plan.all_load_us / plan.all_compute_us, 1, 0.02);
  EXPECT_LT(plan.expected_us, plan.all_compute_us / 1.9);
  // The front is cheaper to compute, so more than half of it is.
  EXPECT_LT(plan.first_loaded, 16);
  EXPECT_GE(plan.first_loaded, 8);
}

TEST(PlanLoad, OnlyEncodingsThatAreGoodEnoughCount) {
  const std::vector<LoadEncoding> encodings = {
      {.wire_bytes = 10, .quality = {kv::Fidelity::kLossy, 0.96F}},
      {.wire_bytes = 1000, .quality = {kv::Fidelity::kLossy, 0.98F}},
      {.wire_bytes = 5000, .quality = {}}};
  const std::vector<LoadChunk> chunks = {{{0, kChunk}, encodings}};
  const std::vector<TokenRange> missing = {{0, kChunk + 1}};
  LoadProblem problem{
      .missing = missing, .chunks = chunks, .us_per_byte = 0.01, .compute = {.token_us = 100}};
  EXPECT_THAT(PlanLoad(problem).encoding, ElementsAre(2));
  problem.quality = {true, 0.97F};
  EXPECT_THAT(PlanLoad(problem).encoding, ElementsAre(1));
  problem.quality = {true, 0.9F};
  EXPECT_THAT(PlanLoad(problem).encoding, ElementsAre(0));
}

TEST(PlanLoad, TheReadersSpeedDecidesAmongEncodings) {
  const std::vector<LoadEncoding> encodings = {{.wire_bytes = 1e6, .decode_us = 5000},
                                               {.wire_bytes = 4e6, .decode_us = 100}};
  const std::vector<LoadChunk> chunks = {{{0, kChunk}, encodings}};
  const std::vector<TokenRange> missing = {{0, kChunk + 1}};
  LoadProblem problem{.missing = missing, .chunks = chunks, .compute = {.token_us = 1e4}};
  problem.us_per_byte = 0.01;
  EXPECT_THAT(PlanLoad(problem).encoding, ElementsAre(0));
  problem.us_per_byte = 0.0005;
  EXPECT_THAT(PlanLoad(problem).encoding, ElementsAre(1));
}

TEST(PlanLoad, AHoleBehindTheMeetingPointIsComputedAfterTheLoads) {
  // Three chunks, nobody has the middle one.
  const std::vector<LoadEncoding> encodings = {{.wire_bytes = 1e5, .decode_us = 0}};
  const std::vector<LoadChunk> chunks = {{{0, kChunk}, encodings},
                                         {{2 * kChunk, 3 * kChunk}, encodings}};
  const std::vector<TokenRange> missing = {{0, 3 * kChunk + 10}};
  LoadProblem problem{
      .missing = missing, .chunks = chunks, .us_per_byte = 0.01, .compute = {.token_us = 100}};
  const LoadPlan plan = PlanLoad(problem);
  EXPECT_EQ(plan.first_loaded, 0);
  EXPECT_NEAR(plan.expected_us, 2000 + 100.0 * (kChunk + 10), 1);
}

TEST(PlanLoad, CachedTokensAreNeitherLoadedNorComputed) {
  const std::vector<TokenRange> missing = {{1000, 1200}, {1500, 1600}};
  LoadProblem problem{.missing = missing, .us_per_byte = 1, .compute = {.token_us = 1}};
  EXPECT_NEAR(PlanLoad(problem).all_compute_us, 300, 1e-9);
}

TEST(PlanLoad, WaitsForWhatIsStillBeingMade) {
  const std::vector<LoadEncoding> encodings = {{.wire_bytes = 1000, .ready_in_us = 50'000},
                                               {.wire_bytes = 2'000'000, .ready_in_us = 0}};
  const std::vector<LoadChunk> chunks = {{{0, kChunk}, encodings}};
  const std::vector<TokenRange> missing = {{0, kChunk + 1}};
  LoadProblem problem{
      .missing = missing, .chunks = chunks, .us_per_byte = 0.01, .compute = {.token_us = 1000}};
  EXPECT_THAT(PlanLoad(problem).encoding, ElementsAre(1));
  EXPECT_NEAR(PlanLoad(problem).load_us, 20'000, 1);
  problem.us_per_byte = 0.1;
  EXPECT_THAT(PlanLoad(problem).encoding, ElementsAre(0));
  EXPECT_NEAR(PlanLoad(problem).load_us, 50'000, 1);
}

TEST(PlanLoad, DecodingOnTheSameCoresSlowsTheFront) {
  Prompt prompt(16, 3e6, 100);
  const LoadPlan alone = PlanLoad(prompt.problem);
  prompt.problem.compute_share = 0.5;
  const LoadPlan shared = PlanLoad(prompt.problem);
  EXPECT_GT(shared.expected_us, alone.expected_us);
  EXPECT_EQ(shared.all_compute_us, alone.all_compute_us);
}

TEST(PlanLoad, SaysWhetherItIsInTimeAndWhy) {
  Prompt prompt(4, 1e5, 10);
  prompt.problem.slo_us = 1;
  EXPECT_FALSE(PlanLoad(prompt.problem).in_time);
  prompt.problem.slo_us = 10'000'000;
  const LoadPlan plan = PlanLoad(prompt.problem);
  EXPECT_TRUE(plan.in_time);
  EXPECT_THAT(WhyText(plan), HasSubstr("4 of 4 chunks loaded (0.40 MB)"));
}

// What is dear to compute is loaded although it takes longer, and the times are the true ones.
TEST(PlanLoad, AWeightMovesTheChoiceAndNoTime) {
  Prompt prompt(8, 4e6, 10);  // 40 ms a chunk, which takes 26 to 36 ms to compute
  const LoadPlan plain = PlanLoad(prompt.problem);
  ASSERT_GT(plain.first_loaded, 0);
  EXPECT_EQ(plain.weighed_us, plain.expected_us);
  std::vector<LoadChunk> chunks(prompt.problem.chunks.begin(), prompt.problem.chunks.end());
  for (LoadChunk& chunk : chunks) {
    chunk.compute_weight = 50;
  }
  prompt.problem.chunks = chunks;
  const LoadPlan weighed = PlanLoad(prompt.problem);
  EXPECT_EQ(weighed.first_loaded, 0);
  EXPECT_GT(weighed.expected_us, plain.expected_us);
  EXPECT_EQ(weighed.weighed_us, weighed.expected_us) << "nothing that could be loaded is computed";
  EXPECT_EQ(weighed.all_compute_us, plain.all_compute_us);
  EXPECT_EQ(weighed.all_load_us, plain.all_load_us);
}

TEST(PlanLoad, AWeightDoesNotCountWhereNothingCanBeLoaded) {
  std::vector<LoadChunk> chunks = {{{0, kChunk}, {}, 50}};
  const std::vector<TokenRange> missing = {{0, kChunk}};
  const LoadPlan plan = PlanLoad(
      {.missing = missing, .chunks = chunks, .us_per_byte = 1, .compute = {.token_us = 100}});
  EXPECT_EQ(plan.weighed_us, plan.all_compute_us);
}

TEST(PlanLoad, BytesOfASlowerLinkTakeLongerAndAreNoMore) {
  std::vector<LoadEncoding> encodings = {{.wire_bytes = 1e5, .link_factor = 4}};
  const std::vector<LoadChunk> chunks = {{{0, kChunk}, encodings}};
  const std::vector<TokenRange> missing = {{0, kChunk}};
  const LoadPlan plan = PlanLoad(
      {.missing = missing, .chunks = chunks, .us_per_byte = 0.01, .compute = {.token_us = 100}});
  EXPECT_EQ(plan.wire_bytes, 1e5);
  EXPECT_DOUBLE_EQ(plan.load_us, 4e3);
}

TEST(PlanLoad, StepsOfTheEngineAreCounted) {
  const std::vector<TokenRange> missing = {{0, 2048}};
  const kv::CostModel cost{.step_us = 900,
                           .token_us = 100,
                           .cached_token_us = 0.5,
                           .segment_us = 100,
                           .square_us = 0.01};
  const LoadProblem problem{.missing = missing, .us_per_byte = 1, .compute = cost};
  double sum = 0;
  for (int32_t first = 0; first < 2048; first += 512) {
    kv::StepFeatures step;
    step.AddSegment(first, 512);
    sum += cost.StepUs(step);
  }
  EXPECT_NEAR(PlanLoad(problem).all_compute_us, sum, 1e-6 * sum);
}

// What really happens under a plan: the engine computes the front, loads come from the tail, one
// after the other on the wire and decoded behind it.
struct Problem {
  std::vector<TokenRange> missing;
  std::vector<std::vector<LoadEncoding>> encodings;
  std::vector<LoadChunk> chunks;
  LoadProblem problem;
};

Problem RandomProblem(Rng& rng) {
  Problem p;
  const auto n = static_cast<int>(rng.Range(1, 24));
  int64_t at = 0;
  for (int i = 0; i < n; ++i) {
    if (rng.Below(5) == 0) {
      at += rng.Range(1, 6) * 64;  // cached
    }
    const int64_t begin = at;
    at += rng.Below(5) == 0 ? rng.Range(1, 16) * 16 : kChunk;
    if (!p.missing.empty() && p.missing.back().end == begin) {
      p.missing.back().end = at;
    } else {
      p.missing.push_back({begin, at});
    }
    p.encodings.emplace_back();
    if (rng.Below(6) != 0) {
      const auto kinds = rng.Range(1, 3);
      for (int64_t k = 0; k < kinds; ++k) {
        p.encodings.back().push_back(
            {.wire_bytes = 1e4 + 4e6 * rng.Uniform(),
             .decode_us = 2e4 * rng.Uniform(),
             .ready_in_us = rng.Below(4) == 0 ? 2e5 * rng.Uniform() : 0,
             .quality = {rng.Below(2) == 0 ? kv::Fidelity::kExact : kv::Fidelity::kLossy,
                         static_cast<float>(0.9 + 0.1 * rng.Uniform())}});
      }
    }
    p.chunks.push_back({{begin, at}, {}});
  }
  p.missing.back().end += rng.Range(1, 64);
  for (size_t i = 0; i < p.chunks.size(); ++i) {
    p.chunks[i].encodings = p.encodings[i];
  }
  p.problem.quality = {rng.Below(3) != 0, static_cast<float>(0.88 + 0.1 * rng.Uniform())};
  p.problem.us_per_byte = 0.001 * std::pow(100, rng.Uniform());
  p.problem.load_start_us = 5000 * rng.Uniform();
  p.problem.frames_per_chunk = 30;
  p.problem.overlap = rng.Below(3) == 0 ? Overlap::kSerial : Overlap::kPipelined;
  p.problem.compute = {.step_us = 2000 * rng.Uniform(),
                       .token_us = 20 + 200 * rng.Uniform(),
                       .cached_token_us = 0.01 * rng.Uniform(),
                       .square_us = 0.02 * rng.Uniform()};
  p.problem.compute_start_us = rng.Below(2) == 0 ? 0 : 1e5 * rng.Uniform();
  p.problem.compute_share = 0.4 + 0.6 * rng.Uniform();
  return p;
}

// For any problem: the plan names only encodings that are good enough, loads everything behind the
// meeting point that can be, and is no worse than loading all or computing all.
TEST(PlanLoad, IsNeverWorseThanAllOfEitherAndKeepsQuality) {
  const uint64_t seed = 30;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  int both = 0;
  for (int round = 0; round < 3000; ++round) {
    Problem p = RandomProblem(rng);
    p.problem.missing = p.missing;
    p.problem.chunks = p.chunks;
    const LoadPlan plan = PlanLoad(p.problem);
    ASSERT_EQ(plan.encoding.size(), p.chunks.size());
    for (size_t i = 0; i < p.chunks.size(); ++i) {
      const bool usable =
          std::any_of(p.encodings[i].begin(), p.encodings[i].end(),
                      [&](const LoadEncoding& e) { return p.problem.quality.Accepts(e.quality); });
      const bool behind = static_cast<int32_t>(i) >= plan.first_loaded;
      ASSERT_EQ(plan.encoding[i] != LoadPlan::kCompute, behind && usable) << "round " << round;
      if (plan.encoding[i] != LoadPlan::kCompute) {
        ASSERT_TRUE(p.problem.quality.Accepts(
            p.encodings[i][static_cast<size_t>(plan.encoding[i])].quality));
      }
    }
    ASSERT_LE(plan.expected_us, plan.all_load_us);
    ASSERT_LE(plan.expected_us, plan.all_compute_us);
    ASSERT_GT(plan.expected_us, 0);
    both += plan.expected_us < 0.98 * std::min(plan.all_load_us, plan.all_compute_us) ? 1 : 0;
  }
  EXPECT_GT(both, 300);
}

// One run under speeds that nobody promised: after every chunk that arrives or is computed the plan
// is made again with what is left and what was measured.
struct Speeds {
  double us_per_byte = 0;  // true ones
  double compute_factor = 1;
  double step_at_us = 0;  // from here on
  double later_us_per_byte = 0;
  double later_compute_factor = 1;
};

double WireEnd(const Speeds& run, double bytes, double from_us) {
  const double before = std::max(0.0, run.step_at_us - from_us) / run.us_per_byte;
  return bytes <= before
             ? from_us + bytes * run.us_per_byte
             : std::max(from_us, run.step_at_us) + (bytes - before) * run.later_us_per_byte;
}

double ComputeEnd(const Speeds& run, double us, double from_us) {
  const double before = std::max(0.0, run.step_at_us - from_us) / run.compute_factor;
  return us <= before
             ? from_us + us * run.compute_factor
             : std::max(from_us, run.step_at_us) + (us - before) * run.later_compute_factor;
}

enum class Mode { kPlanned, kAllLoad, kAllCompute };

// Time to the end of a prompt of `n` chunks that are all the same on the wire, and a tail.
double Simulate(int n, double wire_bytes, const kv::CostModel& cost, double believed_us_per_byte,
                const Speeds& run, Mode mode) {
  const std::vector<LoadEncoding> encodings = {{.wire_bytes = wire_bytes, .decode_us = 1}};
  const int64_t end = n * kChunk + 16;
  int front = 0;  // chunks computed
  int back = n;   // first chunk loaded
  double engine_us = 0;
  double wire_us = 0;
  double us_per_byte = believed_us_per_byte;
  ComputePace pace(0.5);
  while (front < back) {
    // Whoever is free first takes the next chunk, if the plan gives it one.
    int meet = mode == Mode::kAllLoad ? 0 : n;
    const double now_us = std::min(engine_us, wire_us);
    if (mode == Mode::kPlanned) {
      std::vector<LoadChunk> chunks;
      for (int i = front; i < back; ++i) {
        chunks.push_back({{i * kChunk, (i + 1) * kChunk}, encodings});
      }
      const std::vector<TokenRange> missing = {{front * kChunk, back * kChunk}, {n * kChunk, end}};
      const LoadPlan plan = PlanLoad({.missing = missing,
                                      .chunks = chunks,
                                      .us_per_byte = us_per_byte,
                                      .load_start_us = wire_us - now_us,
                                      .compute = cost,
                                      .compute_factor = pace.factor(),
                                      .compute_start_us = engine_us - now_us,
                                      .step_tokens = kChunk});
      meet = front + plan.first_loaded;
    }
    if (meet < back && (wire_us <= engine_us || meet <= front)) {
      const double done_us = WireEnd(run, wire_bytes, wire_us);
      us_per_byte = (done_us - wire_us) / wire_bytes;
      wire_us = done_us;
      --back;
    } else {
      const double modelled = cost.RecomputeUs(front * kChunk, kChunk);
      const double done_us = ComputeEnd(run, modelled, engine_us);
      pace.Add(modelled, done_us - engine_us);
      engine_us = done_us;
      ++front;
    }
  }
  const double tail_us = cost.RecomputeUs(n * kChunk, 16);
  return ComputeEnd(run, tail_us, std::max(engine_us, wire_us));
}

// However wrong the first belief, planning again as chunks come in is within 5 % of the better of
// all-load and all-compute; when speeds change on the way, what is lost beyond that is less than
// the chunk that was under way.
TEST(PlanLoad, PlannedAgainItKeepsUpWithSpeedsThatChange) {
  const uint64_t seed = 31;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  double worst_steady = 0;
  double ties = 0;
  int num_ties = 0;
  double sum = 0;
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    const auto n = static_cast<int>(rng.Range(4, 24));
    const kv::CostModel cost{.token_us = 100, .square_us = 0.01 * rng.Uniform()};
    const double compute_us = cost.RecomputeUs(0, n * kChunk);
    const double wire_bytes = 1e6;
    Speeds run;
    run.us_per_byte = compute_us / n / wire_bytes * std::pow(4, 2 * rng.Uniform() - 1);
    run.compute_factor = 0.7 + 0.6 * rng.Uniform();
    run.step_at_us = 2 * compute_us * rng.Uniform();
    const bool steps = round % 2 == 0;
    run.later_us_per_byte = steps ? run.us_per_byte * (0.5 + 1.5 * rng.Uniform()) : run.us_per_byte;
    run.later_compute_factor =
        steps ? run.compute_factor * (0.7 + 0.7 * rng.Uniform()) : run.compute_factor;
    const double believed = run.us_per_byte * (0.7 + 0.7 * rng.Uniform());
    const double planned = Simulate(n, wire_bytes, cost, believed, run, Mode::kPlanned);
    const double load = Simulate(n, wire_bytes, cost, believed, run, Mode::kAllLoad);
    const double compute = Simulate(n, wire_bytes, cost, believed, run, Mode::kAllCompute);
    const double better = std::min(load, compute);
    sum += better / planned;
    if (steps) {
      const double chunk_us =
          std::max(wire_bytes * std::max(run.us_per_byte, run.later_us_per_byte),
                   cost.RecomputeUs((n - 1) * kChunk, kChunk) *
                       std::max(run.compute_factor, run.later_compute_factor));
      ASSERT_LE(planned, 1.05 * better + chunk_us) << "round " << round;
    } else {
      worst_steady = std::max(worst_steady, planned / better);
      if (std::max(load, compute) < 1.05 * better) {
        ties += better / planned;
        ++num_ties;
      }
    }
  }
  EXPECT_LE(worst_steady, 1.05);
  ASSERT_GT(num_ties, 10);
  EXPECT_GE(ties / num_ties, 1.5);  // both at once, where either alone takes as long
  EXPECT_GT(sum / kRounds, 1.2);
}

TEST(SpeedsMoved, BySomeMargin) {
  const LoadProblem planned{.us_per_byte = 1, .compute_factor = 2};
  EXPECT_FALSE(SpeedsMoved(planned, 1.05, 2.1));
  EXPECT_TRUE(SpeedsMoved(planned, 1.2, 2));
  EXPECT_TRUE(SpeedsMoved(planned, 1, 1.5));
}

TEST(ComputePace, FollowsTheEngine) {
  ComputePace pace;
  EXPECT_EQ(pace.factor(), 1);
  pace.Add(100, 150);
  EXPECT_NEAR(pace.factor(), 1.5, 1e-12);
  pace.Add(100, 100);
  EXPECT_NEAR(pace.factor(), 1.4, 1e-12);
}

}  // namespace
}  // namespace kvik::control
