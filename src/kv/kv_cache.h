// SPDX-License-Identifier: Apache-2.0
// kv/kv_cache.h: the paged cache as one thing: pool, index and eviction policy kept consistent.
//
// A sequence's way through it:
//
//   Plan      which blocks are resident, what the rest costs; no side effects
//   Admit     pins every hit block of the plan and reserves the rest of the need; nothing is
//             evicted here, so making room can never take a block of the plan
//   Allocate  takes reserved blocks for the positions of the next step, evicting cached ones
//   Commit    after the step: seals the blocks that are full now and publishes them
//   Release   lets go of everything; sealed blocks stay cached, the last one first in line
//
// Between Admit and Commit, blocks may get their KV from elsewhere instead: BeginLoad to EndLoad.
//
// Reserved blocks are counted, not chosen: free + cached >= reserved at all times, so Allocate
// cannot fail and a cached block stays useful until the last moment. Thread-compatible: the engine
// thread owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "base/types.h"
#include "kv/block_events.h"
#include "kv/block_hasher.h"
#include "kv/block_masks.h"
#include "kv/block_pool.h"
#include "kv/block_range.h"
#include "kv/eviction_policy.h"
#include "kv/geometry.h"
#include "kv/prefix_index.h"
#include "kv/residency_sampler.h"
#include "kv/sequence.h"

namespace kvik::kv {

struct CacheOptions {
  int32_t num_blocks = 0;          // >= 1
  int32_t block_size_tokens = 16;  // >= 1
  bool prefix_caching = true;      // off: every block is freed when its sequence ends
  // What the blocks' bytes are, so that slots of them can be dropped; none: that nobody can. An
  // engine fills it in.
  std::optional<KvGeometry> geometry;
  HashOptions hash;
  std::string numerics;  // Model::numerics_tag(): who computes this KV
  // kPrefix: gaps are not reused whatever the policy may do with them. An ablation, and for engines
  // without Multi-Segment Attention.
  HitScope hits = HitScope::kGaps;
  // Of the contents, whose stay in the cache is watched; in [0, 1]. 0: none, and it costs nothing.
  double residency_share = 0;
  // Record what comes and goes (TakeBlockEvents), as a request that accepts this quality sees it.
  // None: nothing is recorded, and it costs nothing.
  std::optional<MinQuality> announce;
  PolicyOptions policy;      // num_blocks and block_size_tokens are taken from above
  std::string policy_state;  // what another instance of the policy learned; empty: nothing
};

struct CacheStats {
  int32_t total_blocks = 0;
  int32_t free_blocks = 0;
  int32_t filling_blocks = 0;
  int32_t referenced_blocks = 0;
  int32_t cached_blocks = 0;
  int32_t reserved_blocks = 0;  // promised to admitted sequences, still free or cached
  int32_t loading_blocks = 0;   // of the filling ones: somebody else writes them
  int32_t held_blocks = 0;      // of the referenced ones: somebody else reads them, too
  int64_t published = 0;        // blocks, since the start
  int64_t duplicates = 0;       // sealed blocks whose content was in the index already
  int64_t evictions = 0;        // blocks
};

// What admission of one sequence would take. Valid until the cache changes; Admit notices.
struct AdmissionPlan {
  LookupResult hits;
  int32_t num_new_blocks = 0;  // to be filled, out of the need
};

enum class AdmitOutcome {
  kAdmitted,
  kNoRoom,  // the reservation does not fit now; nothing was changed
  kStale,   // a planned block is gone or replaced; plan again; nothing was changed
};

// What became of a block that was being loaded.
enum class LoadOutcome {
  kReady,      // its sequence has it
  kDuplicate,  // its sequence uses a resident block of the same content instead; it was freed
  kRefused,    // not good enough for its sequence, which computes the block
  kCompute,    // it is not coming; its sequence computes the block
  kCached,     // its sequence has gone; it was published and is cached
  kDropped,    // its sequence has gone; it was freed
};

class KvCache {
 public:
  // kInvalidInput names the option. The policy obeys what requests say of themselves.
  static Result<std::unique_ptr<KvCache>> Create(const CacheOptions& options);
  // With a policy made elsewhere, which knows the ids [0, options.num_blocks); options.policy is
  // not looked at.
  static Result<std::unique_ptr<KvCache>> Create(const CacheOptions& options,
                                                 std::unique_ptr<EvictionPolicy> policy);

