// SPDX-License-Identifier: Apache-2.0
#include "app/bench.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "app/bench_result.h"
#include "app/load_runner.h"
#include "app/recorded_outputs.h"
#include "base/clock.h"
#include "base/rng.h"
#include "workload/load_compare.h"
#include "workload/prose.h"

namespace kvik::app {
namespace {

using workload::PlannedCall;
using workload::RequestRecord;
using workload::TokenRun;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return !path.empty() && std::filesystem::exists(path, ignored);
}

template <typename Fn>
bool AnyCall(const workload::LoadPlan& plan, const Fn& fn) {
  return std::any_of(plan.sessions.begin(), plan.sessions.end(), [&](const auto& session) {
    return std::any_of(session.calls.begin(), session.calls.end(), fn);
  });
}

// Tokens that mean something, so that they decode to text that a client can read.
Result<std::vector<TokenId>> Alphabet(const BenchOptions& options, BenchClient& client) {
  std::vector<TokenId> alphabet;
  if (options.token_range) {
    const auto [first, last] = *options.token_range;
    alphabet.resize(static_cast<size_t>(last - first));
    std::iota(alphabet.begin(), alphabet.end(), first);
    return alphabet;
  }
  Rng rng(0);
  Result<std::vector<TokenId>> ids = client.Tokenize(workload::Prose(rng, 500));
  if (!ids) {
    return ids.error().Wrap("prompts need token ids, give --token-ids FIRST-LAST instead");
  }
  alphabet = *std::move(ids);
  std::sort(alphabet.begin(), alphabet.end());
  alphabet.erase(std::unique(alphabet.begin(), alphabet.end()), alphabet.end());
  if (alphabet.empty()) {
    return Err(ErrorCode::kUnavailable, "/tokenize: no tokens for a text; give --token-ids");
  }
  return alphabet;
}

// The texts that the plan wants answered, as tokens.
Result<ForcedOutputs> TokenizeOutputs(const workload::LoadPlan& plan, BenchClient& client,
                                      Progress& progress) {
  ForcedOutputs forced;
  for (size_t s = 0; s < plan.sessions.size(); ++s) {
    for (size_t c = 0; c < plan.sessions[s].calls.size(); ++c) {
      if (const auto* text = std::get_if<std::string>(&plan.sessions[s].calls[c].output)) {
        KVIK_ASSIGN(std::vector<TokenId> tokens, client.Tokenize(*text));
        forced[{static_cast<int32_t>(s), static_cast<int32_t>(c)}] = std::move(tokens);
        progress.Update(forced.size());
      }
    }
  }
  return forced;
}

// One run of the command.
class BenchRun {
 public:
  BenchRun(const BenchOptions& options, const Clock& clock) : options_(options), clock_(clock) {}

  Result<int> Run() {
    KVIK_TRY(Prepare());
    const std::string run = std::to_string(clock_.NowMicros());
    LoadRunOptions load;
    load.target = target_;
    load.speedup = options_.pacing.speedup;
    load.max_connections = options_.max_connections;
    load.force_outputs = force_;
    load.hints = options_.hints;
    load.label = "warm-up";
    load.progress = options_.progress;
    for (int32_t pass = 0; pass < options_.warmup_passes; ++pass) {
      const std::string name = "warm-up-" + std::to_string(pass);
      load.session_prefix = options_.workload.name + "-" + run + "-" + name + "-";
      load.salt = options_.cold ? name : "";
      RunLoad(plan_, alphabet_, forced_, load, clock_);
    }
    load.session_prefix = options_.workload.name + "-" + run + "-";
    // No two runs of a cold load may share a salt, or the second would find the first's blocks.
    load.salt = options_.cold ? "cold-" + run : "";
    load.label = options_.cold ? "cold" : "load";
    load.warmup_sessions = options_.warmup_sessions;
    LoadOutcome outcome = RunLoad(plan_, alphabet_, forced_, load, clock_);
    return Conclude(outcome);
  }

 private:
  Result<void> Prepare() {
    KVIK_ASSIGN(plan_, MakeBenchPlan(options_.workload, options_.pacing));
    if (options_.warmup_sessions >= static_cast<int32_t>(plan_.load.sessions.size())) {
      return Err(ErrorCode::kInvalidInput,
                 "--warmup-sessions %d leaves nothing to measure: the load has %zu sessions",
                 options_.warmup_sessions, plan_.load.sessions.size());
    }
    target_ = options_.target;
    KVIK_ASSIGN(const std::unique_ptr<BenchClient> nameless, BenchClient::Create(target_));
    if (target_.model.empty()) {
      KVIK_ASSIGN(target_.model, nameless->FirstModel());
    }
    KVIK_ASSIGN(client_, BenchClient::Create(target_));
    for (const std::string& path : {options_.outputs_path, options_.answers_path}) {
      if (Exists(path)) {
        KVIK_ASSIGN(recorded_, RecordedOutputs::Load(path));
      }
    }
    KVIK_TRY(PrepareOutputs());
    if (AnyCall(plan_.load, [](const PlannedCall& call) {
          return std::holds_alternative<std::vector<TokenRun>>(call.prompt);
        })) {
      KVIK_ASSIGN(alphabet_, Alphabet(options_, *client_));
    }
    if (!options_.outputs_path.empty() && !Exists(options_.outputs_path)) {
      KVIK_ASSIGN(target_.ask_for_token_ids, client_->TellsTokenIds());
    }
    return {};
  }

