// SPDX-License-Identifier: Apache-2.0
// What the cache itself costs a request of 35,000 tokens, by policy and size of the cache.
//   eviction_bench [--quick] [--blocks N,N] [--policies NAME,NAME] [--only SUBSTRING]
//                  [--select auto|scan|batch] [--requests N]
// Time is the thread's own, so that other work on the machine does not count. Conversations go on
// or begin, half and half, and take turns at random; every request ends before the next begins.
//   tick     the policy's upkeep, once a request
//   lookup   keys to resident blocks (keys are given: hashing is not in it)
//   pin      hits are held, the policy hears of hits and misses
//   select   the policy chooses victims
//   erase    they leave the index and are taken for the new blocks
//   publish  new blocks enter index and policy
//   release  all blocks become evictable
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "kv/eviction_policy.h"
#include "kv/kv_cache.h"

namespace kvik::kv {
namespace {

using kvik::testing::BenchClock;
using kvik::testing::OrDie;

constexpr int32_t kBlockTokens = 16;
constexpr int32_t kRequestBlocks = 2188;
constexpr int64_t kMicrosBetweenRequests = 20'000'000;

struct Options {
  bool obey_clients = false;  // as the engine has it: with overlays for what requests say
  std::vector<int32_t> blocks = {8192, 131'072, 1'048'576};
  std::vector<std::string> policies;
  VictimSelection selection = VictimSelection::kAuto;
  int requests = 100;
};

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = list.find(',', begin);
    parts.push_back(list.substr(begin, end - begin));
  }
  return parts;
}

// The flags of all benchmark programs are taken: nothing here uses threads.
std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  std::string only;
  for (const auto name : EvictionPolicyNames()) {
    options.policies.emplace_back(name);
  }
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      options.blocks = {8192, 131'072};
      options.requests = 10;
      continue;
    }
    if (flag == "--cpu-time") {
      continue;
    }
    if (flag == "--obey-clients") {
      options.obey_clients = true;
      continue;
    }
    if (++i == argc) {
      return std::nullopt;
    }
    const std::string value = argv[i];
    if (flag == "--blocks") {
      options.blocks.clear();
      for (const std::string& number : Split(value)) {
        options.blocks.push_back(std::atoi(number.c_str()));
      }
    } else if (flag == "--policies") {
      options.policies = Split(value);
    } else if (flag == "--only") {
      only = value;
    } else if (flag == "--requests") {
      options.requests = std::atoi(value.c_str());
    } else if (flag == "--select" && (value == "auto" || value == "scan" || value == "batch")) {
      options.selection = value == "scan"    ? VictimSelection::kScan
                          : value == "batch" ? VictimSelection::kBatch
                                             : VictimSelection::kAuto;
    } else if (flag != "--threads") {
      return std::nullopt;
    }
  }
  std::erase_if(options.policies,
                [&](const std::string& name) { return name.find(only) == std::string::npos; });
  const bool roomy = std::all_of(options.blocks.begin(), options.blocks.end(),
                                 [](int32_t blocks) { return blocks >= 2 * kRequestBlocks; });
  return roomy && options.requests >= 1 ? std::optional(options) : std::nullopt;
}

// Keeps the time that another policy takes to choose.
class TimedPolicy final : public EvictionPolicy {
 public:
  TimedPolicy(std::unique_ptr<EvictionPolicy> policy, const BenchClock& clock)
      : policy_(std::move(policy)), clock_(clock) {}

  [[nodiscard]] double select_s() const { return select_s_; }

  [[nodiscard]] std::string_view name() const override { return policy_->name(); }
  void Track(const TrackedBlock& block) override { policy_->Track(block); }
  void Hit(std::span<const BlockId> blocks, const Access& access) override {
    policy_->Hit(blocks, access);
  }
  void Missed(std::span<const uint64_t> contents, const Access& access) override {
    policy_->Missed(contents, access);
  }
  void Touch(std::span<const BlockId> blocks, const Access& access) override {
    policy_->Touch(blocks, access);
  }
  void Release(std::span<const BlockId> blocks, const Access& access) override {
    policy_->Release(blocks, access);
  }
  void Forget(BlockId block) override { policy_->Forget(block); }
  std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override {
    const double start = clock_.NowSeconds();
    std::vector<BlockId> victims = policy_->SelectVictims(count, now_us);
    select_s_ += clock_.NowSeconds() - start;
    return victims;
  }
  void Tick(int64_t now_us) override { policy_->Tick(now_us); }
  [[nodiscard]] HitScope hits() const override { return policy_->hits(); }
  [[nodiscard]] PolicyStats stats() const override { return policy_->stats(); }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  const BenchClock& clock_;
  double select_s_ = 0;
};

// Which conversation the next request belongs to; conversations hold twice what the cache does.
class Conversations {
 public:
  explicit Conversations(int32_t num_blocks) : live_(2 * num_blocks / kRequestBlocks + 2) {}

