// SPDX-License-Identifier: Apache-2.0
#include "kv/withholding_policy.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvik::kv {

WithholdingPolicy::WithholdingPolicy(std::unique_ptr<EvictionPolicy> inner, int32_t num_blocks,
                                     double max_pinned_share)
    : inner_(std::move(inner)),
      max_pinned_(static_cast<int64_t>(max_pinned_share * num_blocks)),
      places_(static_cast<size_t>(num_blocks)) {}

WithholdingPolicy::Turn WithholdingPolicy::TurnOf(const Group& group, int32_t id) {
  const bool early = group.verdict.priority < kDefaultPriority;
  return {group.verdict.priority, early ? 0 : group.verdict.until_us, group.order, id};
}

void WithholdingPolicy::Touch(std::span<const BlockId> blocks, const Access& access) {
  if (withheld_ == 0) {
    inner_->Touch(blocks, access);
    return;
  }
  passed_.clear();
  for (const BlockId block : blocks) {
    if (IsWithheld(block)) {
      Drop(block);
    } else {
      passed_.push_back(block);
    }
  }
  inner_->Touch(passed_, access);
}

bool WithholdingPolicy::FitsPinned(std::span<const Verdict> verdicts) const {
  return pinned_ + std::count_if(verdicts.begin(), verdicts.end(),
                                 [](const Verdict& v) { return v.pin; }) <=
         max_pinned_;
}

void WithholdingPolicy::Release(std::span<const BlockId> blocks, const Access& access) {
  verdicts_.clear();
  Judge(blocks, access, verdicts_);
  if (verdicts_.empty()) {
    inner_->Release(blocks, access);
    return;
  }
  KVIK_CHECK(verdicts_.size() == blocks.size());
  if (!FitsPinned(verdicts_)) {
    for (Verdict& verdict : verdicts_) {
      verdict = verdict.pin ? Verdict{} : verdict;
    }
  }
  passed_.clear();
  for (size_t begin = 0; begin < blocks.size();) {
    size_t end = begin + 1;
    while (end < blocks.size() && verdicts_[end] == verdicts_[begin]) {
      ++end;
    }
    const auto equal = blocks.subspan(begin, end - begin);
    if (verdicts_[begin].priority == kDefaultPriority) {
      passed_.insert(passed_.end(), equal.begin(), equal.end());
    } else {
      Withhold(equal, verdicts_[begin], access);
    }
    begin = end;
  }
  // Even if nothing is left: the policy below must hear that the request has ended.
  inner_->Release(passed_, access);
}

void WithholdingPolicy::Withhold(std::span<const BlockId> blocks, const Verdict& verdict,
                                 const Access& access) {
  auto id = static_cast<int32_t>(groups_.size());
  if (free_groups_.empty()) {
    groups_.emplace_back();
  } else {
    id = free_groups_.back();
    free_groups_.pop_back();
  }
  Group& group = GroupAt(id);
  group = Group{.verdict = verdict,
                .order = next_order_++,
                .request = access.request,
                .blocks = {blocks.begin(), blocks.end()},
                .left = static_cast<int32_t>(blocks.size())};
  group.request.retention = nullptr;  // it has had its say
  for (size_t i = 0; i < blocks.size(); ++i) {
    Place& place = places_[static_cast<size_t>(blocks[i])];
    KVIK_CHECK(place.group == kNone, "block %d is evictable already", blocks[i]);
    place = Place{id, static_cast<int32_t>(i)};
  }
  turns_.insert(TurnOf(group, id));
  if (verdict.until_us != kForGood) {
    expiries_.insert({verdict.until_us, group.order, id});
  }
  withheld_ += group.left;
  pinned_ += verdict.pin ? group.left : 0;
}

void WithholdingPolicy::Drop(BlockId block) {
  const Place place = std::exchange(places_[static_cast<size_t>(block)], Place{});
  Group& group = GroupAt(place.group);
  group.blocks[static_cast<size_t>(place.index)] = kNoBlock;
  --withheld_;
  pinned_ -= group.verdict.pin ? 1 : 0;
  if (--group.left == 0) {
    EndGroup(place.group);
  }
}

void WithholdingPolicy::EndGroup(int32_t id) {
  Group& group = GroupAt(id);
  turns_.erase(TurnOf(group, id));
  if (group.verdict.until_us != kForGood) {
    expiries_.erase({group.verdict.until_us, group.order, id});
  }
  group = Group{};
  free_groups_.push_back(id);
}

void WithholdingPolicy::Forget(BlockId block) {
  if (IsWithheld(block)) {
    Drop(block);
  }
  inner_->Forget(block);
}

void WithholdingPolicy::Expire(int64_t now_us) {
  while (!expiries_.empty() && expiries_.begin()->until_us <= now_us) {
    const int32_t id = expiries_.begin()->group;
    const Access access{now_us, GroupAt(id).request};
    std::vector<BlockId> blocks = std::move(GroupAt(id).blocks);
    std::erase(blocks, kNoBlock);
    for (const BlockId block : blocks) {
      places_[static_cast<size_t>(block)] = Place{};
    }
    const auto count = static_cast<int64_t>(blocks.size());
    withheld_ -= count;
    pinned_ -= GroupAt(id).verdict.pin ? count : 0;
    EndGroup(id);
    inner_->Release(blocks, access);
  }
}

void WithholdingPolicy::Tick(int64_t now_us) {
  Expire(now_us);
  inner_->Tick(now_us);
}

void WithholdingPolicy::TakeWithheld(bool below_default, size_t count,
                                     std::vector<BlockId>& victims) {
  while (victims.size() < count && !turns_.empty() &&
         (!below_default || turns_.begin()->priority < kDefaultPriority)) {
    const int32_t id = turns_.begin()->group;
    int32_t left = GroupAt(id).left;
    for (; left > 0 && victims.size() < count; ++GroupAt(id).first) {
      const BlockId block = GroupAt(id).blocks[GroupAt(id).first];
      if (block != kNoBlock) {
        --left;
        victims.push_back(block);
      }
    }
    // Dropping the last one ends the group.
    const auto taken = static_cast<size_t>(GroupAt(id).left - left);
    for (size_t i = victims.size() - taken; i < victims.size(); ++i) {
      Drop(victims[i]);
      inner_->Forget(victims[i]);
    }
    evicted_ += static_cast<int64_t>(taken);
  }
}

std::vector<BlockId> WithholdingPolicy::SelectVictims(size_t count, int64_t now_us) {
  Expire(now_us);
  if (withheld_ == 0) {
    return inner_->SelectVictims(count, now_us);
  }
  KVIK_CHECK(count <= static_cast<size_t>(stats().evictable));
  std::vector<BlockId> victims;
  victims.reserve(count);
  TakeWithheld(/*below_default=*/true, count, victims);
  const size_t chosen =
      std::min(count - victims.size(), static_cast<size_t>(inner_->stats().evictable));
  if (chosen > 0) {
    const std::vector<BlockId> inner = inner_->SelectVictims(chosen, now_us);
    victims.insert(victims.end(), inner.begin(), inner.end());
  }
  TakeWithheld(/*below_default=*/false, count, victims);
  KVIK_CHECK(victims.size() == count);
  return victims;
}

PolicyStats WithholdingPolicy::stats() const {
  PolicyStats stats = inner_->stats();
  stats.evictable += withheld_;
  stats.pinned += pinned_;
  stats.evicted += evicted_;
  return stats;
}

}  // namespace kvik::kv
