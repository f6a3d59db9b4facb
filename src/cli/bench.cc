// SPDX-License-Identifier: Apache-2.0
#include "app/bench.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"

namespace kvik::cli {

void AddBench(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::BenchOptions>();
  auto workload = std::make_shared<std::string>();
  CLI::App* command = root.add_subcommand("bench", "a load on an OpenAI server, and what it took");
  command->add_option("--workload", *workload, "multi-turn: conversations, turn after turn")
      ->required()
      ->check(CLI::IsMember({"multi-turn"}));
  command->add_option("--base-url", options->base_url, "the server, without /v1")
      ->capture_default_str();
  command->add_option("--api-key", options->api_key, "a bearer token")->envname("KVIK_API_KEY");
  command->add_option("--model", options->model, "default: the first that the server lists");
  command->add_option("--sessions", options->load.sessions, "conversations")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--turns", options->load.turns, "requests of each")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_option("--concurrency", options->concurrency, "conversations at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--system-words", options->load.system_words, "of the shared system message")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command->add_option("--turn-words", options->load.turn_words, "of each user message")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--max-tokens", options->max_tokens, "of each answer")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--seed", options->load.seed, "of the texts")->capture_default_str();
  command
      ->add_option("--warmup", options->warmup_passes,
                   "passes over the load before the measured one")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_flag("--cold", options->cold,
                    "give every request a cache salt of its own, so that nothing is reused");
  command->add_option("--outputs", options->outputs_path,
                      "record the answers here; if the file is there, compare with it");
  command->add_flag("--json", options->json, "for machines");
  command->add_flag_callback(
      "--quiet", [options] { options->progress = Progress::Mode::kQuiet; }, "no progress");
  command->callback(
      [options, workload, &action] { action = [options] { return app::Bench(*options); }; });
}

}  // namespace kvik::cli
