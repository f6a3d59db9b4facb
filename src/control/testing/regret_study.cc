// SPDX-License-Identifier: Apache-2.0
#include "control/testing/regret_study.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <numbers>
#include <optional>
#include <queue>
#include <span>

#include "base/check.h"
#include "base/rng.h"
#include "control/goodput.h"

namespace kvik::control::testing {
namespace {

constexpr double kSecondUs = 1e6;
constexpr double kGbit = 1e9 / 8;
// What a transfer costs besides its bytes: a system call and a thread to wake on either side.
constexpr double kFixedUs = 150;

double Normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.Uniform());
}

// Mean 1.
double LogNormal(Rng& rng, double sigma) {
  return std::exp(sigma * Normal(rng) - sigma * sigma / 2);
}

double LogUniform(Rng& rng, double low, double high) {
  return low * std::pow(high / low, rng.Uniform());
}

std::optional<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A walk in the logarithm of a factor, within [1 / most, most], a step a second.
std::vector<double> Drift(Rng& rng, int seconds, double most) {
  const double log_most = std::log(most);
  std::vector<double> factors;
  double log_factor = 0;
  for (int i = 0; i < seconds; ++i) {
    log_factor = std::clamp(log_factor + 0.15 * log_most * Normal(rng), -log_most, log_most);
    factors.push_back(std::exp(log_factor));
  }
  return factors;
}

// The truth over time.
class Truth {
 public:
  Truth(const StudyOptions& options, size_t num_arms) {
    Rng rng(options.seed, 1);
    seconds_ = options.world == World::kDrop ? 60 : 120;
    const auto n = static_cast<size_t>(seconds_);
    encode_mismatch_.resize(num_arms);
    decode_mismatch_.resize(num_arms);
    for (size_t i = 0; i < num_arms; ++i) {
      encode_mismatch_[i] = LogNormal(rng, options.mismatch);
      decode_mismatch_[i] = LogNormal(rng, options.mismatch);
    }
    arm_drift_.assign(num_arms, std::vector<double>(n, 1.0));
    encode_.assign(n, 1.0);
    decode_.assign(n, 1.0);
    if (options.world == World::kDrop) {
      for (size_t s = 0; s < n; ++s) {
        bandwidth_.push_back(s >= 20 && s < 40 ? 0.1 * kGbit : 2 * kGbit);
        decode_[s] = s >= 30 ? 2.0 : 1.0;
      }
      return;
    }
    encode_ = Drift(rng, seconds_, 2);
    decode_ = Drift(rng, seconds_, 2);
    for (std::vector<double>& drift : arm_drift_) {
      drift = Drift(rng, seconds_, 1.25);
    }
    double bandwidth = LogUniform(rng, 0.4, 6.4) * kGbit;
    int64_t left = 0;
    for (size_t s = 0; s < n; ++s, --left) {
      if (left == 0) {
        left = rng.Range(6, 14);
        if (s > 0) {
          const bool up =
              bandwidth < 0.4 * kGbit || (bandwidth < 6.25 * kGbit && rng.Below(2) == 0);
          bandwidth *= up ? 4 : 0.25;
        }
      }
      bandwidth_.push_back(bandwidth);
    }
  }

  [[nodiscard]] double duration_us() const { return seconds_ * kSecondUs; }
  [[nodiscard]] double bandwidth(double t_us) const { return bandwidth_[At(t_us)]; }

  struct Noise {
    double encode = 1;
    double wire = 1;
    double decode = 1;
  };
  // When `bytes` that begin at `start_us` have gone, at the bandwidth of every moment.
  [[nodiscard]] double WireEnd(double bytes, double start_us) const {
    double t_us = start_us;
    while (true) {
      const double rate = bandwidth(t_us) / kSecondUs;  // bytes a microsecond
      const double next_us = (std::floor(t_us / kSecondUs) + 1) * kSecondUs;
      if (t_us >= duration_us() || bytes <= rate * (next_us - t_us)) {
        return t_us + bytes / rate;
      }
      bytes -= rate * (next_us - t_us);
      t_us = next_us;
    }
  }

