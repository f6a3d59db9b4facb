// SPDX-License-Identifier: Apache-2.0
// The controller against an oracle and simpler rules in made worlds, what a decision costs, and
// where the arms of a library change places.
//
//   control_bench [--profiles FOLDER] [--seeds N] [--scale S] [--mismatch SHARE] [--only SUBSTRING]
//                 [--policy SUBSTRING]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "control/controller.h"
#include "control/testing/regret_study.h"

namespace kvik::control {
namespace {

using kvik::testing::BenchClock;
using kvik::testing::OrDie;
using testing::Policy;
using testing::StudyOptions;
using testing::StudyResult;
using testing::World;

struct Options {
  std::string profiles = "profiles/smollm2-135m";
  int seeds = 20;
  double scale = 0.25;  // a core of an older machine, and other work on it
  double mismatch = StudyOptions().mismatch;
  std::string only;    // cases whose name has it
  std::string policy;  // of policies, likewise
};

void PrintRegret(const Options& options, const codec::ProfileLibrary& library,
                 const ArmTable& table) {
  struct Case {
    const char* name;
    World world;
    Form form;
    Overlap overlap;
    int decisions;
  };
  const Case cases[] = {
      {"drop, pool read, pipelined", World::kDrop, Form::kPoolRead, Overlap::kPipelined, 300},
      {"steps, pool read, pipelined", World::kSteps, Form::kPoolRead, Overlap::kPipelined, 600},
      {"steps, hand-over, pipelined", World::kSteps, Form::kHandOver, Overlap::kPipelined, 600},
      {"steps, hand-over, serial", World::kSteps, Form::kHandOver, Overlap::kSerial, 600},
  };
  for (const Case& c : cases) {
    if (std::string(c.name).find(options.only) == std::string::npos) {
      continue;
    }
    std::printf("\n%s: %d seeds of %d decisions, noise 20 %%\n", c.name, options.seeds,
                c.decisions);
    std::printf("%-38s %12s %12s %12s %8s %8s\n", "", "mean regret", "worst seed", "total regret",
                "late", "poor");
    double oracle_late = 0;
    for (const Policy& policy : testing::StudyPolicies()) {
      if (policy.name.find(options.policy) == std::string::npos) {
        continue;
      }
      StudyResult all;
      double worst = 0;
      for (int seed = 1; seed <= options.seeds; ++seed) {
        const StudyResult one = testing::RunStudy(library, table,
                                                  {.world = c.world,
                                                   .form = c.form,
                                                   .overlap = c.overlap,
                                                   .decisions = c.decisions,
                                                   .mismatch = options.mismatch,
                                                   .seed = static_cast<uint64_t>(seed)},
                                                  policy);
        worst = std::max(worst, one.MeanRegret());
        all.Add(one);
      }
      oracle_late = all.OracleLateShare();
      std::printf("%-38s %10.2f %% %10.2f %% %10.2f %% %6.2f %% %8lld\n", policy.name.c_str(),
                  100 * all.MeanRegret(), 100 * worst, 100 * all.TotalRegret(),
                  100 * all.LateShare(), static_cast<long long>(all.poor));
    }
    std::printf("%-38s %10.2f %% %10.2f %% %10.2f %% %6.2f %%\n", "oracle", 0.0, 0.0, 0.0,
                100 * oracle_late);
  }
}

// Nanoseconds a decision and an observation take, the least of some rounds.
void PrintDecisionCost(const codec::ProfileLibrary& library, const ArmTable& table) {
  const codec::ModelFacts& model = library.model;
  const double bytes_per_token = 4.0 * model.num_layers * model.num_kv_heads * model.head_dim;
  const BenchClock clock(/*cpu_time=*/true);
  std::printf("\na decision among %zu arms:\n", table.arms().size());
  for (const bool published : {false, true}) {
    ControllerOptions options = published ? ControllerOptions::Published() : ControllerOptions();
    options.raw_bytes_per_token = bytes_per_token;
    options.frames_per_chunk = model.num_layers;
    Controller controller(table, options);
    Rng rng(1);
    std::vector<Question> questions(1000);
    for (Question& question : questions) {
      question.workload = static_cast<WorkloadId>(rng.Below(table.workloads().size()));
      question.quality = {rng.Below(4) != 0, 0.95F};
      question.tokens = rng.Range(64, 8192);
      question.raw_bytes = bytes_per_token * static_cast<double>(question.tokens);
      question.us_per_byte = MicrosPerByte(1e7 + 1e9 * rng.Uniform());
      question.slo_us = rng.Below(2) == 0 ? 0 : 2'000'000;
    }
    double decide_ns = 1e9;
    double observe_ns = 1e9;
    std::vector<Decision> decisions(questions.size());
    for (int round = 0; round < 200; ++round) {
      const double start_s = clock.NowSeconds();
      for (size_t i = 0; i < questions.size(); ++i) {
        decisions[i] = *controller.Decide(questions[i], rng);
      }
      const double decided_s = clock.NowSeconds();
      for (const Decision& decision : decisions) {
        controller.Observe(decision,
                           {.path_us = decision.predicted_us * (0.9 + 0.2 * rng.Uniform()),
                            .encode_us = 1000,
                            .wire_us = 10'000,
                            .decode_us = 1000});
      }
      const double observed_s = clock.NowSeconds();
      const auto n = static_cast<double>(questions.size());
      decide_ns = std::min(decide_ns, 1e9 * (decided_s - start_s) / n);
      observe_ns = std::min(observe_ns, 1e9 * (observed_s - decided_s) / n);
    }
    std::printf("  %-16s decide %4.0f ns, observe %4.0f ns\n",
                published ? "published rules" : "full", decide_ns, observe_ns);
  }
}

// Where arms change places, by length: lossy ones from 0.97, hand-over.
void PrintEnvelopes(const codec::ProfileLibrary& library, const ArmTable& table) {
  const codec::ModelFacts& model = library.model;
  ControllerOptions options;
  options.raw_bytes_per_token = 4.0 * model.num_layers * model.num_kv_heads * model.head_dim;
  options.frames_per_chunk = model.num_layers;
  for (const Overlap overlap : {Overlap::kSerial, Overlap::kPipelined}) {
    options.overlap = overlap;
    const Controller controller(table, options);
    std::printf("\nenvelope, %s, q >= 0.97 on mixed workloads (arm, up to Gbit/s):\n",
                overlap == Overlap::kSerial ? "serial" : "pipelined");
    for (size_t length = 0; length < kNumLengths; ++length) {
      const Envelope& envelope =
          controller.EnvelopeOf(table.ClassOf(kUnified, {true, 0.97F}), length);
      std::printf("  %5d tokens:", kLengths[length]);
      for (size_t i = envelope.pieces().size(); i-- > 0;) {
        const Envelope::Piece& piece = envelope.pieces()[i];
        std::printf(" %s", table.arm(piece.arm).name.c_str());
        if (i > 0) {
          std::printf(" %.2f |", 8e-3 / piece.x_begin);
        }
      }
      std::printf("\n");
    }
  }
  std::printf("\nbreak even with raw without fixed cost, Gbit/s (hand-over, pool read):\n");
  for (size_t i = 1; i < table.arms().size(); ++i) {
    const Arm& arm = table.arms()[i];
    std::printf("  %-12s %7.2f %7.2f\n", arm.name.c_str(),
                8e-9 * BreakEvenBytesPerS(arm.cost[2], Form::kHandOver),
                8e-9 * BreakEvenBytesPerS(arm.cost[2], Form::kPoolRead));
  }
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--profiles") == 0) {
      options.profiles = argv[i + 1];
    } else if (std::strcmp(argv[i], "--seeds") == 0) {
      options.seeds = std::atoi(argv[i + 1]);
    } else if (std::strcmp(argv[i], "--scale") == 0) {
      options.scale = std::atof(argv[i + 1]);
    } else if (std::strcmp(argv[i], "--mismatch") == 0) {
      options.mismatch = std::atof(argv[i + 1]);
    } else if (std::strcmp(argv[i], "--only") == 0) {
      options.only = argv[i + 1];
    } else if (std::strcmp(argv[i], "--policy") == 0) {
      options.policy = argv[i + 1];
    } else {
      std::fprintf(stderr, "control_bench: %s is not an option\n", argv[i]);
      return 2;
    }
  }
  const codec::ProfileLibrary library = OrDie(testing::ReadLibrary(options.profiles));
  const MachineSpeeds speeds = testing::TypicalSpeeds(library, options.scale);
  const ArmTable table = OrDie(ArmTable::Build(&library, speeds, speeds, {}));
  PrintDecisionCost(library, table);
  PrintEnvelopes(library, table);
  PrintRegret(options, library, table);
  return 0;
}

}  // namespace
}  // namespace kvik::control

int main(int argc, char** argv) { return kvik::control::Main(argc, argv); }
