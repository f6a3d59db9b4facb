// SPDX-License-Identifier: Apache-2.0
// The controller against an oracle and simpler rules in made worlds, what a decision costs, and
// where the arms of a library change places.
//
//   control_bench [--profiles FOLDER] [--seeds N] [--scale S] [--only SUBSTRING]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

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
  std::string only;
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
      StudyResult all;
      double worst = 0;
      for (int seed = 1; seed <= options.seeds; ++seed) {
        const StudyResult one = testing::RunStudy(library, table,
                                                  {.world = c.world,
                                                   .form = c.form,
                                                   .overlap = c.overlap,
                                                   .decisions = c.decisions,
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

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--profiles") == 0) {
      options.profiles = argv[i + 1];
    } else if (std::strcmp(argv[i], "--seeds") == 0) {
      options.seeds = std::atoi(argv[i + 1]);
    } else if (std::strcmp(argv[i], "--scale") == 0) {
      options.scale = std::atof(argv[i + 1]);
    } else if (std::strcmp(argv[i], "--only") == 0) {
      options.only = argv[i + 1];
    } else {
      std::fprintf(stderr, "control_bench: %s is not an option\n", argv[i]);
      return 2;
    }
  }
  const codec::ProfileLibrary library = OrDie(testing::ReadLibrary(options.profiles));
  const MachineSpeeds speeds = testing::TypicalSpeeds(library, options.scale);
  const ArmTable table = OrDie(ArmTable::Build(&library, speeds, speeds, {}));
  PrintRegret(options, library, table);
  return 0;
}

}  // namespace
}  // namespace kvik::control

int main(int argc, char** argv) { return kvik::control::Main(argc, argv); }
