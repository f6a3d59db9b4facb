// SPDX-License-Identifier: Apache-2.0
// Hand-overs from a prefill to a decode node and reads from a pool, with the real controller,
// goodput estimate and load planner, the speeds and costs that `kvik serve` measured on this
// machine, and a simulated clock. Prints the tables of docs/kv-results.md.
//
//   kv_study_bench --profiles FOLDER --speeds FILE --costs FILE [--q-min Q] [--seeds N]
//                  [--workload NAME] [--only choices]
//
// Time on the wire, of encoding and of decoding is noisy by 20 % for each transfer, computing by
// 5 %; every arm meets the same noise. A transfer is played frame by frame
// (control/testing/frame_world.h): chunks are sealed by the prefill's steps, so what earlier steps
// made travels while later ones compute.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/rng.h"
#include "base/testing/bench_options.h"
#include "codec/frame.h"
#include "codec/pipeline.h"
#include "codec/presets.h"
#include "control/controller.h"
#include "control/goodput.h"
#include "control/load_plan.h"
#include "control/testing/frame_world.h"
#include "control/testing/regret_study.h"

namespace kvik::control {
namespace {

using kvik::testing::OrDie;
using testing::SealedChunk;

constexpr int32_t kStepTokens = 512;
constexpr int32_t kChunkTokens = 256;
constexpr int32_t kBlockTokens = 16;
constexpr int32_t kAnswerTokens = 16;
constexpr double kNoise = 0.2;
constexpr double kComputeNoise = 0.05;
constexpr int kRequests = 50;  // of a seed

struct Options {
  std::string profiles = "profiles/smollm2-135m";
  std::string speeds;
  std::string costs;
  std::string workload;  // only this one in full
  double q_min = 0.97;
  int seeds = 20;
  bool only_choices = false;
};

// What docs/rate-distortion.md has of published methods: ratios by length, and the lower end of q
// by workload at 1,024 tokens. A prompt of 128 is KIVI's residual window; at 512 tokens the window
// and the rest at the rate of 1,024 tokens.
struct Published {
  const char* name;
  double ratio_128, ratio_512, ratio_1024, ratio_6144;
  double code, math, qa, summarization;
};
constexpr std::array<Published, 5> kOfSmolLm2 = {{
    {"kivi-2", 1.17, 2.52, 3.38, 4.87, 0.9343, 0.9300, 0.8861, 0.8714},
    {"kivi-4", 1.14, 2.05, 2.47, 3.05, 0.9991, 0.9983, 0.9968, 0.9962},
    {"cachegen", 4.04, 4.06, 4.07, 4.06, 0.9897, 0.9804, 0.9827, 0.9791},
    {"cachegen-2", 4.48, 4.50, 4.51, 4.51, 0.9824, 0.9591, 0.9625, 0.9613},
    {"cachegen-3", 5.28, 5.30, 5.31, 5.31, 0.9190, 0.8786, 0.8817, 0.8759},
}};
constexpr std::array<Published, 5> kOfQwen = {{
    {"kivi-2", 1.17, 2.52, 3.37, 4.87, 0.9801, 0.9748, 0.9481, 0.9417},
    {"kivi-4", 1.14, 2.05, 2.47, 3.05, 0.9994, 1.0000, 0.9976, 0.9993},
    {"cachegen", 3.94, 3.97, 3.98, 4.00, 0.9578, 0.9465, 0.9599, 0.9708},
    {"cachegen-2", 4.36, 4.38, 4.40, 4.42, 0.9427, 0.9189, 0.9312, 0.9438},
    {"cachegen-3", 5.10, 5.13, 5.15, 5.17, 0.9122, 0.8437, 0.8026, 0.8261},
}};

double Normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.Uniform());
}
double LogNormal(Rng& rng, double sigma) {
  return std::exp(sigma * Normal(rng) - sigma * sigma / 2);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "kv_study_bench: %s cannot be read\n", path.c_str());
    std::exit(1);
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

