// SPDX-License-Identifier: Apache-2.0
// kv/sequence.h: one request as the cache sees it: its tokens, its block table, and which tokens
// still have to be computed.
//
// Everything below `next_pos` has KV. At and above it only the ready blocks have: hits of the
// cache, and blocks that were loaded from elsewhere. So the compute list is: all positions from
// next_pos on that are not in a ready block, in order. Of it, what lies behind a block that is
// still being loaded has to wait, since it attends to that block. Created by the caller, changed by
// KvCache (friend); readers use the accessors. Thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kv/block_hasher.h"
#include "kv/block_key.h"
#include "kv/block_range.h"
#include "kv/prefix_index.h"
#include "kv/request_facts.h"

namespace kvik::kv {

// Positions [first_pos, first_pos + num_tokens).
struct TokenRun {
  int32_t first_pos = 0;
  int32_t num_tokens = 0;
  [[nodiscard]] int32_t end_pos() const { return first_pos + num_tokens; }
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

class Sequence {
 public:
  // REQUIRES: `tokens` is not empty.
  Sequence(std::vector<TokenId> tokens, ExtraKeys extra, int32_t block_size_tokens,
           MinQuality min_quality = {});
  // Of a trace that has the keys of the full blocks but not the tokens. REQUIRES: num_tokens >= 1,
  // and keys for every full block.
  Sequence(std::vector<ContentKey> keys, int32_t num_tokens, int32_t block_size_tokens);

  // A generated token; its KV is not computed yet.
  void Append(TokenId token) { tokens_.push_back(token); }

  [[nodiscard]] std::span<const TokenId> tokens() const { return tokens_; }
  [[nodiscard]] int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  // Keys of the full blocks, as far as KvCache has had to know them.
  [[nodiscard]] std::span<const ContentKey> keys() const { return chain_.keys(); }
  [[nodiscard]] const MinQuality& min_quality() const { return min_quality_; }
  // What policies hear of the request. The caller keeps it true.
  [[nodiscard]] RequestFacts& facts() { return facts_; }
  [[nodiscard]] const RequestFacts& facts() const { return facts_; }

  // Whether KvCache::Admit gave it blocks and Release has not taken them.
  [[nodiscard]] bool admitted() const { return admitted_; }
  // Block of every block_size_tokens positions; kNoBlock where none is allocated yet.
  [[nodiscard]] std::span<const BlockId> block_table() const { return table_; }
  // The next position to compute; num_tokens() when nothing is left.
  [[nodiscard]] int32_t next_pos() const { return next_pos_; }
  // Tokens in the compute list, and those that are being loaded. The last token is always among
  // them until it is computed.
  [[nodiscard]] int32_t num_to_compute() const;
  // The head of the compute list, at most `budget_tokens` of it, as maximal runs. Cached tokens
  // between runs cost no budget. Ends before the first block that is being loaded.
  [[nodiscard]] std::vector<TokenRun> NextRuns(int32_t budget_tokens) const;
  // Nothing can be computed before a block that is being loaded is there, or is not coming.
  [[nodiscard]] bool blocked() const {
    return num_loading_ > 0 && next_pos_ % block_size_tokens_ == 0 &&
           IsLoading(next_pos_ / block_size_tokens_);
  }
  // Blocks that are being loaded.
  [[nodiscard]] int32_t num_loading() const { return num_loading_; }
  // Blocks [0, num_sealed()) are sealed.
  [[nodiscard]] int32_t num_sealed() const { return num_sealed_; }
  // Whether the block's KV comes from the cache or from elsewhere.
  [[nodiscard]] bool IsReady(int32_t block) const {
    return static_cast<size_t>(block) < sources_.size() &&
           sources_[static_cast<size_t>(block)] == Source::kReady;
  }
  // The least of all that blocks [0, num_sealed()) were computed from.
  [[nodiscard]] const BlockQuality& quality() const { return quality_; }
  // Runs of hit blocks found at admission.
  [[nodiscard]] const std::vector<ResidentRun>& hit_runs() const { return hit_runs_; }
  [[nodiscard]] int32_t num_hit_tokens() const;

 private:
  friend class KvCache;
  // Where a block gets its KV from.
  enum class Source : uint8_t {
    kCompute,
    kReady,    // it has it: never written
    kLoading,  // from elsewhere; not written here before it is ready or back to kCompute
  };
  [[nodiscard]] bool IsLoading(int32_t block) const {
    return static_cast<size_t>(block) < sources_.size() &&
           sources_[static_cast<size_t>(block)] == Source::kLoading;
  }
  [[nodiscard]] bool IsCompute(int32_t block) const {
    return static_cast<size_t>(block) >= sources_.size() ||
           sources_[static_cast<size_t>(block)] == Source::kCompute;
  }
  [[nodiscard]] int32_t SkipReady(int32_t pos) const;

  // The tokens of `runs` have KV now. REQUIRES: they are the head of the compute list.
  void Advance(std::span<const TokenRun> runs);
  // The block's load is over.
  void EndLoad(int32_t block, bool ready);

  std::vector<TokenId> tokens_;
  HashChain chain_;
  int32_t block_size_tokens_;
  MinQuality min_quality_;
  RequestFacts facts_;
  bool admitted_ = false;
  std::vector<BlockId> table_;
  std::vector<Source> sources_;  // [blocks looked up]; the others are computed
  std::vector<ResidentRun> hit_runs_;
  int32_t next_pos_ = 0;
  int32_t ready_ahead_ = 0;  // ready blocks at or above next_pos_
  int32_t num_loading_ = 0;
  int32_t num_sealed_ = 0;       // blocks [0, num_sealed_) are sealed
  int32_t reserved_blocks_ = 0;  // promised by the pool, not allocated yet
  BlockQuality quality_;         // of what blocks [0, num_sealed_) were computed from
  // Ready blocks that are not in the index, which holds others of the same content.
  std::vector<std::pair<int32_t, BlockQuality>> unindexed_;
};

}  // namespace kvik::kv
