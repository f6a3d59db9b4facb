// SPDX-License-Identifier: Apache-2.0
#include "control/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/rng.h"
#include "control/testing/counted_allocations.h"
#include "control/testing/made_library.h"

namespace kvik::control {
namespace {

using ::testing::HasSubstr;
using testing::MadeProfile;
using testing::MadeQuality;

constexpr double kBytesPerToken = 20'000;

// raw; "fast" (ratio 4, 4 GB/s), "small" (ratio 12, 0.5 GB/s), both good to 0.98, and "rough".
class Fixture {
 public:
  explicit Fixture(const ControllerOptions& base = {}) {
    library_.profiles = {MadeProfile("fast", 1, 4, {MadeQuality("unified", 0.98)}),
                         MadeProfile("rough", 3, 100, {MadeQuality("unified", 0.90)}),
                         MadeProfile("small", 2, 12, {MadeQuality("unified", 0.98)})};
    speeds_.Set(UniformSpeeds(1, 4e9, 4e9));
    speeds_.Set(UniformSpeeds(2, 0.5e9, 0.5e9));
    speeds_.Set(UniformSpeeds(3, 50e9, 50e9));
    table_ = ArmTable::Build(&library_, speeds_, speeds_, {}).value();
    ControllerOptions options = base;
    options.form = Form::kPoolRead;
    options.overlap = Overlap::kSerial;
    options.raw_bytes_per_token = kBytesPerToken;
    controller_.emplace(*table_, options);
  }

  [[nodiscard]] int32_t Arm(const char* name) const { return table_->Find(name).value(); }
  [[nodiscard]] Question Ask(double bytes_per_s) const {
    return {.quality = {true, 0.97F},
            .tokens = 1024,
            .raw_bytes = 1024 * kBytesPerToken,
            .us_per_byte = MicrosPerByte(bytes_per_s)};
  }
  // As predicted, with the stages slowed down.
  [[nodiscard]] Observation Slow(const Decision& decision, const Question& question,
                                 double decode_factor) const {
    StageTimes t = StagesOf(table_->arm(decision.arm).cost[2], Form::kPoolRead, question.raw_bytes,
                            question.us_per_byte, 0, 1);
    t.decode_us *= decode_factor;
    return {
        .path_us = PathUs(t, Overlap::kSerial, 1), .wire_us = t.wire_us, .decode_us = t.decode_us};
  }
  [[nodiscard]] Controller& controller() { return *controller_; }
  [[nodiscard]] const ArmTable& table() const { return *table_; }
  Rng rng{1};