  // What time it is now, for the policy; never backwards. Also gives it a moment for its own
  // upkeep: call it once a step.
  void AdvanceTime(int64_t now_us);

  // Looks up every full block of the sequence but the one that holds its last token, which is
  // always computed. Under a policy of HitScope::kPrefix only the run from position 0 counts.
  // `need_tokens`: how many positions to plan room for, >= num_tokens(). REQUIRES: not admitted.
  [[nodiscard]] AdmissionPlan Plan(Sequence& sequence, int32_t need_tokens) const;
  // Whether the policy keeps KV pinned for this very sequence (EvictionPolicy::HoldsFor): then it
  // should be admitted soon. Next to nothing when nothing is pinned, else a lookup. REQUIRES: not
  // admitted.
  [[nodiscard]] bool IsAwaited(Sequence& sequence) const;
  // Blocks that a plan takes out of free + cached - reserved: new ones, and hits nobody holds now.
  [[nodiscard]] int32_t BlocksTaken(const AdmissionPlan& plan) const;
  // free + cached - reserved.
  [[nodiscard]] int32_t AvailableBlocks() const;
  AdmitOutcome Admit(Sequence& sequence, const AdmissionPlan& plan);

  // Makes sure that table and reservation cover positions [0, need_tokens); false (and nothing
  // changed) when the missing blocks are not available. REQUIRES: admitted.
  [[nodiscard]] bool Reserve(Sequence& sequence, int32_t need_tokens);
  // Blocks for the positions of `runs`. REQUIRES: admitted, reserved, runs from NextRuns.
  void Allocate(Sequence& sequence, std::span<const TokenRun> runs);
  // The KV of `runs` is in place. Seals and publishes what became full. REQUIRES: Allocate(runs).
  void Commit(Sequence& sequence, std::span<const TokenRun> runs);
  // Gives everything back. The sequence can be planned again. No-op when not admitted.
  void Release(Sequence& sequence);

  // ---- KV that others write and read (kv/connector.h) ----

  // Full blocks of an admitted sequence that have no KV yet and that nobody loads, without those
  // that were begun and the last token's. Ascending, maximal. O(blocks).
  [[nodiscard]] std::vector<BlockRange> MissingBlocks(const Sequence& sequence) const;
  // Takes reserved blocks for a range, evicting cached ones: somebody else writes them, and the
  // sequence does not compute them before EndLoad, once for each. A block stays allocated until
  // then even if its sequence is released. REQUIRES: within MissingBlocks.
  std::vector<BlockId> BeginLoad(Sequence& sequence, const BlockRange& range);
  // Nobody writes to the block any more. With a quality it holds its KV: it is sealed and
  // published, and its sequence uses it if it accepts the quality. REQUIRES: loading.
  LoadOutcome EndLoad(BlockId block, const std::optional<BlockQuality>& quality);

  // Keeps a sealed block of the index as it is until Unhold, whoever lets go of it. May be held
  // several times. REQUIRES: in the index, and referenced, or cached with AvailableBlocks() > 0.
  void Hold(BlockId block);
  // REQUIRES: held.
  void Unhold(BlockId block);
  // Blocks that stay taken whichever sequences are released: being loaded, or held.
  [[nodiscard]] std::vector<BlockId> BlocksInUseElsewhere() const;

  // Takes in a block whose bytes come from elsewhere: it is published with its fidelity and cached;
  // the caller writes its bytes before the next step. Nothing when no block is available or the
  // index holds an equal or better one. `first_pos`: position of the block's first token.
  [[nodiscard]] std::optional<BlockId> Import(const BlockKey& key, BlockQuality quality,
                                              int32_t first_pos);

