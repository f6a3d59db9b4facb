// SPDX-License-Identifier: Apache-2.0
#include "app/pull.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "app/models.h"
#include "base/clock.h"
#include "cli/commands.h"

namespace kvik::cli {

void AddPull(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::PullOptions>();
  std::string known;
  for (const app::KnownModel& model : app::KnownModels()) {
    known += "\n  " + model.name + ": " + model.about;
  }
  CLI::App* command = root.add_subcommand("pull", "fetch a model by name into the model folder");
  command->footer("Models:" + known + "\nThe folder is $KVIK_MODELS, or ~/.cache/kvik/models.");
  command->add_option("name", options->name, "which model")->required();
  command->add_option("--folder", options->folder, "where to put it instead");
  command->add_flag_callback(
      "--quiet", [options] { options->progress = Progress::Mode::kQuiet; }, "no progress");
  command->callback([options, &action] {
    action = [options]() -> Result<int> {
      const SystemClock clock;
      KVIK_ASSIGN(const std::string path, app::Pull(*options, clock));
      std::printf("%s\n", path.c_str());
      return 0;
    };
  });
}

}  // namespace kvik::cli