  [[nodiscard]] StageTimes Stages(const Arm& arm, int32_t index, size_t length, Form form,
                                  Overlap overlap, double raw_bytes, double frames, double t_us,
                                  const Noise& noise) const {
    const size_t s = At(t_us);
    const auto i = static_cast<size_t>(index);
    StageTimes t = StagesOf(arm.cost[length], form, raw_bytes, 0, 0, frames);
    t.encode_us *= encode_mismatch_[i] * encode_[s] * arm_drift_[i][s] * noise.encode;
    t.decode_us *= decode_mismatch_[i] * decode_[s] * arm_drift_[i][s] * noise.decode;
    const double wire_start_us = WireStart(t, overlap, t_us);
    const double bytes = raw_bytes * arm.cost[length].wire_bytes * noise.wire;
    t.wire_us = WireEnd(bytes, wire_start_us) - wire_start_us;
    return t;
  }

  [[nodiscard]] static double WireStart(const StageTimes& t, Overlap overlap, double t_us) {
    return t_us + (overlap == Overlap::kSerial ? t.encode_us : 0);
  }

 private:
  [[nodiscard]] size_t At(double t_us) const {
    return std::min(static_cast<size_t>(t_us / kSecondUs), bandwidth_.size() - 1);
  }

  int seconds_ = 0;
  std::vector<double> bandwidth_;  // bytes a second, by second
  std::vector<double> encode_;     // factors of time
  std::vector<double> decode_;
  std::vector<std::vector<double>> arm_drift_;  // [arms]
  std::vector<double> encode_mismatch_;         // [arms]
  std::vector<double> decode_mismatch_;
};

// Average time per byte of every arm, by quality class and length; what was never tried is tried.
class ModelFree {
 public:
  explicit ModelFree(const ArmTable& table)
      : table_(table),
        us_per_byte_(static_cast<size_t>(table.num_classes()) * kNumLengths * table.arms().size(),
                     0.0) {}

  [[nodiscard]] int32_t Decide(int32_t quality_class, size_t length, Rng& rng) const {
    const ArmMask allowed = table_.MaskOfClass(quality_class);
    if (rng.Uniform() < kEpsilon) {
      uint64_t skip = rng.Below(static_cast<uint64_t>(std::popcount(allowed)));
      ArmMask rest = allowed;
      for (; skip > 0; --skip) {
        rest &= rest - 1;
      }
      return std::countr_zero(rest);
    }
    int32_t best = kRawArm;
    double least = std::numeric_limits<double>::infinity();
    for (ArmMask rest = allowed; rest != 0; rest &= rest - 1) {
      const int32_t arm = std::countr_zero(rest);
      const double us = us_per_byte_[Index(arm, quality_class, length)];
      if (us < least) {
        least = us;
        best = arm;
      }
    }
    return best;
  }
  void Observe(int32_t arm, int32_t quality_class, size_t length, double us_per_byte) {
    double& mean = us_per_byte_[Index(arm, quality_class, length)];
    mean = mean == 0 ? us_per_byte : mean + kAlpha * (us_per_byte - mean);
  }

 private:
  static constexpr double kEpsilon = 0.1;
  static constexpr double kAlpha = 0.2;
  [[nodiscard]] size_t Index(int32_t arm, int32_t quality_class, size_t length) const {
    return (static_cast<size_t>(quality_class) * kNumLengths + length) * table_.arms().size() +
           static_cast<size_t>(arm);
  }
  const ArmTable& table_;
  std::vector<double> us_per_byte_;
};

struct InFlight {
  double end_us = 0;
  int64_t order = 0;
  int32_t arm = kRawArm;
  int32_t quality_class = 0;
  size_t length = 0;
  double raw_bytes = 0;
  std::optional<Decision> decision;
  Observation observation;
  bool operator<(const InFlight& other) const {  // a priority queue's top is the greatest
    return end_us != other.end_us ? end_us > other.end_us : order > other.order;
  }
};

