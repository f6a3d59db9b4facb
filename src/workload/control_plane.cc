// SPDX-License-Identifier: Apache-2.0
#include "workload/control_plane.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kv/kv_cache.h"
#include "workload/future.h"

namespace kvik::workload {
namespace {

using kv::Access;

struct PolicyTime {
  int64_t select_us = 0;
  int64_t other_us = 0;
  int64_t victims = 0;
};

// Passes every call on and adds up how long it took.
class TimedPolicy final : public kv::EvictionPolicy {
 public:
  TimedPolicy(std::unique_ptr<kv::EvictionPolicy> policy, const Clock& clock, PolicyTime& time)
      : policy_(std::move(policy)), clock_(clock), time_(time) {}

  [[nodiscard]] std::string_view name() const override { return policy_->name(); }
  // One block of a request at a time: too short to be timed, so it counts with the cache's work.
  void Track(const kv::TrackedBlock& block) override { policy_->Track(block); }
  void Hit(std::span<const BlockId> blocks, const Access& access) override {
    Timed(time_.other_us, [&] { policy_->Hit(blocks, access); });
  }
  void Missed(std::span<const uint64_t> contents, const Access& access) override {
    Timed(time_.other_us, [&] { policy_->Missed(contents, access); });
  }
  void Touch(std::span<const BlockId> blocks, const Access& access) override {
    Timed(time_.other_us, [&] { policy_->Touch(blocks, access); });
  }
  void Release(std::span<const BlockId> blocks, const Access& access) override {
    Timed(time_.other_us, [&] { policy_->Release(blocks, access); });
  }
  void Forget(BlockId block) override { policy_->Forget(block); }
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override {
    std::vector<BlockId> victims;
    Timed(time_.select_us, [&] { victims = policy_->SelectVictims(count, now_us); });
    time_.victims += static_cast<int64_t>(victims.size());
    return victims;
  }
  void Tick(int64_t now_us) override {
    Timed(time_.other_us, [&] { policy_->Tick(now_us); });
  }
  [[nodiscard]] kv::HitScope hits() const override { return policy_->hits(); }
  [[nodiscard]] kv::PolicyStats stats() const override { return policy_->stats(); }

 private:
  template <typename Call>
  void Timed(int64_t& sum_us, Call call) {
    const int64_t start_us = clock_.NowMicros();
    call();
    sum_us += clock_.NowMicros() - start_us;
  }

  std::unique_ptr<kv::EvictionPolicy> policy_;
  const Clock& clock_;
  PolicyTime& time_;
};

class Load {
 public:
  explicit Load(const ControlPlaneOptions& options)
      : options_(options),
        blocks_(options.request_tokens / options.block_size_tokens),
        remembered_(std::max(options.cache_blocks / std::max(blocks_, 1), 1)),
        rng_(options.seed) {}

  [[nodiscard]] int32_t WarmupRequests() const { return 2 * remembered_ + 2; }

  kv::Sequence Next() {
    const uint64_t own = ++requests_;
    // Whose first half the request begins with; itself: all is new.
    uint64_t head = own;
    if (own % 2 == 0) {
      const uint64_t back = 1 + rng_.Below(std::min<uint64_t>(remembered_, own - 1));
      head = heads_[(own - back) % heads_.size()];
    }
    heads_[own % heads_.size()] = head;
    std::vector<kv::ContentKey> keys;
    for (int32_t b = 0; b < blocks_; ++b) {
      const uint64_t owner = b < blocks_ / 2 ? head : own;
      keys.push_back(KeyOf(owner << 32 | static_cast<uint32_t>(b)));
    }
    kv::Sequence sequence(std::move(keys), options_.request_tokens, options_.block_size_tokens);
    sequence.facts().request = own;
    sequence.facts().session = head;
    sequence.facts().turn = head == own ? 1 : 2;
    sequence.facts().prompt_tokens = options_.request_tokens;
    return sequence;
  }

 private:
  const ControlPlaneOptions& options_;
  int32_t blocks_;      // full ones of a request
  int32_t remembered_;  // requests back that may be gone on with: what the cache can hold
  Rng rng_;
  uint64_t requests_ = 0;
  std::vector<uint64_t> heads_ = std::vector<uint64_t>(static_cast<size_t>(remembered_) + 1);
};

}  // namespace

Result<ControlPlaneCost> MeasureControlPlane(
    const ControlPlaneOptions& options, const Clock& clock,
    const std::function<void(int32_t, const ControlPlaneCost&)>& observe) {
  if (options.requests < 1 || options.request_tokens < 1 || options.block_size_tokens < 1) {
    return Err(ErrorCode::kInvalidInput,
               "give at least one request, one token in it and one token a block");
  }
  if (options.cache_blocks < 1 ||
      options.cache_blocks - 1 < options.request_tokens / options.block_size_tokens) {
    return Err(ErrorCode::kInvalidInput, "a request of %d tokens does not fit %d blocks of %d",
               options.request_tokens, options.cache_blocks, options.block_size_tokens);
  }
  kv::CacheOptions cache_options;
  cache_options.num_blocks = options.cache_blocks;
  cache_options.block_size_tokens = options.block_size_tokens;
  kv::PolicyOptions policy_options = options.policy;
  policy_options.num_blocks = options.cache_blocks;
  policy_options.block_size_tokens = options.block_size_tokens;
  KVIK_ASSIGN(auto policy, kv::MakeEvictionPolicy(policy_options));
  PolicyTime time;
  KVIK_ASSIGN(const auto cache,
              kv::KvCache::Create(cache_options,
                                  std::make_unique<TimedPolicy>(std::move(policy), clock, time)));
  Load load(options);
  int64_t total_us = 0;
  int64_t now_us = 0;
  const auto mean_of = [&](int32_t requests) {
    const double share = 1.0 / requests;
    ControlPlaneCost cost;
    cost.select_us = static_cast<double>(time.select_us) * share;
    cost.policy_us = static_cast<double>(time.other_us) * share;
    cost.cache_us = static_cast<double>(total_us - time.select_us - time.other_us) * share;
    cost.victims = static_cast<double>(time.victims) * share;
    return cost;
  };
  for (int32_t i = options.warmup ? -load.WarmupRequests() : 0; i < options.requests; ++i) {
    if (i == 0) {
      time = PolicyTime{};
      total_us = 0;
    }
    kv::Sequence sequence = load.Next();
    const int64_t start_us = clock.NowMicros();
    cache->AdvanceTime(now_us += 1000000);
    const kv::AdmissionPlan plan = cache->Plan(sequence, sequence.num_tokens());
    KVIK_CHECK(cache->Admit(sequence, plan) == kv::AdmitOutcome::kAdmitted);
    const auto runs = sequence.NextRuns(sequence.num_tokens());
    cache->Allocate(sequence, runs);
    cache->Commit(sequence, runs);
    cache->Release(sequence);
    total_us += clock.NowMicros() - start_us;
    if (i >= 0 && observe) {
      observe(i + 1, mean_of(i + 1));
    }
  }
  return mean_of(options.requests);
}

}  // namespace kvik::workload