kv::CostModel ReadCosts(const std::string& path) {
  const auto json = nlohmann::json::parse(ReadAll(path), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("model") || !json["model"].is_object()) {
    std::fprintf(stderr, "kv_study_bench: %s has no cost model\n", path.c_str());
    std::exit(1);
  }
  const auto at = [&](const char* name) { return json["model"].value(name, 0.0); };
  return {.step_us = at("step_us"),
          .token_us = at("token_us"),
          .cached_token_us = at("cached_token_us"),
          .segment_us = at("segment_us"),
          .square_us = at("square_us"),
          .decode_us = at("decode_us"),
          .decode_kv_token_us = at("decode_kv_token_us")};
}

// The library and the published methods beside it, all with the speeds measured here.
codec::ProfileLibrary WithPublished(const codec::ProfileLibrary& library) {
  codec::ProfileLibrary all = library;
  const bool qwen = library.model.num_layers == 24;
  for (const Published& p : qwen ? kOfQwen : kOfSmolLm2) {
    const auto pipeline = OrDie(codec::ParsePipelineOrPreset(p.name));
    codec::Profile profile;
    profile.name = p.name;
    profile.hash =
        OrDie(codec::FrameCodec::Create(pipeline, library.model, library.side_info, Isa::kScalar))
            ->profile_hash();
    profile.fidelity = codec::Fidelity::kLossy;
    profile.ratios = {
        {128, p.ratio_128}, {512, p.ratio_512}, {1024, p.ratio_1024}, {6144, p.ratio_6144}};
    const auto quality = [&](const char* workload, double low) {
      codec::QualityRecord record;
      record.workload = workload;
      record.q = {low, low, low};
      profile.quality.push_back(record);
    };
    quality("code", p.code);
    quality("math", p.math);
    quality("qa", p.qa);
    quality("summarization", p.summarization);
    quality(codec::kUnifiedWorkload, std::min({p.code, p.math, p.qa, p.summarization}));
    all.profiles.push_back(profile);
  }
  return all;
}

// Mean and 95 % interval of the mean of paired ratios, one of each seed.
struct Interval {
  double mean = 0;
  double low = 0;
  double high = 0;
};
Interval Of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  double squares = 0;
  for (const double value : values) {
    squares += (value - sum / n) * (value - sum / n);
  }
  const double t = n >= 20 ? 2.093 : 2.8;  // of 19 degrees of freedom; fewer seeds: of 4
  const double half = n > 1 ? t * std::sqrt(squares / (n - 1) / n) : 0;
  return {sum / n, sum / n - half, sum / n + half};
}

class Study {
 public:
  explicit Study(const Options& options)
      : options_(options),
        library_(OrDie(testing::ReadLibrary(options.profiles))),
        everything_(WithPublished(library_)),
        speeds_(OrDie(ParseSpeeds(ReadAll(options.speeds)))),
        cost_(ReadCosts(options.costs)),
        ours_(OrDie(ArmTable::Build(&library_, speeds_, speeds_, {}))),
        all_(OrDie(ArmTable::Build(&everything_, speeds_, speeds_, {}))),
        layers_(library_.model.num_layers),
        token_bytes_(4.0 * layers_ * library_.model.num_kv_heads * library_.model.head_dim) {}

  void Choices(double q_min);
  void HandOvers();
  void Pool();