// A transfer tells its bandwidth while it lasts.
struct Sample {
  double end_us = 0;
  double busy_us = 0;
  uint64_t bytes = 0;
  bool operator<(const Sample& other) const { return end_us > other.end_us; }
};
constexpr int kSamples = 8;  // of a transfer

}  // namespace

MachineSpeeds TypicalSpeeds(const codec::ProfileLibrary& library, double scale) {
  MachineSpeeds speeds;
  for (const codec::Profile& profile : library.profiles) {
    // GB/s a core, as the benchmark of pipelines has them.
    double encode = 1.0;
    double decode = 0.9;
    if (profile.fidelity == codec::Fidelity::kExact) {
      encode = 2.0;
      decode = 3.1;
    } else if (profile.pipeline.find("rans") == std::string::npos) {
      encode = 7.8;
      decode = 10.5;
    } else if (profile.pipeline.find("klt") == std::string::npos) {
      encode = 2.0;
      decode = 1.8;
    }
    ProfileSpeeds p = UniformSpeeds(profile.hash, encode * scale * 1e9, decode * scale * 1e9);
    for (size_t i = 0; i < kNumLengths; ++i) {
      p.encode[i].fixed_us = kFixedUs / scale;
      p.decode[i].fixed_us = kFixedUs / scale;
      // Short frames pay more for what they carry once.
      const double short_prompt = kLengths[i] < 512 ? 0.8 : 1.0;
      p.encode[i].raw_bytes_per_s *= short_prompt;
      p.decode[i].raw_bytes_per_s *= short_prompt;
    }
    speeds.Set(p);
  }
  return speeds;
}

Result<codec::ProfileLibrary> ReadLibrary(const std::string& folder) {
  const std::optional<std::string> json = ReadAll(folder + "/library.json");
  if (!json) {
    return Err(ErrorCode::kNotFound, "%s/library.json cannot be read", folder.c_str());
  }
  KVIK_ASSIGN(const std::string name, codec::ProfileLibrarySideFile(*json));
  const std::optional<std::string> side = ReadAll(folder + "/" + name);
  if (!side) {
    return Err(ErrorCode::kNotFound, "%s/%s cannot be read", folder.c_str(), name.c_str());
  }
  return codec::ParseProfileLibrary(*json, std::as_bytes(std::span(*side)));
}

void StudyResult::Add(const StudyResult& other) {
  decisions += other.decisions;
  time_us += other.time_us;
  oracle_us += other.oracle_us;
  ratio_sum += other.ratio_sum;
  with_slo += other.with_slo;
  late += other.late;
  oracle_late += other.oracle_late;
  poor += other.poor;
}

double StudyResult::LateShare() const {
  return static_cast<double>(late) / static_cast<double>(std::max<int64_t>(1, with_slo));
}

double StudyResult::OracleLateShare() const {
  return static_cast<double>(oracle_late) / static_cast<double>(std::max<int64_t>(1, with_slo));
}