  // Drops one cached block. REQUIRES: cached.
  void Evict(BlockId block);
  // Drops each cached block with this probability; returns how many went. For tests and
  // measurements of gaps.
  int32_t EvictAtRandom(Rng& rng, double probability);
  // Drops all cached blocks; returns how many.
  int32_t Clear();

  // What was seen of watched blocks since the last call. Call it once a step.
  [[nodiscard]] std::vector<ResidencySample> TakeResidencySamples();

  // What became of the contents that CacheOptions::announce asks for, since the last call, in
  // order. A content is stored once and removed once, however many blocks held it in between. Call
  // it once a step.
  [[nodiscard]] std::vector<BlockEvent> TakeBlockEvents();

  [[nodiscard]] const CacheOptions& options() const { return options_; }
  [[nodiscard]] const EvictionPolicy& policy() const { return *policy_; }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  [[nodiscard]] const PrefixIndex& index() const { return index_; }
  // What attention leaves out of the blocks; null without a geometry. Freeing a block clears its
  // masks, so a block that Import or Allocate gives out keeps everything.
  [[nodiscard]] BlockMasks* masks() { return masks_ ? &*masks_ : nullptr; }
  [[nodiscard]] const BlockMasks* masks() const { return masks_ ? &*masks_ : nullptr; }
  [[nodiscard]] CacheStats stats() const;
  // blocks needed for positions [0, tokens).
  [[nodiscard]] int32_t BlocksFor(int32_t tokens) const {
    return (tokens + options_.block_size_tokens - 1) / options_.block_size_tokens;
  }

  // The pool's invariant, and: the cached blocks are the policy's evictable ones and all in the
  // index; reservations are covered; free blocks have no masks, and what the index calls exact has
  // none either. Aborts on a violation. O(total).
  void CheckInvariant() const;

 private:
  KvCache(const CacheOptions& options, std::unique_ptr<EvictionPolicy> policy);
  void KeepPinnable(LookupResult& hits) const;
  static void KeepPrefix(LookupResult& hits);
  void MakeRoom(int32_t blocks);
  // What is told of a block that comes to be stored.
  struct Origin {
    std::optional<BlockHash> parent;
    std::vector<TokenId> tokens;
    ExtraKeys extra;
  };
  bool Publish(const BlockKey& key, BlockId block, BlockQuality quality, int32_t first_pos,
               uint64_t parent, const Origin& origin);
  // Empty when nothing is announced.
  [[nodiscard]] Origin OriginOf(const Sequence& sequence, int32_t block_index) const;
  [[nodiscard]] bool IsAnnounced(const ContentKey& content) const {
    return options_.announce && index_.Find(content, *options_.announce) != kNoBlock;
  }
  [[nodiscard]] BlockQuality ReadyQuality(const Sequence& sequence, int32_t block_index) const;
  bool KeepUnreferenced(BlockId block);
  bool Abandon(BlockId block);
  void DropCached(BlockId block);
  void FreeEvicted(BlockId block);
  void Free(BlockId block);

  // A block that somebody else writes.
  struct Loading {
    Sequence* sequence = nullptr;  // null: it was released
    int32_t index = 0;             // of the block in the sequence
    ContentKey content;
    uint64_t parent = 0;
    Origin origin;
  };
  // A block that somebody else reads.
  struct Held {
    int32_t holds = 0;
    RequestFacts facts;  // of the last request that let go of it
  };

  CacheOptions options_;
  NumericsTag numerics_;
  BlockHasher hasher_;
  BlockPool pool_;
  std::optional<BlockMasks> masks_;
  PrefixIndex index_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::optional<ResidencySampler> residency_;
  BlockEventRecorder recorder_;
  std::unordered_map<BlockId, Loading> loading_;
  std::unordered_map<BlockId, Held> held_;
  int64_t now_us_ = 0;
  int32_t reserved_blocks_ = 0;
  int64_t published_ = 0;
  int64_t duplicates_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace kvik::kv
