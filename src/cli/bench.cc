// SPDX-License-Identifier: Apache-2.0
#include "app/bench.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/number_range.h"
#include "cli/workload_flags.h"

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

void AddPacingFlags(CLI::App& command, app::BenchOptions& options) {
  app::PacingOptions& pacing = options.pacing;
  command.add_option("--concurrency", pacing.concurrency, "closed loop: sessions at once (4)")
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--rate", pacing.rate,
                  "open loop: requests a second; latency counts from the planned time")
      ->check(Between(1e-6, 1e6));
  command
      .add_option("--arrival", pacing.arrival,
                  "of sessions: poisson (default), gamma (longbench, loogle: with CV 0.25), "
                  "constant")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, ArrivalProcess>{{"poisson", ArrivalProcess::kPoisson},
                                                {"gamma", ArrivalProcess::kGamma},
                                                {"constant", ArrivalProcess::kConstant}}));
  command.add_option("--cv", pacing.cv, "gamma: coefficient of variation of the times between")
      ->check(Between(0.0, 100.0));
  command
      .add_option("--speedup", pacing.speedup,
                  "divide a trace's times and the pauses within sessions by this")
      ->check(Between(1e-3, 1e6))
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
      ->check(Between(0.5, 0.9999))
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
