// SPDX-License-Identifier: Apache-2.0
#include "app/serve.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "cli/commands.h"
#include "cli/runtime_flags.h"

namespace kvik::cli {

void AddServe(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::ServeOptions>();
  CLI::App* command = root.add_subcommand("serve", "an OpenAI-compatible server");
  AddModelFlags(*command, options->runtime);
  AddEngineFlags(*command, options->runtime);
  command->add_option("--served-model-name", options->served_names,
                      "names that requests may use (default: the model's file name)");
  command->add_option("--host", options->host, "address to listen on")->capture_default_str();
  command->add_option("--port", options->port, "0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--api-key", options->api_key, "what clients must send as a bearer token")
      ->envname("KVIK_API_KEY");
  command
      ->add_option("--policy-state", options->policy_state_path,
                   "a file that keeps what --policy learns: the server starts from it if it is "
                   "there, refuses one of another policy or block size, and replaces it every "
                   "five minutes and when it ends")
      ->type_name("FILE");
  CLI::Option* const watch = command->add_flag_callback(
      "--kv-cache-metrics", [options] { options->watch_residency = true; },
      "histograms of how long cached blocks live, idle and wait to be used again");
  command
      ->add_option("--kv-cache-metrics-sample", options->residency_share,
                   "share of the blocks that --kv-cache-metrics watches")
      ->needs(watch)
      ->check(CLI::Range(1e-9, 1.0))
      ->capture_default_str();
  command->callback([options, &action] { action = [options] { return app::Serve(*options); }; });
}

}  // namespace kvik::cli
