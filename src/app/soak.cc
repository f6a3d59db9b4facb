// SPDX-License-Identifier: Apache-2.0
#include "app/soak.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/answers.h"
#include "app/models.h"
#include "app/soak_round.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "engine/model_executor.h"

namespace kvik::app {
namespace {

constexpr int32_t kLongestTokens = 512;
constexpr int32_t kMaxBatchRows = 512;

double Percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

class Soak {
 public:
  Soak(const SoakOptions& options, const Clock& clock)
      : options_(options), clock_(clock), start_us_(clock.NowMicros()) {}

  Result<int> Run() {
    KVIK_ASSIGN(policies_, Policies());
    KVIK_TRY(LoadModel());
    std::printf("selftest soak: %s, %s kernels, policy %s, seed %" PRIu64 "\n", path_.c_str(),
                IsaName(isa_), options_.runtime.policy.name.c_str(), options_.seed);
    std::fflush(stdout);
    const bool timed = options_.rounds == 0;
    Progress progress(clock_, {.label = timed ? "soak, seconds" : "soak, rounds",
                               .total = timed ? static_cast<uint64_t>(options_.minutes * 60)
                                              : static_cast<uint64_t>(options_.rounds),
                               .mode = options_.progress});
    for (int32_t round = 0; (timed || round < options_.rounds) && !IsOver(); ++round) {
      const auto is_over = [&] {
        if (timed) {
          progress.Update(static_cast<uint64_t>(Seconds()));
        }
        return IsOver();
      };
      KVIK_TRY(RunRound(round, is_over));
      if (!timed) {
        progress.Update(static_cast<uint64_t>(round) + 1);
      }
    }
    progress.Finish();
    return Report();
  }

 private:
  [[nodiscard]] Result<std::vector<std::string>> Policies() const {
    std::vector<std::string> names = SoakPolicies();
    kv::PolicyOptions policy = options_.runtime.policy;
    if (policy.name != "all") {
      names = {policy.name};
    }
    policy.name = names.front();
    policy.num_blocks = 1;
    KVIK_TRY(kv::MakeEvictionPolicy(policy));  // says what is wrong before the model is loaded
    return names;
  }

  Result<void> LoadModel() {
    const RuntimeOptions& runtime = options_.runtime;
    KVIK_ASSIGN(path_, ResolveModel(runtime.model));
    KVIK_ASSIGN(isa_, SelectIsa());
    KVIK_ASSIGN(const auto source, model::ModelSource::Open(path_));
    longest_tokens_ = std::min(kLongestTokens, source->config().max_context_tokens);
    if (longest_tokens_ < 128) {
      return Err(ErrorCode::kUnsupported, "%s: a context of %d tokens is too short for this test",
                 path_.c_str(), longest_tokens_);
    }
    pool_ = std::make_unique<ThreadPool>(runtime.threads > 0 ? runtime.threads : DefaultThreads());
    model::ModelOptions options;
    options.isa = isa_;
    options.compute = runtime.compute;
    options.kv_dtype = runtime.kv_dtype;
    options.block_size_tokens = runtime.block_size_tokens;
    options.max_batch_rows = kMaxBatchRows;
    options.max_logit_rows = 16;
    options.max_context_tokens = longest_tokens_;
    KVIK_ASSIGN(model_, model::Model::Load(*source, options, *pool_));
    return {};
  }

  Result<void> RunRound(int32_t round, const std::function<bool()>& is_over) {
    const std::string& policy = policies_[static_cast<size_t>(round) % policies_.size()];
    Rng rng(options_.seed, static_cast<uint64_t>(round));
    const int32_t block_size = model_->options().block_size_tokens;
    const int32_t need = (longest_tokens_ + block_size - 1) / block_size;
    SoakRoundOptions options;
    options.policy = options_.runtime.policy;
    options.policy.name = policy;
    options.numerics = model_->numerics_tag();
    options.block_size_tokens = block_size;
    options.num_blocks = need + static_cast<int32_t>(rng.Range(0, need));
    options.longest_tokens = longest_tokens_;
    options.max_batch_rows = kMaxBatchRows;
    options.requests = options_.requests;
    options.is_over = is_over;
    KVIK_ASSIGN(const auto executor, engine::ModelExecutor::Create(*model_, options.num_blocks));
    KVIK_ASSIGN(const auto alone, engine::ModelExecutor::Create(*model_, need + 1));
    const Result<SoakTally> tally = RunSoakRound(options, *executor, *alone, rng, hash_);
    if (!tally) {
      return tally.error().Wrap("round " + std::to_string(round) + ", policy " + policy);
    }
    by_policy_[policy] += *tally;
    total_ += *tally;
    return {};
  }

