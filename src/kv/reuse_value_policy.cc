// SPDX-License-Identifier: Apache-2.0
#include "kv/reuse_value_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kvik::kv {
namespace {

std::vector<ReuseCurve> FirstCurves(const PolicyOptions& options,
                                    const ReuseStatistics& statistics) {
  std::vector<ReuseCurve> curves;
  for (const ReuseClass cls : {ReuseClass::kChat, ReuseClass::kTool}) {
    curves.emplace_back(options.reuse_prob, options.slope_ratio, statistics.lifespan_s(cls));
  }
  return curves;
}

}  // namespace

ReuseValuePolicy::ReuseValuePolicy(const PolicyOptions& options, bool all_uses)
    : options_(options),
      all_uses_(all_uses),
      statistics_(options.lifespan_s, options.num_blocks),
      index_(options.num_blocks, options.selection, FirstCurves(options, statistics_)),
      blocks_(options.num_blocks),
      tier_watch_(options.tier.get(), options.block_size_tokens),
      now_us_(std::numeric_limits<int64_t>::min()) {}

int64_t ReuseValuePolicy::Now(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  return now_us_;
}

void ReuseValuePolicy::Use(Block& block, int64_t now_us) {
  if (all_uses_ && block.used) {
    block.uses.Use(index_.curve(static_cast<int32_t>(block.release.cls)), now_us);
  } else {
    block.uses = DecayedUses::Once(now_us);
  }
  block.used = true;
}

void ReuseValuePolicy::Track(const TrackedBlock& tracked) {
  blocks_.Track(tracked.block, {.first_pos = tracked.first_pos, .content = tracked.content});
}

void ReuseValuePolicy::Hit(std::span<const BlockId> blocks, const Access& access) {
  const int64_t now_us = Now(access.now_us);
  // Blocks of one release come together: one sample for all of them.
  const LastRelease* group = nullptr;
  int64_t group_size = 0;
  const auto sample = [&] {
    if (group != nullptr) {
      statistics_.Returned(*group, now_us, group_size);
    }
  };
  for (const BlockId id : blocks) {
    Block& block = blocks_.At(id);
    if (block.use == BlockUse::kHeld) {
      Use(block, now_us);
      continue;
    }
    if (group == nullptr || group->time_us != block.release.time_us ||
        group->cls != block.release.cls || block.release.awaits_return) {
      sample();
      group = &block.release;
      group_size = 0;
    }
    ++group_size;
  }
  sample();
}

void ReuseValuePolicy::Missed(std::span<const uint64_t> contents, const Access& access) {
  statistics_.Missed(contents, Now(access.now_us));
}

void ReuseValuePolicy::Touch(std::span<const BlockId> blocks, const Access& access) {
  Now(access.now_us);
  for (const BlockId id : blocks) {
    RemoveEvictable(id);
    blocks_.Hold(id).release.awaits_return = false;
  }
}

void ReuseValuePolicy::Release(std::span<const BlockId> blocks, const Access& access) {
  if (blocks.empty()) {
    return;
  }
  const int64_t now_us = Now(access.now_us);
  const ReuseClass cls = access.request.tool_call ? ReuseClass::kTool : ReuseClass::kChat;
  const double ln_return_factor = statistics_.LnReturnFactor(cls);
  for (const BlockId id : blocks) {
    Block& block = blocks_.Free(id);
    Use(block, now_us);
    block.release = LastRelease{now_us, cls, id == blocks.front()};
    block.ln_return_factor = ln_return_factor;
  }
  statistics_.Departed(cls);
  AddEvictable(blocks);
}

void ReuseValuePolicy::Forget(BlockId id) {
  if (blocks_.At(id).use == BlockUse::kEvictable) {
    RemoveEvictable(id);
  }
  OnGone(id);
  blocks_.Leave(id);
}

std::vector<BlockId> ReuseValuePolicy::SelectVictims(size_t count, int64_t now_us) {
  KVIK_CHECK(count <= static_cast<size_t>(blocks_.stats().evictable));
  std::vector<BlockId> victims = PopVictims(count, Now(now_us));
  KVIK_CHECK(victims.size() == count);
  for (const BlockId id : victims) {
    const Block& block = blocks_.At(id);
    KVIK_CHECK(block.use == BlockUse::kEvictable, "block %d is held", id);
    statistics_.Evicted(block.content, block.release);
    blocks_.Leave(id);
  }
  blocks_.CountVictims(count);
  return victims;
}

void ReuseValuePolicy::FollowLifespans() {
  for (const ReuseClass cls : {ReuseClass::kChat, ReuseClass::kTool}) {
    index_.SetLifespan(static_cast<int32_t>(cls), statistics_.lifespan_s(cls));
  }
}

void ReuseValuePolicy::Tick(int64_t now_us) {
  if (statistics_.Tick(Now(now_us))) {
    FollowLifespans();
  }
  index_.Tick(now_us_);
  FollowTier();
}

void ReuseValuePolicy::FollowTier() {
  constexpr int kVisitedPerTick = 256;
  if (tier_watch_.Moved()) {
    to_reweigh_ = blocks_.size();
  }
  for (int i = 0; i < kVisitedPerTick && to_reweigh_ > 0; ++i) {
    const auto id = static_cast<BlockId>(--to_reweigh_);
    if (blocks_[id].use == BlockUse::kEvictable) {
      Reweigh(id);
    }
  }
}

std::vector<PolicyReading> ReuseValuePolicy::Readings() const {
  static constexpr const char* kLifespan = "P99 of the times between uses of a block.";
  return {{"lifespan_seconds", kLifespan, "chat", statistics_.lifespan_s(ReuseClass::kChat)},
          {"lifespan_seconds", kLifespan, "tool", statistics_.lifespan_s(ReuseClass::kTool)},
          {"tool_call_return_factor", "How much likelier a return is after a tool call.", "",
           std::exp(statistics_.LnReturnFactor(ReuseClass::kTool))},
          {"ghosts", "Evicted contents remembered.", "",
           static_cast<double>(statistics_.ghosts().size())}};
}

Result<void> ReuseValuePolicy::RestoreState(std::string_view state) {
  if (state.empty()) {
    return {};
  }
  KVIK_TRY(statistics_.RestoreState(state));
  FollowLifespans();
  return {};
}

}  // namespace kvik::kv