  Result<void> PrepareOutputs() {
    const bool replayed = Exists(options_.outputs_path);
    if (replayed && !target_.kvik_fields) {
      return Err(ErrorCode::kInvalidInput,
                 "--outputs %s would force answers, which --no-kvik-fields does not allow",
                 options_.outputs_path.c_str());
    }
    const bool planned = AnyCall(plan_.load, [](const PlannedCall& call) {
      return !std::holds_alternative<std::monostate>(call.output);
    });
    force_ = target_.kvik_fields && (planned || replayed);
    if (!force_) {
      return {};
    }
    KVIK_ASSIGN(const bool known, client_->KnowsForcedTokens());
    if (!known) {
      return Err(ErrorCode::kUnsupported,
                 "the server at %s does not know kvik.forced_token_ids, so its answers cannot be "
                 "those planned; --no-kvik-fields lets it answer as it likes",
                 target_.base_url.c_str());
    }
    if (replayed) {
      KVIK_ASSIGN(forced_, recorded_->TokenIds());
      return {};
    }
    const auto texts = static_cast<uint64_t>(plan_.load.calls());
    if (AnyCall(plan_.load, [](const PlannedCall& call) {
          return std::holds_alternative<std::string>(call.output);
        })) {
      Progress progress(clock_, {.label = "outputs", .total = texts, .mode = options_.progress});
      KVIK_ASSIGN(forced_, TokenizeOutputs(plan_.load, *client_, progress));
    }
    return {};
  }

  Result<int> Conclude(LoadOutcome& outcome) {
    BenchSummary summary;
    summary.workload = options_.workload.name;
    summary.model = target_.model;
    summary.base_url = target_.base_url;
    summary.seed = options_.workload.seed;
    summary.report = workload::Summarize(outcome.records, outcome.wall_us, options_.goals);
    summary.left_out = plan_.load.left_out;
    const auto failed = std::count_if(outcome.records.begin(), outcome.records.end(),
                                      [](const RequestRecord& r) { return !r.error.empty(); });
    if (recorded_) {
      summary.differing_outputs = recorded_->CountDifferences(outcome.records);
    }
    if (failed == 0) {
      KVIK_TRY(Record(outcome.records));
    }
    if (!options_.save_path.empty()) {
      KVIK_TRY(SaveResult(options_.save_path, summary, outcome.records));
    }
    if (options_.json) {
      std::printf("%s\n", SummaryJson(summary).c_str());
    } else {
      Print(summary, outcome.records.size());
    }
    for (const RequestRecord& record : outcome.records) {
      if (!record.error.empty()) {
        std::fprintf(stderr, "kvik: session %d turn %d failed: %s\n", record.session, record.turn,
                     record.error.c_str());
        break;  // the first says enough
      }
    }
    return failed == 0 && summary.differing_outputs.value_or(0) == 0 ? 0 : 1;
  }

  // Writes the files of answers that are not there yet.
  Result<void> Record(std::vector<RequestRecord>& records) {
    if (!options_.answers_path.empty() && !Exists(options_.answers_path)) {
      KVIK_TRY(RecordedOutputs::Save(options_.answers_path, records));
    }
    if (options_.outputs_path.empty() || Exists(options_.outputs_path)) {
      return {};
    }
    Progress progress(
        clock_,
        {.label = "token ids of the answers", .total = records.size(), .mode = options_.progress});
    uint64_t done = 0;
    for (RequestRecord& record : records) {
      if (record.token_ids.empty() && !record.text.empty()) {
        KVIK_ASSIGN(record.token_ids, client_->Tokenize(record.text));
        if (record.token_ids.size() != record.logprobs.size()) {
          record.logprobs.clear();  // of other tokens with the same text
        }
      }
      progress.Update(++done);
    }
    return RecordedOutputs::Save(options_.outputs_path, records);
  }

  void Print(const BenchSummary& summary, size_t answers) const {
    std::fputs(workload::FormatReport(summary.report).c_str(), stdout);
    if (summary.left_out > 0) {
      std::printf("left out               %9d requests longer than --context\n", summary.left_out);
    }
    if (summary.differing_outputs) {
      const std::string& path =
          options_.answers_path.empty() ? options_.outputs_path : options_.answers_path;
      std::printf("outputs identical: %s (%d of %zu differ from %s)\n",
                  *summary.differing_outputs == 0 ? "yes" : "no", *summary.differing_outputs,
                  answers, path.c_str());
    }
  }

  const BenchOptions& options_;
  const Clock& clock_;
  BenchTarget target_;
  std::unique_ptr<BenchClient> client_;
  BenchPlan plan_;
  std::optional<RecordedOutputs> recorded_;
  bool force_ = false;
  ForcedOutputs forced_;
  std::vector<TokenId> alphabet_;
};

}  // namespace

Result<int> Bench(const BenchOptions& options) {
  if (!options.outputs_path.empty() && !options.answers_path.empty()) {
    return Err(ErrorCode::kInvalidInput, "--outputs and --answers exclude each other");
  }
  const SystemClock clock;
  return BenchRun(options, clock).Run();
}

Result<int> BenchCompare(const BenchCompareOptions& options) {
  KVIK_ASSIGN(const workload::LoadSamples a, LoadResult(options.a_path));
  KVIK_ASSIGN(const workload::LoadSamples b, LoadResult(options.b_path));
  const std::vector<workload::MetricComparison> metrics = workload::Compare(
      a, b,
      {.resamples = options.resamples, .confidence = options.confidence, .seed = options.seed});
  if (options.json) {
    std::printf("%s\n", ComparisonJson(metrics).c_str());
  } else {
    std::fputs(workload::FormatComparison(metrics, options.confidence).c_str(), stdout);
  }
  return 0;
}

}  // namespace kvik::app