  uint64_t Next() {
    if (count_ > 4 && rng_.Below(2) == 0) {
      return count_ - 1 - rng_.Below(std::min(count_, live_));
    }
    return count_++;
  }

 private:
  Rng rng_{1};
  uint64_t live_;
  uint64_t count_ = 0;
};

std::vector<ContentKey> KeysOf(uint64_t conversation) {
  std::vector<ContentKey> keys(kRequestBlocks);
  Rng rng(conversation);
  for (ContentKey& key : keys) {
    for (size_t i = 0; i + sizeof(uint64_t) <= key.hash.bytes.size(); i += sizeof(uint64_t)) {
      const uint64_t bits = rng.Next();
      std::memcpy(key.hash.bytes.data() + i, &bits, sizeof bits);
    }
  }
  return keys;
}

// In seconds.
struct Cost {
  double tick = 0;
  double lookup = 0;
  double pin = 0;
  double select = 0;
  double erase = 0;
  double publish = 0;
  double release = 0;
  int64_t hits = 0;

  [[nodiscard]] double total() const {
    return tick + lookup + pin + select + erase + publish + release;
  }
};

Cost Measure(const Options& options, const std::string& name, int32_t num_blocks) {
  const BenchClock clock(/*cpu_time=*/true);
  auto timed =
      std::make_unique<TimedPolicy>(OrDie(MakeEvictionPolicy({.name = name,
                                                              .obey_clients = options.obey_clients,
                                                              .num_blocks = num_blocks,
                                                              .block_size_tokens = kBlockTokens,
                                                              .selection = options.selection})),
                                    clock);
  const TimedPolicy& policy = *timed;
  CacheOptions cache_options;
  cache_options.num_blocks = num_blocks;
  cache_options.block_size_tokens = kBlockTokens;
  const auto cache = OrDie(KvCache::Create(cache_options, std::move(timed)));
  Conversations conversations(num_blocks);
  const int warm_up = 2 * num_blocks / kRequestBlocks + 2;
  Cost cost;
  int64_t now_us = 0;
  for (int i = 0; i < warm_up + options.requests; ++i) {
    now_us += kMicrosBetweenRequests;
    // One token more than full blocks: the block of the last token is never taken from the cache.
    Sequence sequence(KeysOf(conversations.Next()), kRequestBlocks * kBlockTokens + 1,
                      kBlockTokens);
    const double start = clock.NowSeconds();
    cache->AdvanceTime(now_us);
    const double ticked = clock.NowSeconds();
    const AdmissionPlan plan = cache->Plan(sequence, sequence.num_tokens());
    const double looked_up = clock.NowSeconds();
    KVIK_CHECK(cache->Admit(sequence, plan) == AdmitOutcome::kAdmitted);
    const double pinned = clock.NowSeconds();
    const std::vector<TokenRun> runs = sequence.NextRuns(sequence.num_tokens());
    const double planned = clock.NowSeconds();
    const double selected_before = policy.select_s();
    cache->Allocate(sequence, runs);
    const double allocated = clock.NowSeconds();
    const double select = policy.select_s() - selected_before;
    cache->Commit(sequence, runs);
    const double published = clock.NowSeconds();
    cache->Release(sequence);
    const double released = clock.NowSeconds();
    if (i >= warm_up) {
      cost.tick += ticked - start;
      cost.lookup += looked_up - ticked;
      cost.pin += pinned - looked_up;
      cost.select += select;
      cost.erase += allocated - planned - select;
      cost.publish += published - allocated;
      cost.release += released - published;
      cost.hits += plan.hits.num_hits;
    }
  }
  return cost;
}

int Main(int argc, char** argv) {
  const std::optional<Options> parsed = Parse(argc, argv);
  if (!parsed) {
    std::fprintf(stderr,
                 "usage: eviction_bench [--quick] [--blocks N,N] [--policies NAME,NAME] "
                 "[--only SUBSTRING]\n"
                 "                      [--select auto|scan|batch] [--requests N] "
                 "[--obey-clients]\n"
                 "N blocks are at least %d\n",
                 2 * kRequestBlocks);
    return 1;
  }
  const Options& options = *parsed;
  std::printf("us a request of %d blocks, the thread's own time, mean of %d requests\n",
              kRequestBlocks, options.requests);
  std::printf("%9s %-16s %7s %8s %8s %8s %8s %8s %8s %8s %8s\n", "blocks", "policy", "hits", "tick",
              "lookup", "pin", "select", "erase", "publish", "release", "total");
  for (const int32_t blocks : options.blocks) {
    for (const std::string& name : options.policies) {
      const Cost c = Measure(options, name, blocks);
      const double us = 1e6 / options.requests;
      std::printf("%9d %-16s %7.0f %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f\n", blocks,
                  name.c_str(), static_cast<double>(c.hits) / options.requests, c.tick * us,
                  c.lookup * us, c.pin * us, c.select * us, c.erase * us, c.publish * us,
                  c.release * us, c.total() * us);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvik::kv

int main(int argc, char** argv) { return kvik::kv::Main(argc, argv); }
