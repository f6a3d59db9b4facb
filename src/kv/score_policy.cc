// SPDX-License-Identifier: Apache-2.0
#include "kv/score_policy.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvik::kv {

ScorePolicy::ScorePolicy(const PolicyOptions& options)
    : options_(options),
      blocks_(options.num_blocks),
      slot_(static_cast<size_t>(options.num_blocks)),
      tier_watch_(options.tier.get(), options.block_size_tokens) {}

void ScorePolicy::Track(const TrackedBlock& tracked) {
  blocks_.Track(tracked.block, {.first_pos = tracked.first_pos,
                                .content = tracked.content,
                                .uses = 1,
                                .recompute_us = options_.cost.RecomputeUs(
                                    tracked.first_pos, options_.block_size_tokens)});
  OnTrack(tracked.block);
}

void ScorePolicy::Hit(std::span<const BlockId> blocks, const Access& access) {
  for (const BlockId id : blocks) {
    ++blocks_.At(id).uses;
    OnHit(id, access);
  }
}

void ScorePolicy::Touch(std::span<const BlockId> blocks, const Access& /*access*/) {
  for (const BlockId id : blocks) {
    blocks_.Hold(id);
    RemoveEvictable(id);
  }
}

void ScorePolicy::Release(std::span<const BlockId> blocks, const Access& access) {
  for (const BlockId id : blocks) {
    Block& block = blocks_.Free(id);
    block.release_order = next_order_++;
    block.release_us = access.now_us;
    block.recompute_us = CostUs(block);
    slot_[static_cast<size_t>(id)] = static_cast<int32_t>(evictable_.size());
    evictable_.push_back(id);
    OnRelease(id, access);
  }
}

void ScorePolicy::Tick(int64_t /*now_us*/) {
  constexpr int kVisitedPerTick = 1024;
  if (tier_watch_.Moved()) {
    to_reweigh_ = blocks_.size();
  }
  for (int i = 0; i < kVisitedPerTick && to_reweigh_ > 0; ++i) {
    const auto id = static_cast<BlockId>(--to_reweigh_);
    if (blocks_[id].use != BlockUse::kUnknown) {
      Block& block = blocks_.At(id);
      block.recompute_us = CostUs(block);
    }
  }
}

void ScorePolicy::RemoveEvictable(BlockId id) {
  const auto slot = static_cast<size_t>(slot_[static_cast<size_t>(id)]);
  const BlockId last = evictable_.back();
  evictable_[slot] = last;
  slot_[static_cast<size_t>(last)] = static_cast<int32_t>(slot);
  evictable_.pop_back();
}

void ScorePolicy::Forget(BlockId id) {
  if (blocks_.At(id).use == BlockUse::kEvictable) {
    RemoveEvictable(id);
  }
  blocks_.Leave(id);
}

std::vector<BlockId> ScorePolicy::SelectVictims(size_t count, int64_t now_us) {
  KVIK_CHECK(count <= evictable_.size());
  struct Candidate {
    double score;
    uint64_t order;
    BlockId id;
    bool operator<(const Candidate& other) const {
      return score < other.score || (score == other.score && order < other.order);
    }
  };
  std::vector<BlockId> victims;
  victims.reserve(count);
  const auto take = [&](const Candidate& candidate) {
    OnEvict(candidate.id, candidate.score);
    Forget(candidate.id);
    victims.push_back(candidate.id);
  };
  const auto candidate = [&](BlockId id) {
    const Block& b = block(id);
    return Candidate{Score(b, id, now_us), b.release_order, id};
  };
  if (options_.selection == VictimSelection::kScan) {
    while (victims.size() < count) {
      Candidate least = candidate(evictable_.front());
      for (size_t i = 1; i < evictable_.size(); ++i) {
        least = std::min(least, candidate(evictable_[i]));
      }
      take(least);
    }
  } else if (count > 0) {
    std::vector<Candidate> all;
    all.reserve(evictable_.size());
    for (const BlockId id : evictable_) {
      all.push_back(candidate(id));
    }
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(all.begin(), end - 1, all.end());
    std::sort(all.begin(), end);
    std::for_each(all.begin(), end, take);
  }
  blocks_.CountVictims(count);
  return victims;
}

}  // namespace kvik::kv
