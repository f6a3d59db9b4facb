// SPDX-License-Identifier: Apache-2.0
#include "app/selftest.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "app/soak.h"
#include "cli/commands.h"
#include "cli/number_range.h"
#include "cli/runtime_flags.h"

namespace kvik::cli {
namespace {

void AddExact(CLI::App& selftest, Action& action) {
  auto options = std::make_shared<app::SelftestOptions>();
  CLI::App* exact = selftest.add_subcommand(
      "exact", "do outputs depend on cache, batch, chunks, threads or weight storage?");
  AddArithmeticFlags(*exact, options->runtime);
  exact->add_option("--seed", options->seed, "of prompts, evictions and batches")
      ->capture_default_str();
  exact->add_option("--configurations", options->engines, "engines to try")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  exact->add_option("--max-seconds", options->max_seconds, "begin no further engine after")
      ->check(Between(1.0, 1e6))
      ->capture_default_str();
  exact->add_flag_callback(
      "--quiet", [options] { options->progress = Progress::Mode::kQuiet; }, "no progress");
  exact->callback(
      [options, &action] { action = [options] { return app::SelftestExact(*options); }; });
}

void AddSoak(CLI::App& selftest, Action& action) {
  auto options = std::make_shared<app::SoakOptions>();
  CLI::App* soak = selftest.add_subcommand(
      "soak", "does everything hold for long, with clients that leave at any time?");
  AddArithmeticFlags(*soak, options->runtime);
  options->runtime.policy.name = "all";
  soak->add_option("--policy", options->runtime.policy.name,
                   "as kvik serve takes it; all = each in turn")
      ->capture_default_str();
  soak->add_option("--threads", options->runtime.threads,
                   "threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  soak->add_option("--seed", options->seed, "of everything that happens")->capture_default_str();
  CLI::Option* minutes = soak->add_option("--minutes", options->minutes, "no request comes after")
                             ->check(Between(0.01, 1e6))
                             ->capture_default_str();
  soak->add_option_function<int32_t>(
          "--rounds",
          [options](int32_t rounds) {
            options->rounds = rounds;
            options->minutes = 0;
          },
          "engines to run, one after the other, however long it takes")
      ->check(CLI::Range(1, 1 << 30))
      ->excludes(minutes);
  soak->add_option("--requests", options->requests, "of a round")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  soak->add_flag_callback(
      "--quiet", [options] { options->progress = Progress::Mode::kQuiet; }, "no progress");
  soak->callback(
      [options, &action] { action = [options] { return app::SelftestSoak(*options); }; });
}

}  // namespace

void AddSelftest(CLI::App& root, Action& action) {
  CLI::App* command = root.add_subcommand("selftest", "checks of this machine");
  command->require_subcommand(1);
  AddExact(*command, action);
  AddSoak(*command, action);
}

}  // namespace kvik::cli