 private:
  struct Noise {
    double compute, encode, wire, decode;
  };
  static Noise Draw(Rng& rng) {
    return {LogNormal(rng, kComputeNoise), LogNormal(rng, kNoise), LogNormal(rng, kNoise),
            LogNormal(rng, kNoise)};
  }
  [[nodiscard]] static kv::MinQuality QMin(double q) { return {true, static_cast<float>(q)}; }
  // What a pool keeps (ProfileSet::ForStoring): lossless, and of what is good enough with any
  // workload the smallest with q >= 0.97, the quickest of these to read over 10 Gbit/s, and the
  // smallest with q >= 0.95; three at most.
  [[nodiscard]] ArmMask Stored() const {
    const auto lossless = ours_.Find("lossless");
    ArmMask stored = lossless ? ArmBit(*lossless) : 0;
    const auto add_best = [&](float least, const auto& cost_of) {
      int32_t best = kRawArm;
      for (size_t a = 1; a < ours_.arms().size(); ++a) {
        const Arm& arm = ours_.arms()[a];
        if (*std::min_element(arm.q.begin(), arm.q.end()) >= least &&
            arm.fidelity == kv::Fidelity::kLossy &&
            (best == kRawArm || cost_of(arm) < cost_of(ours_.arm(best)))) {
          best = static_cast<int32_t>(a);
        }
      }
      if (best != kRawArm && std::popcount(stored) < 3) {
        stored |= ArmBit(best);
      }
    };
    const auto bytes = [](const Arm& arm) { return arm.cost[2].wire_bytes; };
    add_best(0.97F, bytes);
    add_best(0.97F, [](const Arm& arm) {
      const ArmCost& cost = arm.cost.back();
      return std::max(cost.wire_bytes * MicrosPerByte(1.25e9), cost.decode_us_per_byte);
    });
    add_best(0.95F, bytes);
    return stored;
  }
  [[nodiscard]] double FramesOf(int32_t tokens) const {
    return static_cast<double>((tokens + kChunkTokens - 1) / kChunkTokens) * layers_;
  }
  [[nodiscard]] int32_t ChunkOf(const std::string& name) const {
    const codec::Preset* const preset = codec::FindPreset(name);
    return preset != nullptr && preset->request_tokens > 0 ? preset->request_tokens : kChunkTokens;
  }

  // From the request to the end of the last frame at the decode node.
  [[nodiscard]] double HandOverUs(const Arm& arm, int32_t tokens, double us_per_byte,
                                  const Noise& noise, Observation* seen) const {
    std::vector<double> steps = testing::StepEnds(cost_, tokens, kStepTokens);
    for (double& end : steps) {
      end *= noise.compute;
    }
    const int32_t moved = (tokens - 1) / kBlockTokens * kBlockTokens;  // the last token is computed
    const int32_t chunk = ChunkOf(arm.name);
    std::vector<SealedChunk> chunks;
    for (int32_t first = 0; first < moved; first += chunk) {
      const int32_t end = std::min(first + chunk, moved);
      chunks.push_back(
          {token_bytes_ * (end - first), steps[static_cast<size_t>((end - 1) / kStepTokens)]});
    }
    const ArmCost& cost = arm.cost[LengthBucket(moved)];
    const testing::FrameStages stages{
        cost.encode_us_per_byte * noise.encode, cost.wire_bytes * us_per_byte * noise.wire,
        cost.decode_us_per_byte * noise.decode, cost.encode_frame_us * noise.encode,
        cost.decode_frame_us * noise.decode};
    const double done_us = testing::LastDecodedUs(chunks, stages, layers_,
                                                  cost.encode_fixed_us + cost.decode_fixed_us);
    if (seen != nullptr) {
      const double raw = token_bytes_ * moved;
      const double frames = static_cast<double>(chunks.size()) * layers_;
      seen->encode_us = stages.encode_us * raw + stages.encode_frame_us * frames;
      seen->wire_us = stages.wire_us * raw;
      seen->decode_us = stages.decode_us * raw + stages.decode_frame_us * frames;
      seen->path_us = done_us - steps.back();
      seen->produce_us = steps.back();
    }
    return done_us;
  }
  [[nodiscard]] double AnswerUs(int32_t tokens, const Noise& noise) const {
    kv::StepFeatures tail;
    const int32_t first = (tokens - 1) / kBlockTokens * kBlockTokens;
    tail.AddSegment(first, tokens - first);
    double us = cost_.StepUs(tail);
    for (int32_t i = 1; i < kAnswerTokens; ++i) {
      kv::StepFeatures step;
      step.AddDecode(tokens + i);
      us += cost_.decode_us + cost_.decode_kv_token_us * step.decode_kv_tokens;
    }
    return us * noise.compute;
  }
  [[nodiscard]] ControllerOptions For(Form form) const {
    ControllerOptions options;
    options.form = form;
    options.raw_bytes_per_token = token_bytes_;
    options.frames_per_chunk = layers_;
    options.chunk_tokens = kChunkTokens;
    return options;
  }

  const Options options_;
  const codec::ProfileLibrary library_;
  const codec::ProfileLibrary everything_;
  const MachineSpeeds speeds_;
  const kv::CostModel cost_;
  const ArmTable ours_;
  const ArmTable all_;
  const int32_t layers_;
  const double token_bytes_;
};

