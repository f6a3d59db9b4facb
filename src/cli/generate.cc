// SPDX-License-Identifier: Apache-2.0
#include "app/generate.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/number_range.h"
#include "cli/runtime_flags.h"

namespace kvik::cli {

void AddGenerate(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::GenerateOptions>();
  // One request: nothing waits, so a step takes all of a prompt that fits.
  options->runtime.scheduler.max_num_seqs = 1;
  // Nor is anything evicted that another request could want: no costs are measured for that.
  options->runtime.policy.name = "lru";
  model::SamplingParams& sampling = options->params.sampling;
  sampling.temperature = 0;
  CLI::App* command = root.add_subcommand("generate", "one prompt to text");
  AddModelFlags(*command, options->runtime);
  command->add_option("prompt", options->prompt, "the prompt; - reads standard input")->required();
  command->add_option("--system", options->system, "a system message before it");
  command->add_flag("--raw", options->raw, "continue the prompt as it is, without a chat template");
  command
      ->add_option("--max-tokens,-n", options->params.max_tokens,
                   "tokens to generate at most (default: until the model stops)")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--temperature", sampling.temperature, "0 = always the most probable token")
      ->check(Between(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "draw from the k most probable tokens; 0 = all")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("--top-p", sampling.top_p, "draw from the fewest tokens with this probability")
      ->check(Between(1e-6, 1.0))
      ->capture_default_str();
  command->add_option("--min-p", sampling.min_p, "drop tokens below this share of the best one")
      ->check(Between(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--repetition-penalty", sampling.repetition_penalty, "1 = none")
      ->check(Between(1e-6, 100.0))
      ->capture_default_str();
  command->add_option("--stop", options->params.stop, "text that ends the answer");
  command->add_flag("--ignore-eos", options->params.ignore_eos, "go on where the model would stop");
  command->add_flag("--json", options->json, "one JSON object instead of the text");
  command->add_flag_callback(
      "--quiet", [options] { options->stats = false; }, "no statistics on standard error");
  command->callback([options, &action] { action = [options] { return app::Generate(*options); }; });
}

}  // namespace kvik::cli
