// SPDX-License-Identifier: Apache-2.0
#include "app/bench.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cli/commands.h"

namespace kvik::cli {
namespace {

using workload::ArrivalProcess;

constexpr int32_t kMaxCount = 1'000'000;

void AddTargetFlags(CLI::App& command, app::BenchOptions& options) {
  app::BenchTarget& target = options.target;
  command.add_option("--base-url", target.base_url, "the server, without /v1")
      ->capture_default_str();
  command.add_option("--api-key", target.api_key, "a bearer token")->envname("KVIK_API_KEY");
  command.add_option("--model", target.model, "default: the first that the server lists");
  command.add_option("--timeout", target.timeout_s, "seconds without a byte that fail a request")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command.add_flag_callback(
      "--no-kvik-fields", [&target] { target.kvik_fields = false; },
      "plain OpenAI requests, for other servers: no session names, answers as the model likes");
  command.add_flag("--hints", options.hints,
                   "send kvik.will_continue: whether the plan has another call for the session");
}

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
      ->check(CLI::Range(0.0, 1.0))
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

void AddPacingFlags(CLI::App& command, app::BenchOptions& options) {
  app::PacingOptions& pacing = options.pacing;
  command.add_option("--concurrency", pacing.concurrency, "closed loop: sessions at once (4)")
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--rate", pacing.rate,
                  "open loop: requests a second; latency counts from the planned time")
      ->check(CLI::Range(1e-6, 1e6));
  command
      .add_option("--arrival", pacing.arrival,
                  "of sessions: poisson (default), gamma (longbench, loogle: with CV 0.25), "
                  "constant")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, ArrivalProcess>{{"poisson", ArrivalProcess::kPoisson},
                                                {"gamma", ArrivalProcess::kGamma},
                                                {"constant", ArrivalProcess::kConstant}}));
  command.add_option("--cv", pacing.cv, "gamma: coefficient of variation of the times between")
      ->check(CLI::Range(0.0, 100.0));
  command
      .add_option("--speedup", pacing.speedup,
                  "divide a trace's times and the pauses within sessions by this")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  command
      .add_option("--max-connections", options.max_connections,
                  "requests at once; those beyond are sent late, and said to be")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--warmup", options.warmup_passes, "passes over the load before the measured one")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command
      .add_option("--warmup-sessions", options.warmup_sessions,
                  "leave the first so many sessions out of the measurement")
      ->check(CLI::Range(0, kMaxCount))
      ->capture_default_str();
}

// "100-5000": both included.
std::string ReadTokenRange(const std::string& text, app::BenchOptions& options) {
  TokenId first = 0;
  TokenId last = 0;
  const char* end = text.data() + text.size();
  const auto [dash, error] = std::from_chars(text.data(), end, first);
  if (error == std::errc() && dash != end && *dash == '-') {
    const auto [rest, second_error] = std::from_chars(dash + 1, end, last);
    if (second_error == std::errc() && rest == end && first >= 0 && last >= first &&
        last < 10'000'000) {
      options.token_range = {first, last + 1};
      return {};
    }
  }
  return "give two token ids, as in 100-5000";
}

void AddResultFlags(CLI::App& command, const std::shared_ptr<app::BenchOptions>& options) {
  command.add_option("--slo-ttft-ms", options->goals.ttft_ms, "goal for the time to first token")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--slo-tpot-ms", options->goals.tpot_ms, "goal for the time per token after it")
      ->check(CLI::PositiveNumber);
  command.add_flag("--cold", options->cold,
                   "give every request a cache salt of its own, so that nothing is reused");
  command
      .add_option("--token-ids", "tokens of prompts, FIRST-LAST; default: those of some English")
      ->check([options](const std::string& text) { return ReadTokenRange(text, *options); });
  command.add_option("--outputs", options->outputs_path,
                     "record the answers here; if the file is there, force them");
  command.add_option("--answers", options->answers_path,
                     "record the answers here; if the file is there, compare with it");
  command.add_flag("--logprobs", options->target.ask_for_logprobs,
                   "ask for the log-probabilities of answers; --outputs and --answers keep and "
                   "compare them, which shows differences that forced answers hide");
  command.add_option("--save", options->save_path,
                     "write the result here with every request, for kvik bench compare");
  command.add_flag("--json", options->json, "for machines");
  command.add_flag_callback(
      "--quiet", [options] { options->progress = Progress::Mode::kQuiet; }, "no progress");
}

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

// A flag that would do nothing is a mistake.
void RefuseUnusedFlags(const CLI::App& command, std::string_view workload) {
  const std::string family = " " + std::string(workload.substr(0, workload.find(':'))) + " ";
  for (const auto& [flag, workloads] : kFlagsOfWorkloads) {
    if (command.get_option(flag)->count() > 0 && workloads.find(family) == std::string_view::npos) {
      throw CLI::ValidationError(flag, "says nothing to --workload " + std::string(workload));
    }
  }
}

void AddCompare(CLI::App& bench, Action& action) {
  auto options = std::make_shared<app::BenchCompareOptions>();
  CLI::App* command = bench.add_subcommand(
      "compare", "two results of --save: ratios B / A with bootstrap confidence intervals");
  command->add_option("A", options->a_path, "the result to compare with")->required();
  command->add_option("B", options->b_path, "the result to compare")->required();
  command->add_option("--resamples", options->resamples, "of the bootstrap")
      ->check(CLI::Range(100, 1'000'000))
      ->capture_default_str();
  command->add_option("--confidence", options->confidence, "of the intervals")
      ->check(CLI::Range(0.5, 0.9999))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the bootstrap")->capture_default_str();
  command->add_flag("--json", options->json, "for machines");
  command->callback(
      [options, &action] { action = [options] { return app::BenchCompare(*options); }; });
}

}  // namespace

void AddBench(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::BenchOptions>();
  CLI::App* command = root.add_subcommand("bench", "a load on an OpenAI server, and what it took");
  AddTargetFlags(*command, *options);
  AddWorkloadFlags(*command, options->workload);
  AddPacingFlags(*command, *options);
  AddResultFlags(*command, options);
  AddCompare(*command, action);
  // The callback of a command runs after that of its subcommand.
  command->callback([options, command, &action] {
    if (!command->get_subcommands().empty()) {
      return;
    }
    if (options->workload.name.empty()) {
      throw CLI::RequiredError("--workload");
    }
    RefuseUnusedFlags(*command, options->workload.name);
    action = [options] { return app::Bench(*options); };
  });
}

}  // namespace kvik::cli