// What is chosen on links of known bandwidth, by length, and what would have been best.
void Study::Choices(double q_min) {
  constexpr std::array<double, 9> kGbit = {0.1, 0.3, 1, 3, 10, 20, 30, 50, 100};
  constexpr int kDraws = 100;
  const std::string workload = options_.workload.empty() ? "qa" : options_.workload;
  const WorkloadId id = ours_.Workload(workload);
  const kv::MinQuality quality = q_min == 1 ? kv::MinQuality{} : QMin(q_min);
  std::printf(
      "\n### %s: chosen by length and bandwidth, %s%s\n\nPath in microseconds after the prefill; "
      "in brackets what had been faster on average, and by how much of that path.\n\n| tokens |",
      library_.model.name.c_str(), q_min == 1 ? "exact" : workload.c_str(),
      q_min == 1 ? "" : Format(", q >= %.2f", q_min).c_str());
  for (const double gbit : kGbit) {
    std::printf(" %g Gbit/s |", gbit);
  }
  std::printf("\n|---|");
  for (size_t i = 0; i < kGbit.size(); ++i) {
    std::printf("---|");
  }
  std::printf("\n");
  double worst = 1;
  for (const int32_t tokens : {17, 33, 65, 128, 256, 512, 1024, 4096}) {
    const int32_t moved = (tokens - 1) / kBlockTokens * kBlockTokens;
    const double prefill_us = testing::StepEnds(cost_, tokens, kStepTokens).back();
    std::printf("| %d |", tokens);
    for (const double gbit : kGbit) {
      const double us_per_byte = MicrosPerByte(gbit * 1e9 / 8);
      ControllerOptions options = For(Form::kHandOver);
      options.epsilon = 0;
      Controller controller(ours_, options);
      Rng chance(1);
      Question question;
      question.workload = id;
      question.quality = quality;
      question.tokens = moved;
      question.raw_bytes = token_bytes_ * moved;
      question.us_per_byte = us_per_byte;
      question.produce_us = prefill_us;
      question.produce_parts = static_cast<double>((tokens - 1) / kStepTokens + 1);
      const int32_t chosen = controller.Decide(question, chance)->arm;
      std::vector<double> path_us(ours_.arms().size());
      Rng world(1);
      for (int i = 0; i < kDraws; ++i) {
        const Noise noise = Draw(world);
        for (size_t a = 0; a < path_us.size(); ++a) {
          path_us[a] += (HandOverUs(ours_.arms()[a], tokens, us_per_byte, noise, nullptr) -
                         prefill_us * noise.compute) /
                        kDraws;
        }
      }
      size_t best = static_cast<size_t>(chosen);
      for (size_t a = 0; a < path_us.size(); ++a) {
        if (quality.Accepts(ours_.Quality(static_cast<int32_t>(a), id)) &&
            path_us[a] < path_us[best]) {
          best = a;
        }
      }
      const double us = path_us[static_cast<size_t>(chosen)];
      worst = std::max(worst, us / path_us[best]);
      std::printf(" %s %.0f", ours_.arm(chosen).name.c_str(), us);
      if (best != static_cast<size_t>(chosen)) {
        std::printf(" (%s %.1f %%)", ours_.arms()[best].name.c_str(),
                    100 * (us / path_us[best] - 1));
      }
      std::printf(" |");
    }
    std::printf("\n");
  }
  std::printf("\nAt most %.3f of the least path.\n", worst);
}

