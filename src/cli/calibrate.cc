// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/runtime_flags.h"

namespace kvik::cli {

void AddCalibrate(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::CalibrateOptions>();
  CLI::App* command = root.add_subcommand(
      "calibrate", "make a profile library: what this model's KV can be compressed with");
  AddArithmeticFlags(*command, options->runtime);
  command
      ->add_option("--texts", options->texts,
                   "plain text like what the model will see; without any the library that is there "
                   "is measured anew")
      ->type_name("FILE...");
  command->add_option("--out,-o", options->out, "the library's folder; it is made")
      ->required()
      ->type_name("FOLDER");
  command
      ->add_option("--profiles", options->profiles,
                   "lines of `name = pipeline`; without it a set from exact to small")
      ->type_name("FILE");
  command->add_option("--sequences", options->sequences, "pieces of text, 1,024 tokens each")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--threads", options->runtime.threads, "0 = one per core")
      ->check(CLI::Range(0, 1024));
  command->add_option("--seed", options->seed, "of what is drawn")->capture_default_str();
  command
      ->add_option("--data", options->data,
                   "prompts to measure quality on: a .jsonl file or a folder of them")
      ->type_name("PATH");
  command->add_option("--cells", options->cells,
                      "workloads and lengths, as qa:1K,math:128; without it the usual ones");
  command->add_option("--positions", options->positions, "judged tokens of a cell, at least")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--cache", options->cache_folder, "folder of raw KV and results")
      ->type_name("FOLDER");
  command->callback([options, &action] {
    options->command = "kvik calibrate --model " + options->runtime.model;
    if (!options->texts.empty()) {
      options->command += " --texts";
      for (const std::string& text : options->texts) {
        options->command += " " + text;
      }
      options->command += " --sequences " + std::to_string(options->sequences);
    }
    if (!options->profiles.empty()) {
      options->command += " --profiles " + options->profiles;
    }
    if (!options->data.empty()) {
      options->command += " --data " + options->data;
      options->command += options->cells.empty() ? "" : " --cells " + options->cells;
      options->command += " --positions " + std::to_string(options->positions);
    }
    options->command += " --seed " + std::to_string(options->seed);
    action = [options] { return app::Calibrate(*options); };
  });
}

}  // namespace kvik::cli