  int Report() {
    std::printf("%-16s %6s %8s %9s %6s %5s %8s %8s %9s %6s\n", "policy", "rounds", "requests",
                "cancelled", "cached", "gaps", "preempts", "evicted", "compared", "differ");
    for (const std::string& policy : policies_) {
      const SoakTally& t = by_policy_[policy];
      std::printf("%-16s %6" PRId64 " %8" PRId64 " %9" PRId64 " %5.1f%% %5" PRId64 " %8" PRId64
                  " %8" PRId64 " %9" PRId64 " %6" PRId64 "\n",
                  policy.c_str(), t.rounds, t.requests, t.cancelled(),
                  Percent(t.cached_tokens, t.prompt_tokens), t.gaps, t.preemptions, t.evictions,
                  t.compared, t.differing_tokens + t.differing_logprobs);
    }
    const SoakTally& t = total_;
    const bool differ = t.differing_tokens > 0 || t.differing_logprobs > 0;
    const bool all_happened = t.cancelled_waiting > 0 && t.cancelled_computing > 0 &&
                              t.cancelled_answering > 0 && t.preemptions > 0 && t.evictions > 0 &&
                              (t.gaps > 0 || policies_.size() == 1) && t.compared > 0;
    std::printf("selftest soak: %.1f minutes, %" PRId64 " rounds, %" PRId64 " requests, %" PRId64
                " of them cancelled (%" PRId64 " waiting, %" PRId64 " computing, %" PRId64
                " answering), %" PRId64 " with gaps, %" PRId64 " preemptions, %" PRId64
                " evictions, %" PRId64 " duplicates, %" PRId64 " prompt tokens (%" PRId64
                " cached), %" PRId64 " steps, %" PRId64 " compared, %" PRId64
                " differing tokens, %" PRId64 " differing logprobs, digest %s: %s\n",
                Seconds() / 60, t.rounds, t.requests, t.cancelled(), t.cancelled_waiting,
                t.cancelled_computing, t.cancelled_answering, t.gaps, t.preemptions, t.evictions,
                t.duplicates, t.prompt_tokens, t.cached_tokens, t.steps, t.compared,
                t.differing_tokens, t.differing_logprobs, ShortDigest(hash_).c_str(),
                differ          ? "FAILED"
                : !all_happened ? "FAILED, as not everything happened that it is about"
                                : "ok");
    return !differ && all_happened ? 0 : 1;
  }

  [[nodiscard]] double Seconds() const {
    return static_cast<double>(clock_.NowMicros() - start_us_) * 1e-6;
  }
  [[nodiscard]] bool IsOver() const {
    return options_.minutes > 0 && Seconds() > options_.minutes * 60;
  }

  const SoakOptions& options_;
  const Clock& clock_;
  const int64_t start_us_;
  std::vector<std::string> policies_;
  std::string path_;
  Isa isa_ = Isa::kScalar;
  int32_t longest_tokens_ = 0;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<model::Model> model_;
  Sha256 hash_;
  std::map<std::string, SoakTally> by_policy_;
  SoakTally total_;
};

}  // namespace

std::vector<std::string> SoakPolicies() {
  std::vector<std::string> names;
  for (const std::string_view name : kv::EvictionPolicyNames()) {
    names.emplace_back(name);
  }
  for (const std::string_view overlay : kv::EvictionOverlayNames()) {
    for (const char* policy : {"lru", "hazard"}) {
      names.emplace_back(policy).append("+").append(overlay);
    }
  }
  return names;
}

Result<int> SelftestSoak(const SoakOptions& options) {
  if (options.minutes <= 0 && options.rounds <= 0) {
    return Err(ErrorCode::kInvalidInput, "a soak needs --minutes or --rounds");
  }
  const SystemClock clock;
  return Soak(options, clock).Run();
}

}  // namespace kvik::app