StudyResult RunStudy(const codec::ProfileLibrary& library, const ArmTable& table,
                     const StudyOptions& options, const Policy& policy) {
  const Truth truth(options, table.arms().size());
  const codec::ModelFacts& model = library.model;
  const double bytes_per_token = 4.0 * model.num_layers * model.num_kv_heads * model.head_dim;

  ControllerOptions controller_options = policy.controller;
  controller_options.form = options.form;
  controller_options.overlap = options.overlap;
  controller_options.raw_bytes_per_token = bytes_per_token;
  controller_options.frames_per_chunk = model.num_layers;
  Controller controller(table, controller_options);
  ModelFree model_free(table);
  GoodputOptions link = policy.goodput;
  link.initial_bytes_per_s = truth.bandwidth(0);
  Goodput goodput(link);

  Rng world(options.seed, 2);  // what happens, whoever decides
  Rng chance(options.seed, 3);
  std::priority_queue<InFlight> in_flight;
  std::priority_queue<Sample> samples;
  StudyResult result;
  const auto end_one = [&] {
    const InFlight& done = in_flight.top();
    if (done.decision) {
      controller.Observe(*done.decision, done.observation);
    }
    model_free.Observe(done.arm, done.quality_class, done.length,
                       done.observation.path_us / done.raw_bytes);
    in_flight.pop();
  };

  const double interval_us = truth.duration_us() / options.decisions;
  constexpr std::array<float, 4> kQualities = {0.95F, 0.97F, 0.98F, 0.99F};
  constexpr std::array<const char*, 5> kWorkloads = {"code", "math", "qa", "summarization",
                                                     "other"};
  double now_us = 0;
  for (int32_t i = 0; i < options.decisions; ++i) {
    // The request and its fate.
    now_us = interval_us * (i + world.Uniform());
    Question question;
    question.now_us = static_cast<int64_t>(now_us);
    question.request = static_cast<uint64_t>(i);
    question.workload = table.Workload(kWorkloads[world.Below(kWorkloads.size())]);
    if (world.Uniform() < 0.75) {
      question.quality = {true, kQualities[world.Below(kQualities.size())]};
    }
    question.tokens = static_cast<int64_t>(LogUniform(world, 96, 6144));
    question.raw_bytes = bytes_per_token * static_cast<double>(question.tokens);
    const Truth::Noise noise{LogNormal(world, options.noise), LogNormal(world, options.noise),
                             LogNormal(world, options.noise)};
    const double slack = world.Uniform() < 0.5 ? 1.2 + world.Uniform() : 0;
    const size_t length = LengthBucket(question.tokens);
    const int64_t chunks =
        (question.tokens + controller_options.chunk_tokens - 1) / controller_options.chunk_tokens;
    const double frames = static_cast<double>(chunks) * controller_options.frames_per_chunk;
    const auto path_us = [&](int32_t arm, const Truth::Noise& n) {
      return PathUs(truth.Stages(table.arm(arm), arm, length, options.form, options.overlap,
                                 question.raw_bytes, frames, now_us, n),
                    options.overlap, frames);
    };
    const int32_t quality_class = table.ClassOf(question.workload, question.quality);
    double oracle_us = std::numeric_limits<double>::infinity();
    double usual_us = oracle_us;
    int32_t usual_arm = kRawArm;
    for (size_t a = 0; a < table.arms().size(); ++a) {
      const auto arm = static_cast<int32_t>(a);
      if (question.quality.Accepts(table.Quality(arm, question.workload))) {
        oracle_us = std::min(oracle_us, path_us(arm, noise));
        if (const double us = path_us(arm, {}); us < usual_us) {
          usual_us = us;
          usual_arm = arm;
        }
      }
    }
    question.slo_us = slack > 0 ? static_cast<int64_t>(slack * usual_us) : 0;

    // The choice.
    while (!in_flight.empty() && in_flight.top().end_us <= now_us) {
      end_one();
    }
    for (; !samples.empty() && samples.top().end_us <= now_us; samples.pop()) {
      const Sample& sample = samples.top();
      goodput.Add(sample.bytes, static_cast<int64_t>(sample.busy_us),
                  static_cast<int64_t>(sample.end_us));
    }
    question.us_per_byte =
        policy.knows_bandwidth ? 1e6 / truth.bandwidth(now_us) : goodput.us_per_byte();
    InFlight transfer;
    switch (policy.rule) {
      case Rule::kController:
        transfer.decision = controller.Decide(question, chance);
        KVIK_CHECK(transfer.decision.has_value());
        transfer.arm = transfer.decision->arm;
        break;
      case Rule::kFirstKept: {
        const Envelope& envelope = controller.EnvelopeOf(quality_class, length);
        transfer.arm = envelope.pieces()[envelope.Find(1e6 / truth.bandwidth(0))].arm;
        break;
      }
      case Rule::kModelFree:
        transfer.arm = model_free.Decide(quality_class, length, chance);
        break;
      case Rule::kKnowsMeans:
        transfer.arm = usual_arm;
        break;
      case Rule::kRaw:
        transfer.arm = kRawArm;
        break;
    }

    // What comes of it.
    const StageTimes stages =
        truth.Stages(table.arm(transfer.arm), transfer.arm, length, options.form, options.overlap,
                     question.raw_bytes, frames, now_us, noise);
    Observation& seen = transfer.observation;
    seen.path_us = PathUs(stages, options.overlap, frames);
    seen.encode_us = stages.encode_us;
    seen.wire_us = stages.wire_us;
    seen.decode_us = stages.decode_us;
    const auto slo_us = static_cast<double>(question.slo_us);
    seen.in_time = question.slo_us == 0 || seen.path_us <= slo_us;
    transfer.end_us = now_us + seen.path_us;
    transfer.order = i;
    transfer.quality_class = quality_class;
    transfer.length = length;
    transfer.raw_bytes = question.raw_bytes;
    const double wire_bytes = question.raw_bytes * table.arm(transfer.arm).cost[length].wire_bytes;
    double from_us = Truth::WireStart(stages, options.overlap, now_us);
    for (int piece = 0; piece < kSamples; ++piece) {
      const double to_us = truth.WireEnd(wire_bytes / kSamples * noise.wire, from_us);
      samples.push({to_us, to_us - from_us, static_cast<uint64_t>(wire_bytes / kSamples)});
      from_us = to_us;
    }
    ++result.decisions;
    result.time_us += seen.path_us;
    result.oracle_us += oracle_us;
    result.ratio_sum += seen.path_us / oracle_us;
    if (question.slo_us > 0) {
      ++result.with_slo;
      result.late += seen.in_time ? 0 : 1;
      result.oracle_late += oracle_us <= slo_us ? 0 : 1;
    }
    if (!question.quality.Accepts(table.Quality(transfer.arm, question.workload))) {
      ++result.poor;
    }
    in_flight.push(transfer);
  }
  return result;
}

