// SPDX-License-Identifier: Apache-2.0
#include "cli/workload_flags.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/number_range.h"

namespace kvik::cli {
namespace {

constexpr int32_t kMaxCount = 1'000'000;

// Flags that some workloads have no use for, and the workloads that have.
constexpr struct {
  const char* flag;
  std::string_view workloads;  // between blanks
} kFlagsOfWorkloads[] = {
    {"--trace", " trace "},
    {"--bfcl", " agentic "},
    {"--sessions", " multi-turn agentic "},
    {"--requests", " random shared-prefix shared-docs longbench loogle trace "},
    {"--turns", " multi-turn longbench loogle agentic "},
    {"--system-words", " multi-turn "},
    {"--turn-words", " multi-turn "},
    {"--max-tokens", " multi-turn "},
    {"--input-tokens", " random shared-prefix shared-docs "},
    {"--output-tokens", " random shared-prefix shared-docs "},
    {"--spread", " random shared-prefix "},
    {"--prefix-tokens", " shared-prefix "},
    {"--prefixes", " shared-prefix "},
    {"--documents", " shared-docs "},
    {"--documents-per-request", " shared-docs "},
    {"--result-words", " agentic "},
    {"--context", " longbench loogle agentic trace "},
};

}  // namespace

void AddWorkloadFlags(CLI::App& command, app::WorkloadOptions& load) {
  const auto count = [&](const char* name, auto& value, const char* help, int32_t least = 1) {
    return command.add_option(name, value, help)->check(CLI::Range(least, kMaxCount));
  };
  command
      .add_option("--workload", load.name,
                  "multi-turn: conversations, turn after turn; random: tokens, nothing shared; "
                  "shared-prefix: the same after one of a few beginnings; shared-docs: some of "
                  "a few documents in any order; longbench:R, loogle:R: questions on long "
                  "documents, pauses R times those between sessions; agentic: tool calls; "
                  "trace: what --trace recorded")
      ->check([](const std::string& name) {
        return app::IsWorkload(name) ? "" : "there is no workload '" + name + "'";
      });
  command.add_option("--trace", load.trace_path, "JSON lines: hash_ids of blocks, or agents' text");
  command.add_option("--bfcl", load.bfcl_folder,
                     "agentic: folder of an unpacked bfcl-eval; default: made-up questions");
  count("--sessions", load.sessions, "multi-turn: conversations (8); agentic: questions (60)");
  count("--requests", load.requests,
        "of the other workloads: 100, longbench and loogle 300, trace all");
  count("--turns", load.turns,
        "requests of a session: multi-turn 4, longbench and loogle 5; agentic: tool calls at most "
        "(10)");
  count("--system-words", load.system_words, "multi-turn: of the shared system message", 0)
      ->capture_default_str();
  count("--turn-words", load.turn_words, "multi-turn: of each user message")->capture_default_str();
  count("--max-tokens", load.max_tokens, "multi-turn: of each answer")->capture_default_str();
  count("--input-tokens", load.input_tokens,
        "random, shared-prefix: of a prompt's own part; shared-docs: of a document")
      ->capture_default_str();
  count("--output-tokens", load.output_tokens, "random, shared-prefix, shared-docs: of an answer")
      ->capture_default_str();
  command
      .add_option("--spread", load.spread,
                  "random, shared-prefix: lengths are within +- this share")
      ->check(Between(0.0, 1.0))
      ->capture_default_str();
  count("--prefix-tokens", load.prefix_tokens, "shared-prefix: of a beginning")
      ->capture_default_str();
  count("--prefixes", load.prefixes, "shared-prefix: beginnings")->capture_default_str();
  count("--documents", load.documents, "shared-docs: documents")->capture_default_str();
  count("--documents-per-request", load.documents_per_request, "shared-docs: in a prompt")
      ->capture_default_str();
  count("--result-words", load.result_words, "agentic: mean of what a tool returns")
      ->capture_default_str();
  command
      .add_option("--context", load.context_tokens,
                  "no longer requests, in tokens after --scale; default over the scale: longbench "
                  "and loogle 65536, agentic 8192; a trace's longer ones are left out")
      ->check(CLI::Range(1, 100'000'000));
  command.add_option("--scale", load.scale, "divide lengths by this")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--seed", load.seed, "of texts, lengths and times")->capture_default_str();
}

void RefuseUnusedFlags(const CLI::App& command, std::string_view workload) {
  const std::string family = " " + std::string(workload.substr(0, workload.find(':'))) + " ";
  for (const auto& [flag, workloads] : kFlagsOfWorkloads) {
    if (command.get_option(flag)->count() > 0 && workloads.find(family) == std::string_view::npos) {
      throw CLI::ValidationError(flag, "says nothing to --workload " + std::string(workload));
    }
  }
}

}  // namespace kvik::cli
