// SPDX-License-Identifier: Apache-2.0
// What is learned, and from what. A transfer tells how long its stages were busy. Encoding and
// decoding times, divided by the tabulated ones, move a factor of the machine, which counts for all
// arms at once (other work on its cores slows every profile), and a factor of the arm relative to
// that. The wire is the goodput estimator's business. What the stages together do not explain is
// the residual. Without times of stages everything that differs from the prediction is.
#include "control/controller.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kvik::control {
namespace {

// One observation cannot say more than this: a transfer that stalled is no measure of speeds.
constexpr double kLargestFactor = 8;
// Expected times stay positive whatever was learned.
constexpr double kLeastShare = 0.1;

}  // namespace

ControllerOptions ControllerOptions::Published() {
  ControllerOptions options;
  options.overlap = Overlap::kSerial;
  options.residual_alpha = 0.2;
  options.scope = Scope::kInterval;
  options.learn_speeds = false;
  options.stage_noise = 0;
  options.forget_decisions = 0;
  options.neighbours = 1;
  options.all_candidates = false;
  options.epsilon = 0.1;
  options.explore_within = std::numeric_limits<double>::infinity();
  return options;
}

Controller::Controller(const ArmTable& table, const ControllerOptions& options)
    : table_(table),
      options_(options),
      encode_(table.arms().size(), options.speed_noise),
      decode_(table.arms().size(), options.speed_noise),
      lateness_(table.arms().size()),
      uses_(table.arms().size()),
      ring_(options.ring_capacity) {
  KVIK_CHECK(options.raw_bytes_per_token > 0 && options.frames_per_chunk >= 1 &&
             options.chunk_tokens >= 1 && options.late_window >= 1 && options.late_window <= 32);
  size_t residuals = 0;
  for (int32_t c = 0; c < table.num_classes(); ++c) {
    for (size_t length = 0; length < kNumLengths; ++length) {
      const double frames = FramesOf(kLengths[length]);
      const double raw_bytes = options.raw_bytes_per_token * kLengths[length];
      std::vector<ArmCurve> curves;
      for (ArmMask rest = table.MaskOfClass(c); rest != 0; rest &= rest - 1) {
        const int32_t arm = std::countr_zero(rest);
        curves.push_back({arm, CurveOf(table.arm(arm).cost[length], options.form, options.overlap,
                                       frames, raw_bytes, options.produce_us[length])});
      }
      envelopes_.emplace_back(curves);
      offsets_.push_back(residuals);
      residuals += envelopes_.back().pieces().size() * table.arms().size();
    }
  }
  residuals_.resize(options.scope == ControllerOptions::Scope::kArm
                        ? table.arms().size() * kNumLengths
                        : residuals);
}

size_t Controller::ResidualIndex(int32_t arm, int32_t quality_class, size_t length,
                                 size_t interval) const {
  if (options_.scope == ControllerOptions::Scope::kArm) {
    return static_cast<size_t>(arm) * kNumLengths + length;
  }
  return offsets_[static_cast<size_t>(quality_class) * kNumLengths + length] +
         interval * table_.arms().size() + static_cast<size_t>(arm);
}

double Controller::FramesOf(int64_t tokens) const {
  const int64_t chunks = (tokens + options_.chunk_tokens - 1) / options_.chunk_tokens;
  return static_cast<double>(std::max<int64_t>(1, chunks)) * options_.frames_per_chunk;
}

double Controller::Trust(uint64_t last_use) const {
  if (options_.forget_decisions <= 0) {
    return 1;
  }
  const auto age = static_cast<double>(decisions_ - std::min(decisions_, last_use));
  return options_.forget_decisions / (options_.forget_decisions + age);
}

Controller::Estimate Controller::EstimateOf(int32_t arm, int32_t quality_class, size_t length,
                                            size_t interval, double frames,
                                            const Question& question) const {
  StageTimes t = StagesOf(table_.arm(arm).cost[length], options_.form, question.raw_bytes,
                          question.us_per_byte, question.produce_us, frames);
  t.produce_parts = question.produce_parts;
  Estimate estimate;
  estimate.predicted_us = PathUs(t, options_.overlap, frames);
  t.encode_us *= encode_.Expected(static_cast<size_t>(arm), decisions_);
  t.decode_us *= decode_.Expected(static_cast<size_t>(arm), decisions_);
  const double path_us = MeanPathUs(t, options_.overlap, frames, options_.stage_noise);
  const Residual& residual = residuals_[ResidualIndex(arm, quality_class, length, interval)];
  estimate.expected_us =
      std::max(kLeastShare * path_us,
               path_us + Trust(residual.last_use) * residual.us_per_byte * question.raw_bytes);
  return estimate;
}