std::vector<Policy> StudyPolicies() {
  std::vector<Policy> policies;
  const auto add = [&](const char* name, const auto& change) {
    Policy policy;
    policy.name = name;
    change(policy);
    policies.push_back(policy);
  };
  add("knows all but the noise", [](Policy& p) { p.rule = Rule::kKnowsMeans; });
  add("full", [](Policy&) {});
  add("full, true bandwidth", [](Policy& p) { p.knows_bandwidth = true; });
  add("published rules", [](Policy& p) { p.controller = ControllerOptions::Published(); });
  add("published, explore within 10 %", [](Policy& p) {
    p.controller = ControllerOptions::Published();
    p.controller.explore_within = 1.1;
  });
  add("published, residual per arm", [](Policy& p) {
    p.controller = ControllerOptions::Published();
    p.controller.explore_within = 1.1;
    p.controller.scope = ControllerOptions::Scope::kArm;
  });
  add("no residuals (speeds only)", [](Policy& p) { p.controller.residual_alpha = 0; });
  add("no speeds (residuals only)", [](Policy& p) { p.controller.learn_speeds = false; });
  add("candidates: envelope and neighbours",
      [](Policy& p) { p.controller.all_candidates = false; });
  add("no exploration", [](Policy& p) { p.controller.epsilon = 0; });
  add("no forgetting", [](Policy& p) {
    p.controller.forget_decisions = 0;
    p.controller.speed_noise.forget_decisions = 1e12;
  });
  add("no learning (model only)", [](Policy& p) {
    p.controller.residual_alpha = 0;
    p.controller.learn_speeds = false;
    p.controller.epsilon = 0;
  });
  add("choice of t = 0 kept", [](Policy& p) { p.rule = Rule::kFirstKept; });
  add("epsilon-greedy over all", [](Policy& p) { p.rule = Rule::kModelFree; });
  add("raw", [](Policy& p) { p.rule = Rule::kRaw; });
  return policies;
}

}  // namespace kvik::control::testing
