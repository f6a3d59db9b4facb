// SPDX-License-Identifier: Apache-2.0
#include "kv/score_policy.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvik::kv {

ScorePolicy::ScorePolicy(const PolicyOptions& options)
    : options_(options),
      blocks_(static_cast<size_t>(options.num_blocks)),
      slot_(static_cast<size_t>(options.num_blocks)) {}

ScorePolicy::Block& ScorePolicy::At(BlockId id) {
  KVIK_CHECK(id >= 0 && static_cast<size_t>(id) < blocks_.size());
  return blocks_[static_cast<size_t>(id)];
}

ScorePolicy::Block& ScorePolicy::At(BlockId id, State expected) {
  Block& block = At(id);
  KVIK_CHECK(block.state == expected, "block %d is in the wrong state for the policy", id);
  return block;
}

void ScorePolicy::Track(const TrackedBlock& tracked) {
  Block& block = At(tracked.block, State::kUnknown);
  block = Block{};
  block.state = State::kHeld;
  block.first_pos = tracked.first_pos;
  block.content = tracked.content;
  block.uses = 1;
  block.recompute_us = options_.cost.RecomputeUs(tracked.first_pos, options_.block_size_tokens);
  ++stats_.tracked;
  OnTrack(tracked.block);
}

void ScorePolicy::Hit(std::span<const BlockId> blocks, const Access& access) {
  for (const BlockId id : blocks) {
    Block& block = At(id);
    KVIK_CHECK(block.state != State::kUnknown, "block %d is not tracked", id);
    ++block.uses;
    OnHit(id, access);
  }
}

void ScorePolicy::Touch(std::span<const BlockId> blocks, const Access& /*access*/) {
  for (const BlockId id : blocks) {
    At(id, State::kEvictable).state = State::kHeld;
    RemoveEvictable(id);
  }
}

void ScorePolicy::Release(std::span<const BlockId> blocks, const Access& access) {
  for (const BlockId id : blocks) {
    Block& block = At(id, State::kHeld);
    block.state = State::kEvictable;
    block.release_order = next_order_++;
    block.release_us = access.now_us;
    slot_[static_cast<size_t>(id)] = static_cast<int32_t>(evictable_.size());
    evictable_.push_back(id);
    ++stats_.evictable;
    OnRelease(id, access);
  }
}

void ScorePolicy::RemoveEvictable(BlockId id) {
  const auto slot = static_cast<size_t>(slot_[static_cast<size_t>(id)]);
  const BlockId last = evictable_.back();
  evictable_[slot] = last;
  slot_[static_cast<size_t>(last)] = static_cast<int32_t>(slot);
  evictable_.pop_back();
  --stats_.evictable;
}

void ScorePolicy::Forget(BlockId id) {
  Block& block = At(id);
  KVIK_CHECK(block.state != State::kUnknown, "block %d is not tracked", id);
  if (block.state == State::kEvictable) {
    RemoveEvictable(id);
  }
  block.state = State::kUnknown;
  --stats_.tracked;
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
  stats_.evicted += static_cast<int64_t>(count);
  return victims;
}

}  // namespace kvik::kv
