// SPDX-License-Identifier: Apache-2.0
#include "workload/offline_policies.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kv/score_policy.h"

namespace kvik::workload {
namespace {

using kv::Access;
using kv::HitScope;
using kv::PolicyOptions;
using kv::ScorePolicy;

// Both know the next use of every block when it is released: by then the present request is done
// with it, and no other comes before that use.
class OraclePolicy : public ScorePolicy {
 public:
  OraclePolicy(const PolicyOptions& options, Future& future)
      : ScorePolicy(options),
        future_(future),
        next_use_(static_cast<size_t>(options.num_blocks), Future::kNever) {}

 protected:
  void OnRelease(BlockId id, const Access& /*access*/) final {
    next_use_[static_cast<size_t>(id)] = future_.NextUse(block(id).content);
  }
  [[nodiscard]] int64_t next_use(BlockId id) const { return next_use_[static_cast<size_t>(id)]; }
  [[nodiscard]] int64_t now() const { return future_.now(); }

 private:
  Future& future_;
  std::vector<int64_t> next_use_;  // [num_blocks] of evictable blocks
};

class BeladyPolicy final : public OraclePolicy {
 public:
  using OraclePolicy::OraclePolicy;
  [[nodiscard]] std::string_view name() const override { return "belady"; }
  [[nodiscard]] HitScope hits() const override { return HitScope::kPrefix; }

 private:
  // A prefix is used whenever what is built on it is, so the order never evicts a parent first.
  double Score(const Block& /*block*/, BlockId id, int64_t /*now_us*/) override {
    return -static_cast<double>(next_use(id));
  }
};

class BeladyComputePolicy final : public OraclePolicy {
 public:
  using OraclePolicy::OraclePolicy;
  [[nodiscard]] std::string_view name() const override { return "belady-compute"; }

 private:
  double Score(const Block& block, BlockId id, int64_t /*now_us*/) override {
    if (next_use(id) == Future::kNever) {
      return 0;
    }
    return block.recompute_us / static_cast<double>(next_use(id) - now() + 1);
  }
};

constexpr std::array<std::string_view, 3> kNames = {"belady", "belady-compute", "bound"};

}  // namespace

std::span<const std::string_view> OfflinePolicyNames() { return kNames; }

Result<std::unique_ptr<kv::EvictionPolicy>> MakeReplayPolicy(const PolicyOptions& options,
                                                             Future& future) {
  const std::string_view base = kv::WithoutOverlays(options.name);
  if (base == "belady") {
    return kv::AddOverlays(options, std::make_unique<BeladyPolicy>(options, future));
  }
  if (base == "belady-compute") {
    return kv::AddOverlays(options, std::make_unique<BeladyComputePolicy>(options, future));
  }
  auto policy = kv::MakeEvictionPolicy(options);
  const auto online = kv::EvictionPolicyNames();
  if (!policy && std::find(online.begin(), online.end(), base) == online.end()) {
    std::string names;
    for (const std::string_view name : kNames) {
      names += ", " + std::string(name);
    }
    return Error{policy.error().code, policy.error().message + names};
  }
  return policy;
}

}  // namespace kvik::workload
