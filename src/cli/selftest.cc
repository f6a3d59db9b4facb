// SPDX-License-Identifier: Apache-2.0
#include "app/selftest.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/runtime_flags.h"

namespace kvik::cli {

void AddSelftest(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::SelftestOptions>();
  CLI::App* command = root.add_subcommand("selftest", "checks of this machine");
  command->require_subcommand(1);
  CLI::App* exact = command->add_subcommand(
      "exact", "do outputs depend on cache, batch, chunks, threads or weight storage?");
  AddArithmeticFlags(*exact, options->runtime);
  exact->add_option("--seed", options->seed, "of prompts, evictions and batches")
      ->capture_default_str();
  exact->add_option("--configurations", options->engines, "engines to try")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  exact->add_option("--max-seconds", options->max_seconds, "begin no further engine after")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  exact->add_flag_callback(
      "--quiet", [options] { options->progress = Progress::Mode::kQuiet; }, "no progress");
  exact->callback(
      [options, &action] { action = [options] { return app::SelftestExact(*options); }; });
}

}  // namespace kvik::cli