void Study::HandOvers() {
  std::printf("\n### %s: from prefill to decode node, q >= %.2f\n\n", library_.model.name.c_str(),
              options_.q_min);
  std::printf(
      "JCT in ms, %d tokens of answer; x: not good enough for the workload. Means of %d requests, "
      "%d seeds.\n\n",
      kAnswerTokens, kRequests * options_.seeds, options_.seeds);
  std::printf(
      "| workload | R | Gbit/s | tokens | raw | kivi-2 | kivi-4 | cachegen | best static | "
      "adaptive | over best static (95 %%) | over raw (95 %%) | took |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  double worst_static = 0;
  double worst_raw = 0;
  double highest = 0;
  double peak = 0;
  std::string peak_text;
  int points = 0;
  int missed_static = 0;
  int missed_raw = 0;
  int poor = 0;
  for (const std::string& workload : ours_.workloads()) {
    const bool shown = options_.workload.empty() || workload == options_.workload;
    for (const double r : {0.1, 0.3, 1.0, 3.0, 10.0}) {
      for (const int32_t tokens : {128, 256, 512, 1024}) {
        // KV that the prefill makes in a second, of a prompt of this length.
        const double prefill_us = testing::StepEnds(cost_, tokens, kStepTokens).back();
        const double bytes_per_s = token_bytes_ * tokens / prefill_us * 1e6 / r;
        const double us_per_byte = MicrosPerByte(bytes_per_s);
        const size_t n = all_.arms().size();
        std::vector<std::vector<double>> by_seed(n + 1);  // the last one: adaptive
        std::vector<double> total(n + 1);
        double model_us = 0;
        std::map<std::string, int> took;
        for (int seed = 1; seed <= options_.seeds; ++seed) {
          Rng world(static_cast<uint64_t>(seed), 1);
          Rng chance(static_cast<uint64_t>(seed), 2);
          Controller controller(ours_, For(Form::kHandOver));
          Goodput goodput;
          std::vector<double> sums(n + 1);
          int64_t now_us = 0;
          for (int i = 0; i < kRequests; ++i) {
            const Noise noise = Draw(world);
            const double answer_us = AnswerUs(tokens, noise);
            for (size_t a = 0; a < n; ++a) {
              sums[a] +=
                  answer_us + HandOverUs(all_.arms()[a], tokens, us_per_byte, noise, nullptr);
            }
            model_us += answer_us + prefill_us * noise.compute;
            Question question;
            question.now_us = now_us;
            question.workload = ours_.Workload(workload);
            question.quality = QMin(options_.q_min);
            question.tokens = (tokens - 1) / kBlockTokens * kBlockTokens;
            question.raw_bytes = token_bytes_ * static_cast<double>(question.tokens);
            question.us_per_byte = goodput.us_per_byte();
            question.produce_us = prefill_us;
            question.produce_parts = static_cast<double>((tokens - 1) / kStepTokens + 1);
            const Decision decision = *controller.Decide(question, chance);
            const Arm& arm = ours_.arm(decision.arm);
            poor +=
                question.quality.Accepts(ours_.Quality(decision.arm, question.workload)) ? 0 : 1;
            Observation seen;
            const double us = answer_us + HandOverUs(arm, tokens, us_per_byte, noise, &seen);
            sums[n] += us;
            ++took[arm.name];
            controller.Observe(decision, seen);
            now_us += static_cast<int64_t>(us);
            const double bytes =
                question.raw_bytes * arm.cost[LengthBucket(question.tokens)].wire_bytes;
            goodput.Add(static_cast<uint64_t>(bytes), static_cast<int64_t>(seen.wire_us), now_us);
          }
          for (size_t a = 0; a <= n; ++a) {
            by_seed[a].push_back(sums[a]);
            total[a] += sums[a];
          }
        }
        const double count = static_cast<double>(kRequests) * options_.seeds;
        size_t best = 0;
        const auto good = [&](size_t a) {
          return QMin(options_.q_min)
              .Accepts(all_.Quality(static_cast<int32_t>(a), all_.Workload(workload)));
        };
        for (size_t a = 0; a < n; ++a) {
          if (good(a) && total[a] < total[best]) {
            best = a;
          }
        }
        const auto ratio = [&](size_t to) {
          std::vector<double> ratios;
          for (size_t s = 0; s < by_seed[n].size(); ++s) {
            ratios.push_back(by_seed[n][s] / by_seed[to][s]);
          }
          return Of(ratios);
        };
        const Interval over_static = ratio(best);
        const Interval over_raw = ratio(0);
        ++points;
        missed_static += over_static.high < 1.03 ? 0 : 1;
        missed_raw += over_raw.high < 1.02 ? 0 : 1;
        worst_static = std::max(worst_static, over_static.high);
        worst_raw = std::max(worst_raw, over_raw.high);
        const double speedup = total[0] / total[n];
        highest = std::max(highest, speedup);
        // The bound knows no transfer beside the prefill: prompts of one step have none.
        if (tokens <= kStepTokens && speedup > peak) {
          const double c = (total[0] - model_us) / total[0];
          const double cr = 1 / all_.arms()[best].cost[LengthBucket(tokens)].wire_bytes;
          peak = speedup;
          peak_text = Format(
              "%.2fx (%s, R %g, %d tokens; %s): the bound 1/((1-c)+c/cr) with c = "
              "%.3f, cr = %.2f is %.2fx",
              speedup, workload.c_str(), r, tokens, all_.arms()[best].name.c_str(), c, cr,
              1 / ((1 - c) + c / cr));
        }
        if (!shown) {
          continue;
        }
        const auto ms = [&](size_t a) { return total[a] / count / 1e3; };
        const auto cell = [&](const char* name) {
          const auto arm = all_.Find(name);
          return !arm ? std::string("-")
                      : Format("%.1f%s", ms(static_cast<size_t>(*arm)),
                               good(static_cast<size_t>(*arm)) ? "" : " x");
        };
        const auto most =
            std::max_element(took.begin(), took.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
        std::printf(
            "| %s | %g | %.3f | %d | %.1f | %s | %s | %s | %.1f %s | %.1f | %.3f (%.3f to "
            "%.3f) | %.3f (%.3f to %.3f) | %s %.0f %% |\n",
            workload.c_str(), r, bytes_per_s * 8e-9, tokens, ms(0), cell("kivi-2").c_str(),
            cell("kivi-4").c_str(), cell("cachegen").c_str(), ms(best),
            all_.arms()[best].name.c_str(), ms(n), over_static.mean, over_static.low,
            over_static.high, over_raw.mean, over_raw.low, over_raw.high, most->first.c_str(),
            100.0 * most->second / count);
      }
    }
  }
  std::printf(
      "\nAll %d points of %zu workloads: upper end over the best static at most %.3f (%d of them "
      "1.03 or more), over raw at most %.3f (%d of them 1.02 or more); %d choices below q_min. "
      "Over raw up to %.2fx; without transfers beside the prefill up to %s.\n",
      points, ours_.workloads().size(), worst_static, missed_static, worst_raw, missed_raw, poor,
      highest, peak_text.c_str());
}

void Study::Pool() {
  const std::string workload = options_.workload.empty() ? "qa" : options_.workload;
  std::printf("\n### %s: from a pool, %s, q >= %.2f\n\n", library_.model.name.c_str(),
              workload.c_str(), options_.q_min);
  const ArmMask stored = Stored();
  std::string names;
  for (ArmMask rest = stored; rest != 0; rest &= rest - 1) {
    names += (names.empty() ? "" : ", ") + ours_.arm(std::countr_zero(rest)).name;
  }
  std::printf(
      "TTFT in ms (SLO of 0.5x / 0.25x of computing all kept, %% of requests). The pool keeps "
      "%s.\n\n"
      "| Gbit/s | tokens | compute all | load all raw | cachegen-adaptive, 0.5x | adaptive | "
      "adaptive, load or compute | over the better (95 %%) |\n|---|---|---|---|---|---|---|---|\n",
      names.c_str());
  const WorkloadId id = ours_.Workload(workload);
  const kv::MinQuality quality = QMin(options_.q_min);
  double worst = 0;
  double tie_gain = 1e9;
  int ties = 0;
  for (const double gbit : {0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0}) {
    for (const int32_t tokens : {1024, 2048, 4096, 6144}) {
      const double us_per_byte = MicrosPerByte(gbit * 1e9 / 8);
      const double recompute_us = testing::StepEnds(cost_, tokens, kStepTokens).back();
      enum { kCompute, kRaw, kCacheGen, kAdaptive, kBoth, kNumRules };
      std::array<double, kNumRules> total{};
      std::array<std::array<int, 2>, kNumRules> kept{};
      std::vector<double> ratios;
      for (int seed = 1; seed <= options_.seeds; ++seed) {
        Rng world(static_cast<uint64_t>(seed), 3);
        Rng chance(static_cast<uint64_t>(seed), 4);
        Controller controller(ours_, For(Form::kPoolRead));
        Goodput goodput;
        std::array<double, kNumRules> sums{};
        int64_t now_us = 0;
        for (int i = 0; i < kRequests; ++i) {
          const Noise noise = Draw(world);
          const int32_t moved = (tokens - 1) / kBlockTokens * kBlockTokens;
          const double raw_bytes = token_bytes_ * moved;
          kv::StepFeatures tail;
          tail.AddSegment(moved, tokens - moved);
          const double tail_us = cost_.StepUs(tail) * noise.compute;
          // Loading `from` to the end, with a chunk's fill at the end.
          const auto load_us = [&](const Arm& arm, int32_t from) {
            const ArmCost& cost = arm.cost[LengthBucket(moved)];
            const double raw = token_bytes_ * (moved - from);
            std::vector<SealedChunk> chunks;
            const int32_t chunk = ChunkOf(arm.name);
            for (int32_t first = from; first < moved; first += chunk) {
              chunks.push_back({token_bytes_ * std::min(chunk, moved - first), 0});
            }
            return raw == 0 ? 0.0
                            : testing::LastDecodedUs(chunks,
                                                     {0, cost.wire_bytes * us_per_byte * noise.wire,
                                                      cost.decode_us_per_byte * noise.decode, 0,
                                                      cost.decode_frame_us * noise.decode},
                                                     layers_, cost.decode_fixed_us);
          };
          std::array<double, kNumRules> us{};
          us[kCompute] = recompute_us * noise.compute;
          us[kRaw] = load_us(all_.arm(kRawArm), 0) + tail_us;

          // Levels of CacheGen, the finest that keeps the budget at the measured bandwidth.
          us[kCacheGen] = us[kCompute];
          for (const char* name : {"cachegen", "cachegen-2", "cachegen-3"}) {
            const auto level = all_.Find(name);
            if (!level) {
              continue;
            }
            const ArmCost& cost = all_.arm(*level).cost[LengthBucket(moved)];
            const StageTimes t = StagesOf(cost, Form::kPoolRead, raw_bytes, goodput.us_per_byte(),
                                          0, FramesOf(moved));
            if (PathUs(t, Overlap::kPipelined, layers_) + tail_us <= 0.5 * recompute_us) {
              us[kCacheGen] = load_us(all_.arm(*level), 0) + tail_us;
              break;
            }
          }

          Question question;
          question.now_us = now_us;
          question.workload = id;
          question.quality = quality;
          question.tokens = moved;
          question.raw_bytes = raw_bytes;
          question.us_per_byte = goodput.us_per_byte();
          question.available = stored;
          const Decision decision = *controller.Decide(question, chance);
          const Arm& arm = ours_.arm(decision.arm);
          us[kAdaptive] = load_us(arm, 0) + tail_us;

          // The meeting point of loading and computing.
          const ArmCost& cost = arm.cost[LengthBucket(moved)];
          std::vector<std::array<LoadEncoding, 1>> encodings;
          std::vector<LoadChunk> chunks;
          const double factor = controller.Belief(decision.arm, LengthBucket(moved)).decode_factor;
          for (int32_t first = 0; first < moved; first += kChunkTokens) {
            const int32_t end = std::min(first + kChunkTokens, moved);
            const double raw = token_bytes_ * (end - first);
            encodings.push_back({LoadEncoding{
                .wire_bytes = raw * cost.wire_bytes,
                .decode_us =
                    (raw * cost.decode_us_per_byte + layers_ * cost.decode_frame_us) * factor,
                .quality = ours_.Quality(decision.arm, id)}});
            chunks.push_back({{first, end}, {}});
          }
          for (size_t c = 0; c < chunks.size(); ++c) {
            chunks[c].encodings = encodings[c];
          }
          const std::array<TokenRange, 1> missing = {TokenRange{0, tokens}};
          LoadProblem problem;
          problem.missing = missing;
          problem.chunks = chunks;
          problem.quality = quality;
          problem.us_per_byte = goodput.us_per_byte();
          problem.frames_per_chunk = layers_;
          problem.compute = cost_;
          problem.step_tokens = kStepTokens;
          problem.compute_share = 0.8;
          const LoadPlan plan = PlanLoad(problem);
          const int32_t from = std::min(plan.first_loaded * kChunkTokens, moved);
          const double loaded_us = load_us(arm, from);
          double front_us =
              from == 0 ? 0 : testing::StepEnds(cost_, from, kStepTokens).back() * noise.compute;
          // Decoding beside it takes of the engine's cores what it is busy.
          const double decode_us = token_bytes_ * (moved - from) * cost.decode_us_per_byte +
                                   FramesOf(moved - from) * cost.decode_frame_us;
          front_us += 0.2 * std::min(front_us, decode_us * noise.decode);
          us[kBoth] = from >= moved ? us[kCompute] : std::max(loaded_us, front_us) + tail_us;

          Observation seen;
          seen.wire_us = raw_bytes * cost.wire_bytes * us_per_byte * noise.wire;
          seen.decode_us =
              (raw_bytes * cost.decode_us_per_byte + FramesOf(moved) * cost.decode_frame_us) *
              noise.decode;
          seen.path_us = us[kAdaptive] - tail_us;
          controller.Observe(decision, seen);
          now_us += static_cast<int64_t>(us[kAdaptive]);
          goodput.Add(static_cast<uint64_t>(raw_bytes * cost.wire_bytes),
                      static_cast<int64_t>(seen.wire_us), now_us);
          for (size_t rule = 0; rule < kNumRules; ++rule) {
            sums[rule] += us[rule];
            kept[rule][0] += us[rule] <= 0.5 * recompute_us ? 1 : 0;
            kept[rule][1] += us[rule] <= 0.25 * recompute_us ? 1 : 0;
          }
        }
        ratios.push_back(sums[kBoth] / std::min(sums[kCompute], sums[kAdaptive]));
        for (size_t rule = 0; rule < kNumRules; ++rule) {
          total[rule] += sums[rule];
        }
      }
      const double count = static_cast<double>(kRequests) * options_.seeds;
      const Interval over = Of(ratios);
      worst = std::max(worst, over.high);
      const double even = total[kAdaptive] / total[kCompute];
      if (even > 0.8 && even < 1.25) {
        ++ties;
        tie_gain = std::min(tie_gain, 1 / over.mean);
      }
      std::printf("| %g | %d |", gbit, tokens);
      for (size_t rule = 0; rule < kNumRules; ++rule) {
        std::printf(" %.0f (%.0f / %.0f) |", total[rule] / count / 1e3, 100 * kept[rule][0] / count,
                    100 * kept[rule][1] / count);
      }
      std::printf(" %.3f (%.3f to %.3f) |\n", over.mean, over.low, over.high);
    }
  }
  std::printf("\nLoad or compute over the better of the two: at most %.3f (upper end).", worst);
  if (ties > 0) {
    std::printf(
        " Where they are within 25 %% of each other (%d points) it is %.2fx better at "
        "least.",
        ties, tie_gain);
  }
  std::printf("\n");
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--profiles") {
      options.profiles = value;
    } else if (name == "--speeds") {
      options.speeds = value;
    } else if (name == "--costs") {
      options.costs = value;
    } else if (name == "--workload") {
      options.workload = value;
    } else if (name == "--q-min") {
      options.q_min = std::atof(value);
    } else if (name == "--only") {
      options.only_choices = std::string(value) == "choices";
    } else if (name == "--seeds") {
      options.seeds = std::atoi(value);
    } else {
      std::fprintf(stderr, "kv_study_bench: %s is not an option\n", argv[i]);
      return 2;
    }
  }
  if (options.speeds.empty() || options.costs.empty() || options.seeds < 1) {
    std::fprintf(stderr,
                 "kv_study_bench: needs --speeds and --costs, the files that kvik serve keeps in "
                 "its cache folder\n");
    return 2;
  }
  Study study(options);
  study.Choices(1);
  study.Choices(options.q_min);
  if (options.only_choices) {
    return 0;
  }
  study.HandOvers();
  study.Pool();
  return 0;
}

}  // namespace
}  // namespace kvik::control

int main(int argc, char** argv) { return kvik::control::Main(argc, argv); }