ArmMask Controller::Candidates(ArmMask allowed, const Envelope& envelope, size_t interval) const {
  if (options_.all_candidates) {
    return allowed;
  }
  const auto& pieces = envelope.pieces();
  ArmMask mask = ArmBit(kRawArm);
  const auto reach = static_cast<size_t>(options_.neighbours);
  const size_t first = interval - std::min(interval, reach);
  const size_t last = std::min(pieces.size() - 1, interval + reach);
  for (size_t i = first; i <= last; ++i) {
    mask |= ArmBit(pieces[i].arm);
  }
  // Of what exists, the envelope's arms may all be missing.
  return (mask & allowed) != 0 && (allowed & ArmBit(pieces[interval].arm)) != 0 ? mask & allowed
                                                                                : allowed;
}

std::optional<Decision> Controller::Decide(const Question& question, Rng& rng) {
  KVIK_DCHECK(question.raw_bytes > 0 && question.us_per_byte > 0 && question.tokens >= 1);
  const int32_t quality_class = table_.ClassOf(question.workload, question.quality);
  const ArmMask allowed = table_.MaskOfClass(quality_class) & question.available;
  if (allowed == 0) {
    return std::nullopt;
  }
  const size_t length = LengthBucket(question.tokens);
  const double frames = FramesOf(question.tokens);
  // The envelope is of a prompt of the tabulated length, which has fixed costs and a prefill in
  // another proportion to its bytes; near enough for neighbours.
  const Envelope& envelope = EnvelopeOf(quality_class, length);
  const size_t interval = envelope.Find(question.us_per_byte);
  const ArmMask candidates = Candidates(allowed, envelope, interval);

  ++decisions_;
  DecisionRecord& record = ring_.Add(decisions_);
  record.question = question;
  record.envelope_arm = envelope.pieces()[interval].arm;
  const double budget_us = question.slo_us > 0
                               ? static_cast<double>(question.slo_us) - question.other_us
                               : std::numeric_limits<double>::infinity();
  std::array<double, kMaxArms> expected_us;
  double best_us = std::numeric_limits<double>::infinity();
  int32_t best = -1;
  double least_us = std::numeric_limits<double>::infinity();  // in time or not, cooling or not
  int32_t least = -1;
  ArmMask feasible = 0;
  const auto estimate = [&](int32_t arm) {
    return EstimateOf(arm, quality_class, length, interval, frames, question);
  };
  for (ArmMask rest = candidates; rest != 0; rest &= rest - 1) {
    const int32_t arm = std::countr_zero(rest);
    const Estimate e = estimate(arm);
    expected_us[static_cast<size_t>(arm)] = e.expected_us;
    const bool cooling = lateness_[static_cast<size_t>(arm)].until >= decisions_;
    if (e.expected_us < least_us) {
      least_us = e.expected_us;
      least = arm;
    }
    if (!cooling && e.expected_us <= budget_us) {
      feasible |= ArmBit(arm);
      if (e.expected_us < best_us) {
        best_us = e.expected_us;
        best = arm;
      }
    }
    if (arm == kRawArm) {
      record.raw_us = e.expected_us;
    }
    // Keeps the least ones, in order.
    const CandidateRecord entry{arm, cooling, static_cast<float>(e.predicted_us),
                                static_cast<float>(e.expected_us)};
    ++record.considered;
    size_t at = record.num_candidates;
    if (at == record.candidates.size()) {
      if (record.candidates.back().expected_us <= entry.expected_us) {
        continue;
      }
      --at;
    } else {
      ++record.num_candidates;
    }
    for (; at > 0 && record.candidates[at - 1].expected_us > entry.expected_us; --at) {
      record.candidates[at] = record.candidates[at - 1];
    }
    record.candidates[at] = entry;
  }

  Decision& decision = record.decision;
  if (best < 0) {
    // Quality holds, time does not: the fastest of all that may be used, whatever its past.
    for (ArmMask rest = allowed & ~candidates; rest != 0; rest &= rest - 1) {
      const int32_t arm = std::countr_zero(rest);
      const double us = estimate(arm).expected_us;
      if (us < least_us) {
        least_us = us;
        least = arm;
      }
    }
    decision.choice = Choice::kNoneInTime;
    decision.arm = least;
  } else {
    decision.choice = Choice::kFastest;
    decision.arm = best;
    if (options_.epsilon > 0 && rng.Uniform() < options_.epsilon) {
      ArmMask near = 0;
      for (ArmMask rest = feasible; rest != 0; rest &= rest - 1) {
        const int32_t arm = std::countr_zero(rest);
        if (expected_us[static_cast<size_t>(arm)] <= options_.explore_within * best_us) {
          near |= ArmBit(arm);
        }
      }
      uint64_t skip = rng.Below(static_cast<uint64_t>(std::popcount(near)));
      for (; skip > 0; --skip) {
        near &= near - 1;
      }
      decision.arm = std::countr_zero(near);
      decision.choice = decision.arm == best ? Choice::kFastest : Choice::kExplored;
    }
  }
  const Estimate chosen = estimate(decision.arm);
  decision.profile_hash = table_.arm(decision.arm).profile_hash;
  decision.predicted_us = chosen.predicted_us;
  decision.expected_us = chosen.expected_us;
  decision.workload = question.workload;
  decision.quality_class = quality_class;
  decision.length = static_cast<uint8_t>(length);
  decision.interval = static_cast<uint8_t>(interval);
  decision.raw_bytes = question.raw_bytes;
  decision.frames = frames;
  decision.produce_us = question.produce_us;
  decision.produce_parts = question.produce_parts;
  decision.us_per_byte = question.us_per_byte;
  decision.expected_in_time = chosen.expected_us <= budget_us;
  return decision;
}

