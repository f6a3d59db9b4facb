// SPDX-License-Identifier: Apache-2.0
// kv/eviction_policy.h: which cached block goes when room is needed.
//
// The policy hears of every published block (Track), of every use (Hit), of the moments when
// blocks become evictable (Release) and stop being so (Touch), of content that was wanted in vain
// (Missed), and picks victims among the evictable blocks. It sees ids, positions and times, never
// bytes; time is what the caller says, never read from a clock. One policy serves one cache.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "kv/cost_model.h"
#include "kv/request_facts.h"
#include "kv/tier_cost.h"

namespace kvik::kv {

// What a policy may weigh. Facts of the content, fixed while the block lives.
struct TrackedBlock {
  BlockId block = kNoBlock;
  int32_t first_pos = 0;  // position of its first token: recomputing a deep block costs more
  uint64_t content = 0;   // digest of the block's key, to know it again after it was evicted
  uint64_t parent = 0;    // the same of the block before it; 0: none, or not known
};

// Which cached blocks a request may use under this policy.
enum class HitScope {
  kPrefix,  // the run that starts at position 0
  kGaps,    // every resident run
};

struct PolicyStats {
  int64_t tracked = 0;    // blocks known now
  int64_t evictable = 0;  // of which may be chosen now
  int64_t evicted = 0;    // victims since the start
  int64_t pinned = 0;  // of the evictable: kept for a while, taken only when nothing else is left
};

// Something that a policy knows of itself, for people to look at.
struct PolicyReading {
  const char* name = "";  // as metrics are named: "turnover_seconds"
  const char* help = "";  // one sentence
  const char* part = "";  // which of several of this name; may be empty
  double value = 0;
  bool only_grows = false;  // a count since the start; else how it is now
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // A block was published; somebody holds it, so it is not evictable. REQUIRES: not tracked.
  virtual void Track(const TrackedBlock& block) = 0;
  // A request uses these blocks from the cache, ascending by position; some may be held by others.
  // Comes before the Touch of those that were evictable. REQUIRES: tracked.
  virtual void Hit(std::span<const BlockId> /*blocks*/, const Access& /*access*/) {}
  // A request looked for these contents and found nothing; they are computed now.
  virtual void Missed(std::span<const uint64_t> /*contents*/, const Access& /*access*/) {}
  // Cached blocks are held again. REQUIRES: evictable.
  virtual void Touch(std::span<const BlockId> blocks, const Access& access) = 0;
  // One request let go of blocks that nobody else holds. Deepest position first, as a sequence
  // frees its table in reverse. REQUIRES: tracked and not evictable.
  virtual void Release(std::span<const BlockId> blocks, const Access& access) = 0;
  // The block leaves the cache for another reason than SelectVictims. REQUIRES: tracked.
  virtual void Forget(BlockId block) = 0;
  // Picks exactly `count` evictable blocks, the first to go first, and forgets them. REQUIRES:
  // count <= stats().evictable.
  [[nodiscard]] virtual std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) = 0;
  // Called once a step, with time to spare of some hundred microseconds.
  virtual void Tick(int64_t /*now_us*/) {}
  [[nodiscard]] virtual HitScope hits() const { return HitScope::kGaps; }
  [[nodiscard]] virtual PolicyStats stats() const = 0;
  // The same names and parts in every call.
  [[nodiscard]] virtual std::vector<PolicyReading> Readings() const { return {}; }
  // Whether it makes its own use of RequestFacts::will_continue; else an overlay acts on it.
  [[nodiscard]] virtual bool WeighsHints() const { return false; }
  // Whether the policy keeps KV pinned for a request that would use these blocks, of this session
  // (0: unknown), and only for it: such a request should not wait for others. Blocks as in Hit,
  // with kNoBlock between them.
  [[nodiscard]] virtual bool HoldsFor(std::span<const BlockId> /*blocks*/,
                                      uint64_t /*session*/) const {
    return false;
  }

  // What was learned of the requests, not of the blocks, as JSON with a version; empty if the
  // policy learns nothing. Holds no contents and no absolute times: another process may start from
  // it.
  [[nodiscard]] virtual std::string SaveState() const { return {}; }
  // Starts from what another instance of the same policy saved; empty: from nothing. kInvalidInput
  // says what is wrong with the text, and nothing is changed. REQUIRES: no event was heard yet.
  virtual Result<void> RestoreState(std::string_view state) {
    if (state.empty()) {
      return {};
    }
    return Err(ErrorCode::kInvalidInput, "policy %s learns nothing that could be restored",
               std::string(name()).c_str());
  }
};

// How policies whose scores change with time find their victims.
enum class VictimSelection {
  kAuto,   // the policy's own structure
  kScan,   // one pass over all evictable blocks for every victim: O(count * evictable)
  kBatch,  // all scores once, then the least `count` of them
};

struct PolicyOptions {
  // A policy, then overlays on it, as "lru" and "hazard+continuum".
  std::string name = "hazard";
  // Also obey what requests say of themselves: RequestFacts::retention and will_continue.
  bool obey_clients = false;
  int32_t num_blocks = 0;  // ids are [0, num_blocks)
  int32_t block_size_tokens = 16;
  uint64_t seed = 0;  // of policies that draw random numbers
  CostModel cost = CostModel::Default();
  // Where evicted blocks go, for policies that weigh cost; null: nowhere.
  std::shared_ptr<const TierCost> tier{};
  VictimSelection selection = VictimSelection::kAuto;
  // Of the reuse curve min(exp(-alpha x), p exp(-r alpha (x - L))), alpha = -ln p / L.
  double lifespan_s = 0;    // L; 0: learned while running
  double reuse_prob = 0.5;  // p
  double slope_ratio = 40;  // r
};

// Names MakeEvictionPolicy knows, for messages and --help: of policies, and of what goes on top.
std::span<const std::string_view> EvictionPolicyNames();
std::span<const std::string_view> EvictionOverlayNames();

// Whether a policy weighs what computing a block again costs (PolicyOptions::cost).
[[nodiscard]] bool PolicyUsesCost(std::string_view name);

// Whether a policy learns something that SaveState tells.
[[nodiscard]] bool PolicyLearns(std::string_view name);

// kInvalidInput names the option that is out of range, or lists the known names.
Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(const PolicyOptions& options);

// "lru+continuum" -> "lru".
[[nodiscard]] std::string_view WithoutOverlays(std::string_view name);
// Puts the overlays that options name, and those of obey_clients, on a policy made elsewhere, whose
// own name is not looked at. Errors as above.
Result<std::unique_ptr<EvictionPolicy>> AddOverlays(const PolicyOptions& options,
                                                    std::unique_ptr<EvictionPolicy> policy);

}  // namespace kvik::kv
