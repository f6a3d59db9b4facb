// SPDX-License-Identifier: Apache-2.0
// kv/eviction_policy.h: which cached block goes when room is needed.
//
// The policy hears of every published block (Track), of the moments when blocks become evictable
// (Release) and stop being so (Touch), and picks victims among the evictable ones. It sees ids and
// facts, never bytes. One policy serves one cache. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace kvik::kv {

// What a policy may weigh. Facts of the content, fixed while the block lives.
struct TrackedBlock {
  BlockId block = kNoBlock;
  int32_t first_pos = 0;  // position of its first token: recomputing a deep block costs more
};

struct PolicyStats {
  int64_t tracked = 0;    // blocks known now
  int64_t evictable = 0;  // of which may be chosen now
  int64_t evicted = 0;    // victims since the start
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // A block was published; somebody holds it, so it is not evictable. REQUIRES: not tracked.
  virtual void Track(const TrackedBlock& block) = 0;
  // Cached blocks are held again (a hit). REQUIRES: evictable.
  virtual void Touch(std::span<const BlockId> blocks) = 0;
  // One sequence let go of blocks that nobody else holds. Deepest position first, as the sequence
  // frees its table in reverse. REQUIRES: tracked and not evictable.
  virtual void Release(std::span<const BlockId> blocks) = 0;
  // The block leaves the cache for another reason than SelectVictims. REQUIRES: tracked.
  virtual void Forget(BlockId block) = 0;
  // Picks exactly `count` evictable blocks, the first to go first, and forgets them. REQUIRES:
  // count <= stats().evictable.
  [[nodiscard]] virtual std::vector<BlockId> SelectVictims(size_t count) = 0;
  [[nodiscard]] virtual PolicyStats stats() const = 0;
};

struct PolicyOptions {
  std::string name = "lru";
  int32_t num_blocks = 0;  // ids are [0, num_blocks)
  uint64_t seed = 0;       // of policies that draw random numbers
};

// Names MakeEvictionPolicy knows, for messages and --help.
std::span<const std::string_view> EvictionPolicyNames();

// kInvalidInput lists the known names.
Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(const PolicyOptions& options);

}  // namespace kvik::kv