void Controller::Observe(const Decision& decision, const Observation& observation) {
  if (DecisionRecord* record = ring_.Find(decision.id)) {
    record->observed = true;
    record->observation = observation;
  }
  const auto arm = static_cast<size_t>(decision.arm);
  const size_t length = decision.length;
  // The path as the stages explain it: measured ones as they were, the others as was expected.
  StageTimes explained = StagesOf(
      table_.arm(decision.arm).cost[length], options_.form, decision.raw_bytes,
      decision.us_per_byte,
      observation.produce_us > 0 ? observation.produce_us : decision.produce_us, decision.frames);
  explained.produce_parts = decision.produce_parts;
  const auto learn = [&](double observed_us, SpeedFactors& factors, double& stage_us) {
    const double tabulated_us = stage_us;
    stage_us *= factors.Expected(arm, decisions_);
    if (options_.learn_speeds && observed_us > 0 && tabulated_us > 0) {
      factors.Observe(arm, observed_us / tabulated_us, decisions_);
      stage_us = observed_us;
    }
  };
  learn(observation.encode_us, encode_, explained.encode_us);
  learn(observation.decode_us, decode_, explained.decode_us);
  if (options_.learn_speeds && observation.wire_us > 0) {
    explained.wire_us = observation.wire_us;
  }
  const double path_us = PathUs(explained, options_.overlap, decision.frames);
  if (options_.residual_alpha > 0 && observation.path_us > 0) {
    Residual& residual =
        residuals_[ResidualIndex(decision.arm, decision.quality_class, length, decision.interval)];
    const double difference =
        std::clamp(observation.path_us - path_us, -path_us, (kLargestFactor - 1) * path_us);
    residual.us_per_byte *= Trust(residual.last_use);
    residual.us_per_byte +=
        options_.residual_alpha * (difference / decision.raw_bytes - residual.us_per_byte);
    residual.last_use = decisions_;
  }
  ++uses_[arm];

  // A budget that nobody expected to be kept says nothing about the arm.
  if (decision.expected_in_time) {
    Lateness& late = lateness_[arm];
    const uint32_t window = options_.late_window == 32 ? ~0U : (1U << options_.late_window) - 1;
    late.history = (late.history << 1 | (observation.in_time ? 0U : 1U)) & window;
    if (std::popcount(late.history) > options_.late_allowed) {
      late.until = decisions_ + static_cast<uint64_t>(options_.cooldown);
      late.history = 0;
    }
  }
}

double Controller::ExpectedUs(int32_t arm, const Question& question) const {
  const int32_t quality_class = table_.ClassOf(question.workload, question.quality);
  const size_t length = LengthBucket(question.tokens);
  const size_t interval = EnvelopeOf(quality_class, length).Find(question.us_per_byte);
  return EstimateOf(arm, quality_class, length, interval, FramesOf(question.tokens), question)
      .expected_us;
}

ArmBelief Controller::Belief(int32_t arm, size_t length) const {
  const auto i = static_cast<size_t>(arm);
  const Lateness& late = lateness_[i];
  ArmBelief belief;
  belief.encode_factor = encode_.Expected(i, decisions_);
  belief.decode_factor = decode_.Expected(i, decisions_);
  belief.uses = uses_[i];
  belief.cooling = late.until > decisions_ ? static_cast<int32_t>(late.until - decisions_) : 0;
  if (options_.scope == ControllerOptions::Scope::kArm) {
    const Residual& residual = residuals_[ResidualIndex(arm, 0, length, 0)];
    belief.residual_us_per_byte = Trust(residual.last_use) * residual.us_per_byte;
  }
  return belief;
}

const Envelope& Controller::EnvelopeOf(int32_t quality_class, size_t length) const {
  return envelopes_[static_cast<size_t>(quality_class) * kNumLengths + length];
}

}  // namespace kvik::control