 private:
  codec::ProfileLibrary library_;
  MachineSpeeds speeds_;
  std::optional<ArmTable> table_;
  std::optional<Controller> controller_;
};

TEST(Controller, TakesTheFastestAtEveryBandwidth) {
  Fixture f;
  const auto chosen = [&](double bytes_per_s) {
    return f.controller().Decide(f.Ask(bytes_per_s), f.rng)->arm;
  };
  EXPECT_EQ(chosen(20e9), kRawArm);
  EXPECT_EQ(chosen(1e9), f.Arm("fast"));
  EXPECT_EQ(chosen(1e7), f.Arm("small"));
}

TEST(Controller, ExactRequestsGetExactArmsOnly) {
  Fixture f;
  Question question = f.Ask(1e6);
  question.quality = {};
  EXPECT_EQ(f.controller().Decide(question, f.rng)->arm, kRawArm);
}

TEST(Controller, NothingIsAnAnswerWhenNothingIsGoodEnough) {
  Fixture f;
  Question question = f.Ask(1e6);
  question.available = ArmBit(f.Arm("rough"));
  EXPECT_FALSE(f.controller().Decide(question, f.rng).has_value());
  question.quality.q_min = 0.85F;
  EXPECT_EQ(f.controller().Decide(question, f.rng)->arm, f.Arm("rough"));
}

// For any arms, options, questions and observations: every answer satisfies the request's quality
// and is among what exists, and there is one whenever such an arm exists.
TEST(Controller, QualityIsNeverViolated) {
  const uint64_t seed = 11;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  int64_t lossy = 0;
  for (int round = 0; round < 60; ++round) {
    const testing::MadeProfiles made =
        testing::RandomProfiles(rng, static_cast<int>(rng.Range(0, 20)));
    const ArmTable table = ArmTable::Build(&made.library, made.speeds, made.speeds, {}).value();
    ControllerOptions options =
        round % 2 == 0 ? ControllerOptions() : ControllerOptions::Published();
    options.form = rng.Below(2) == 0 ? Form::kHandOver : Form::kPoolRead;
    options.overlap = rng.Below(2) == 0 ? Overlap::kSerial : Overlap::kPipelined;
    options.raw_bytes_per_token = kBytesPerToken;
    options.epsilon = rng.Uniform();
    Controller controller(table, options);
    for (int i = 0; i < 300; ++i) {
      const char* labels[] = {"math", "qa", "other"};
      Question question;
      question.workload = table.Workload(labels[rng.Below(3)]);
      question.quality = {rng.Below(4) != 0, static_cast<float>(0.93 + 0.07 * rng.Uniform())};
      question.tokens = rng.Range(1, 10'000);
      question.raw_bytes = kBytesPerToken * static_cast<double>(question.tokens);
      question.us_per_byte = 0.1 * rng.Uniform() * rng.Uniform() + 1e-6;
      question.produce_us = rng.Below(2) == 0 ? 0 : 1e5 * rng.Uniform();
      question.slo_us = rng.Below(2) == 0 ? 0 : rng.Range(1, 1'000'000);
      question.available = rng.Below(2) == 0 ? kAllArms : rng.Next();
      ArmMask good = 0;
      for (size_t arm = 0; arm < table.arms().size(); ++arm) {
        const auto a = static_cast<int32_t>(arm);
        if (question.quality.Accepts(table.Quality(a, question.workload))) {
          good |= ArmBit(a);
        }
      }
      good &= question.available;
      const std::optional<Decision> decision = controller.Decide(question, rng);
      ASSERT_EQ(decision.has_value(), good != 0);
      if (decision) {
        ASSERT_NE(good & ArmBit(decision->arm), 0U) << "round " << round << " decision " << i;
        lossy += table.arm(decision->arm).fidelity == kv::Fidelity::kLossy ? 1 : 0;
        const double factor = 0.2 + 3 * rng.Uniform();
        controller.Observe(*decision, {.path_us = decision->predicted_us * factor,
                                       .in_time = rng.Below(3) != 0,
                                       .decode_us = rng.Below(2) == 0 ? 0 : 1000 * rng.Uniform()});
      }
    }
  }
  EXPECT_GT(lossy, 1000);
}

TEST(Controller, ThePublishedCandidatesAreTheEnvelopesArmItsNeighboursAndRaw) {
  const uint64_t seed = 12;
  Rng rng(seed);
  for (int round = 0; round < 30; ++round) {
    const testing::MadeProfiles made = testing::RandomProfiles(rng, 20);
    const ArmTable table = ArmTable::Build(&made.library, made.speeds, made.speeds, {}).value();
    ControllerOptions options = ControllerOptions::Published();
    options.raw_bytes_per_token = kBytesPerToken;
    options.epsilon = 1;
    Controller controller(table, options);
    Question question{.quality = {true, 0.94F},
                      .tokens = 1024,
                      .raw_bytes = 1024 * kBytesPerToken,
                      .us_per_byte = 0.05 * rng.Uniform()};
    const Envelope& envelope = controller.EnvelopeOf(table.ClassOf(kUnified, question.quality), 2);
    const auto& pieces = envelope.pieces();
    const size_t at = envelope.Find(question.us_per_byte);
    std::set<int32_t> expected = {kRawArm};
    for (size_t i = at == 0 ? 0 : at - 1; i < std::min(at + 2, pieces.size()); ++i) {
      expected.insert(pieces[i].arm);
    }
    std::set<int32_t> seen;
    for (int i = 0; i < 200; ++i) {
      seen.insert(controller.Decide(question, rng)->arm);
    }
    EXPECT_EQ(seen, expected);
  }
}

TEST(Controller, ExploresOnlyWhatIsNearlyAsFast) {
  ControllerOptions options;
  options.epsilon = 1;
  Fixture f(options);
  Question question = f.Ask(1e7);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(f.controller().Decide(question, f.rng)->arm, f.Arm("small"));
  }
  // Where fast and small are equally fast both are tried, raw is not.
  const double x = (1 / 0.5e9 - 1 / 4e9) * 1e6 / (1 / 4.0 - 1 / 12.0);
  question.us_per_byte = x;
  std::set<int32_t> seen;
  bool explored = false;
  for (int i = 0; i < 100; ++i) {
    const Decision decision = *f.controller().Decide(question, f.rng);
    seen.insert(decision.arm);
    explored = explored || decision.choice == Choice::kExplored;
  }
  EXPECT_EQ(seen, (std::set<int32_t>{f.Arm("fast"), f.Arm("small")}));
  EXPECT_TRUE(explored);
}

TEST(Controller, ASlowDecoderSeenOnceCountsForArmsThatWereNotUsed) {
  ControllerOptions options;
  options.epsilon = 0;
  Fixture f(options);
  const Question question = f.Ask(0.05e9);
  EXPECT_EQ(f.controller().Decide(question, f.rng)->arm, f.Arm("small"));
  const double before_us = f.controller().ExpectedUs(f.Arm("fast"), question);
  for (int i = 0; i < 20; ++i) {
    const Decision decision = *f.controller().Decide(question, f.rng);
    f.controller().Observe(decision, f.Slow(decision, question, 8));
  }
  EXPECT_EQ(f.controller().Decide(question, f.rng)->arm, f.Arm("fast"));
  EXPECT_GT(f.controller().ExpectedUs(f.Arm("fast"), question), before_us * 1.2);
  EXPECT_GT(f.controller().Belief(f.Arm("fast"), 2).decode_factor, 4);
}

TEST(Controller, WithoutTimesOfStagesTheResidualCorrectsTheArm) {
  ControllerOptions options;
  options.epsilon = 0;
  Fixture f(options);
  const Question question = f.Ask(1e7);
  for (int i = 0; i < 20; ++i) {
    const Decision decision = *f.controller().Decide(question, f.rng);
    Observation seen;
    seen.path_us = decision.predicted_us * (decision.arm == f.Arm("small") ? 5 : 1);
    f.controller().Observe(decision, seen);
  }
  EXPECT_EQ(f.controller().Decide(question, f.rng)->arm, f.Arm("fast"));
  const ArmBelief belief = f.controller().Belief(f.Arm("small"), 2);
  EXPECT_GT(belief.residual_us_per_byte, 0);
  EXPECT_EQ(f.controller().Belief(f.Arm("small"), 0).residual_us_per_byte, 0);
}

TEST(Controller, AResidualIsAnAverageOfDifferencesPerByte) {
  ControllerOptions options = ControllerOptions::Published();
  options.epsilon = 0;
  options.scope = ControllerOptions::Scope::kArm;
  Fixture f(options);
  const Question question = f.Ask(1e7);
  double expected = 0;
  for (int i = 0; i < 5; ++i) {
    const Decision decision = *f.controller().Decide(question, f.rng);
    EXPECT_NEAR(decision.expected_us, decision.predicted_us + expected * question.raw_bytes, 1e-6);
    f.controller().Observe(decision, {.path_us = decision.predicted_us + 1000.0 * i});
    expected += 0.2 * (1000.0 * i / question.raw_bytes - expected);
    EXPECT_NEAR(f.controller().Belief(decision.arm, 2).residual_us_per_byte, expected, 1e-12);
  }
}

TEST(Controller, AChangedLinkIsNotTheArmsFault) {
  ControllerOptions options;
  options.epsilon = 0;
  Fixture f(options);
  const Question question = f.Ask(1e8);
  const Decision decision = *f.controller().Decide(question, f.rng);
  Question slower = question;
  slower.us_per_byte *= 20;  // what the link really was
  f.controller().Observe(decision, f.Slow(decision, slower, 1));
  EXPECT_NEAR(f.controller().ExpectedUs(decision.arm, question), decision.expected_us,
              1e-6 * decision.expected_us);
}

TEST(Controller, AnArmThatIsLateTooOftenSitsOut) {
  ControllerOptions options;
  options.epsilon = 0;
  Fixture f(options);
  Question question = f.Ask(1e7);
  question.slo_us = 10'000'000;
  const int32_t small = f.Arm("small");
  // Late without having been slow, so that only the guardrail can tell.
  const auto use = [&](bool in_time) {
    const Decision decision = *f.controller().Decide(question, f.rng);
    f.controller().Observe(decision, {.path_us = decision.expected_us, .in_time = in_time});
    return decision.arm;
  };
  for (const bool in_time : {true, false, false, true, false, true, true}) {
    EXPECT_EQ(use(in_time), small);
  }
  EXPECT_EQ(use(false), small);  // the fourth of eight
  EXPECT_EQ(f.controller().Belief(small, 2).cooling, 8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(use(true), f.Arm("fast")) << i;
  }
  EXPECT_EQ(use(true), small);
}

TEST(Controller, OldLatenessIsForgotten) {
  ControllerOptions options;
  options.epsilon = 0;
  Fixture f(options);
  Question question = f.Ask(1e7);
  question.slo_us = 10'000'000;
  for (int i = 0; i < 60; ++i) {
    const Decision decision = *f.controller().Decide(question, f.rng);
    ASSERT_EQ(decision.arm, f.Arm("small")) << i;
    f.controller().Observe(decision, {.path_us = decision.expected_us, .in_time = i % 4 != 0});
  }
}

TEST(Controller, NothingInTimeMeansTheFastestAndNobodyIsBlamed) {
  ControllerOptions options;
  Fixture f(options);
  Question question = f.Ask(1e7);
  question.slo_us = 10;
  for (int i = 0; i < 30; ++i) {
    const Decision decision = *f.controller().Decide(question, f.rng);
    EXPECT_EQ(decision.arm, f.Arm("small"));
    EXPECT_EQ(decision.choice, Choice::kNoneInTime);
    f.controller().Observe(decision, {.path_us = decision.expected_us, .in_time = false});
  }
}

TEST(Controller, WhatElseTakesTimeCountsAgainstTheBudget) {
  Fixture f;
  Question question = f.Ask(1e7);
  question.slo_us = 1'000'000;
  EXPECT_EQ(f.controller().Decide(question, f.rng)->choice, Choice::kFastest);
  question.other_us = 990'000;
  EXPECT_EQ(f.controller().Decide(question, f.rng)->choice, Choice::kNoneInTime);
}

TEST(Controller, BehindASlowPrefillRawIsAsGoodAsAnything) {
  ControllerOptions options;
  options.form = Form::kHandOver;
  options.overlap = Overlap::kPipelined;
  options.raw_bytes_per_token = kBytesPerToken;
  options.frames_per_chunk = 30;
  codec::ProfileLibrary library;
  library.profiles = {MadeProfile("p", 1, 8, {MadeQuality("unified", 0.99)})};
  MachineSpeeds speeds;
  ProfileSpeeds p = UniformSpeeds(1, 1e9, 1e9);
  p.encode.fill({300, 1e9});  // a transfer costs something before its first byte
  speeds.Set(p);
  const ArmTable table = ArmTable::Build(&library, speeds, speeds, {}).value();
  Controller controller(table, options);
  Rng rng(1);
  Question question{.quality = {true, 0.97F},
                    .tokens = 1024,
                    .raw_bytes = 1024 * kBytesPerToken,
                    .us_per_byte = MicrosPerByte(0.4e9)};
  EXPECT_NE(controller.Decide(question, rng)->arm, kRawArm);
  question.produce_us = 200'000;
  const Decision decision = *controller.Decide(question, rng);
  EXPECT_EQ(decision.arm, kRawArm);
  EXPECT_LT(decision.expected_us, 2000);  // all of it but the last frames is hidden
}

// A prefill that takes longer than was thought says nothing about the profile that came after it.
TEST(Controller, AProducerIsNoResidual) {
  ControllerOptions options;
  options.form = Form::kHandOver;
  options.raw_bytes_per_token = kBytesPerToken;
  options.frames_per_chunk = 30;
  options.epsilon = 0;
  codec::ProfileLibrary library;
  library.profiles = {MadeProfile("p", 1, 8, {MadeQuality("unified", 0.99)})};
  MachineSpeeds speeds;
  speeds.Set(UniformSpeeds(1, 1e9, 1e9));
  const ArmTable table = ArmTable::Build(&library, speeds, speeds, {}).value();
  Controller controller(table, options);
  Rng rng(1);
  const Question question{.quality = {true, 0.97F},
                          .tokens = 1024,
                          .raw_bytes = 1024 * kBytesPerToken,
                          .us_per_byte = MicrosPerByte(2e7),
                          .produce_us = 400'000,
                          .produce_parts = 2};
  for (int i = 0; i < 20; ++i) {
    const Decision decision = *controller.Decide(question, rng);
    EXPECT_EQ(decision.arm, table.Find("p"));
    // It took four times as long to produce, so all but the last part had been sent by then.
    StageTimes t = StagesOf(table.arm(decision.arm).cost[2], options.form, question.raw_bytes,
                            question.us_per_byte, 4 * question.produce_us, decision.frames);
    t.produce_parts = 2;
    controller.Observe(decision, {.path_us = PathUs(t, Overlap::kPipelined, decision.frames),
                                  .produce_us = t.produce_us});
  }
  EXPECT_NEAR(controller.Belief(*table.Find("p"), 2).residual_us_per_byte, 0, 1e-9);
}

TEST(Controller, DecidingAndLearningAllocateNothing) {
  Rng rng(13);
  const testing::MadeProfiles made = testing::RandomProfiles(rng, 40);
  const ArmTable table = ArmTable::Build(&made.library, made.speeds, made.speeds, {}).value();
  for (ControllerOptions options : {ControllerOptions(), ControllerOptions::Published()}) {
    options.raw_bytes_per_token = kBytesPerToken;
    options.epsilon = 0.5;
    Controller controller(table, options);
    const uint64_t before = testing::CountedAllocations();
    for (int i = 0; i < 1000; ++i) {
      Question question{.quality = {true, 0.95F},
                        .tokens = rng.Range(1, 8000),
                        .raw_bytes = 1e6 * (1 + rng.Uniform()),
                        .us_per_byte = 0.02 * rng.Uniform() + 1e-5,
                        .slo_us = rng.Range(0, 100'000)};
      question.workload = table.Workload("math");
      const std::optional<Decision> decision = controller.Decide(question, rng);
      controller.Observe(*decision, {.path_us = 1000, .decode_us = 500});
    }
    EXPECT_EQ(testing::CountedAllocations(), before);
  }
  // The counter counts.
  const uint64_t before = testing::CountedAllocations();
  const std::vector<int> some(100, 1);
  EXPECT_GT(testing::CountedAllocations(), before) << some.size();
}

TEST(DecisionRing, KeepsTheLastOnesAndWhatBecameOfThem) {
  ControllerOptions options;
  options.ring_capacity = 4;
  Fixture f(options);
  EXPECT_TRUE(f.controller().ring().Last(10).empty());
  std::vector<Decision> decisions;
  for (uint64_t i = 0; i < 6; ++i) {
    Question question = f.Ask(1e7);
    question.request = 100 + i;
    decisions.push_back(*f.controller().Decide(question, f.rng));
  }
  f.controller().Observe(decisions[0], {.path_us = 1});  // forgotten, and that is all right
  f.controller().Observe(decisions[4], {.path_us = 5000, .in_time = false});
  const std::vector<DecisionRecord> last = f.controller().ring().Last(10);
  ASSERT_EQ(last.size(), 4U);
  EXPECT_EQ(last.front().question.request, 102U);
  EXPECT_EQ(last.back().question.request, 105U);
  EXPECT_TRUE(last[2].observed);
  EXPECT_FALSE(last[3].observed);
  EXPECT_EQ(f.controller().ring().Last(2).front().question.request, 104U);
  EXPECT_EQ(f.controller().ring().Find(decisions[0].id), nullptr);
  EXPECT_EQ(f.controller().ring().Find(0), nullptr);
  EXPECT_EQ(f.controller().ring().Find(99), nullptr);
}

TEST(DecisionRing, SaysWhyInWordsAndInJson) {
  ControllerOptions options;
  options.epsilon = 0;
  Fixture f(options);
  Question question = f.Ask(1e7);
  question.request = 7;
  question.slo_us = 900'000;
  question.other_us = 100'000;
  const Decision decision = *f.controller().Decide(question, f.rng);
  f.controller().Observe(decision, {.path_us = 250'000, .in_time = true, .decode_us = 41'000});
  const DecisionRecord& record = *f.controller().ring().Find(decision.id);
  // 20.48 MB: 171 ms on the wire and 41 ms to decode.
  EXPECT_EQ(WhyText(record, f.table()),
            "small: 211.6 ms expected for 20.48 MB at 10.0 MB/s, the fastest of 3 (100.0 ms of "
            "900.0 ms go to other things); fast 517.1 ms; raw 2048.0 ms; took 250.0 ms");
  const nlohmann::json json = nlohmann::json::parse(WhyJson(record, f.table()));
  EXPECT_EQ(json["profile"], "small");
  EXPECT_EQ(json["request"], 7);
  EXPECT_EQ(json["choice"], "fastest");
  EXPECT_EQ(json["envelope"], "small");
  EXPECT_EQ(json["workload"], "unified");
  ASSERT_EQ(json["candidates"].size(), 3U);
  EXPECT_EQ(json["candidates"][0]["profile"], "small");
  EXPECT_EQ(json["candidates"][2]["profile"], "raw");
  EXPECT_EQ(json["observed"]["path_us"], 250'000);
}

TEST(DecisionRing, OfManyCandidatesTheLeastAreKeptInOrder) {
  Rng rng(14);
  const testing::MadeProfiles made = testing::RandomProfiles(rng, 40);
  const ArmTable table = ArmTable::Build(&made.library, made.speeds, made.speeds, {}).value();
  ControllerOptions options;
  options.raw_bytes_per_token = kBytesPerToken;
  Controller controller(table, options);
  for (int i = 0; i < 50; ++i) {
    const Question question{.quality = {true, 0.9F},
                            .tokens = 1024,
                            .raw_bytes = 1024 * kBytesPerToken,
                            .us_per_byte = 0.02 * rng.Uniform() + 1e-5};
    const Decision decision = *controller.Decide(question, rng);
    const DecisionRecord& record = *controller.ring().Find(decision.id);
    ASSERT_EQ(record.num_candidates, 8);
    std::vector<double> all;
    const ArmMask mask = table.MaskOfClass(table.ClassOf(kUnified, question.quality));
    for (ArmMask rest = mask; rest != 0; rest &= rest - 1) {
      all.push_back(controller.ExpectedUs(std::countr_zero(rest), question));
    }
    ASSERT_EQ(record.considered, all.size());
    std::sort(all.begin(), all.end());
    for (size_t k = 0; k < 8; ++k) {
      ASSERT_NEAR(record.candidates[k].expected_us, all[k], 1e-4 * all[k]);
    }
  }
}

// Who waited for something else besides the transfer has times of stages, and no residual.
TEST(Controller, LearnsNoResidualFromAPathThatWasNotMeasured) {
  Fixture f;
  const Decision decision = *f.controller().Decide(f.Ask(1e7), f.rng);
  Observation seen;
  seen.decode_us = 1000;
  f.controller().Observe(decision, seen);
  EXPECT_EQ(f.controller().Belief(decision.arm, decision.length).residual_us_per_byte, 0);
  EXPECT_NE(f.controller().Belief(decision.arm, decision.length).decode_factor, 1);
  seen.path_us = 10 * decision.expected_us;
  f.controller().Observe(*f.controller().Decide(f.Ask(1e7), f.rng), seen);
  EXPECT_GT(f.controller().Belief(decision.arm, decision.length).residual_us_per_byte, 0);
}

}  // namespace
}  // namespace kvik::control
