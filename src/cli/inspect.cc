// SPDX-License-Identifier: Apache-2.0
#include "app/inspect.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/runtime_flags.h"

namespace kvik::cli {

void AddInspect(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::InspectOptions>();
  CLI::App* command = root.add_subcommand(
      "inspect",
      "what is in a model and what kvik will do with it; or in a profile library, "
      "or in a file of frames");
  AddModelFlags(*command, options->runtime);
  // The model is what the command is about: it needs no flag.
  command->get_option("--model")->required(false);
  command->add_option("model", options->runtime.model, "the same as --model");
  command->add_flag("--json", options->json, "for machines");
  command->add_flag("--tensors", options->tensors, "list every tensor");
  command->add_flag("--metadata", options->metadata, "list the file's own key/value pairs");
  command->callback([options, &action] {
    if (options->runtime.model.empty()) {
      throw CLI::RequiredError("MODEL");
    }
    action = [options] { return app::Inspect(*options); };
  });
}

}  // namespace kvik::cli
