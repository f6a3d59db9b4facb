// SPDX-License-Identifier: Apache-2.0
// kv/testing/toy_cache.h: random conversations over a cache that is only bookkeeping, to drive
// eviction policies with every kind of event in the order a real cache would send them.
//
// All policies hear the same and must choose the same victims. Conversations share their first
// blocks, grow turn by turn, overlap in time, end in tool calls at random and come back after their
// blocks are gone. Failures are reported through gtest.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kv/eviction_policy.h"

namespace kvik::kv {

struct ToyCacheOptions {
  uint64_t seed = 0;
  int32_t num_blocks = 60;
  uint64_t conversations = 12;
  int32_t max_length = 12;  // blocks of a conversation
  int32_t shared = 2;       // of which the first are the same for all
  size_t max_active = 3;    // requests at one time
  double max_pause_s = 30;  // between events; log-uniform, a third of them at one time
  bool tool_calls = true;
  bool reuse = true;  // else a request with a resident block does not come
  // Requests say whether they go on and what is to be retained, and which tool they call.
  bool outspoken = false;
};

class ToyCache {
 public:
  ToyCache(const ToyCacheOptions& options, std::vector<EvictionPolicy*> policies)
      : options_(options), policies_(std::move(policies)), rng_(options.seed) {
    for (BlockId id = options.num_blocks - 1; id >= 0; --id) {
      free_.push_back(id);
    }
    blocks_.resize(static_cast<size_t>(options.num_blocks));
    lengths_.resize(options.conversations, 1);
  }

  // Hear all that the policies hear but choose no victims.
  std::vector<EvictionPolicy*> observers;
  // Hears of victims before they are gone, in order; `now_us` as the policies were told.
  std::function<void(const std::vector<BlockId>& victims, int64_t now_us)> on_victims;

  void Step() {
    if (rng_.Below(3) != 0) {
      now_us_ +=
          static_cast<int64_t>(std::exp(std::log(options_.max_pause_s * 1e6) * rng_.Uniform()));
    }
    ForAll([&](EvictionPolicy& policy) { policy.Tick(now_us_); });
    const uint64_t what = rng_.Below(20);
    if (what == 0) {
      ForgetSome();
    } else if (what < 10 && active_.size() < options_.max_active) {
      Start();
    } else if (!active_.empty()) {
      Finish(rng_.Below(active_.size()));
    }
    Check();
  }

  [[nodiscard]] int64_t num_victims() const { return num_victims_; }
  [[nodiscard]] int64_t now_us() const { return now_us_; }
  [[nodiscard]] const std::set<BlockId>& evictable() const { return evictable_; }
  // Of every victim since the start, in order.
  [[nodiscard]] const std::vector<BlockId>& victims() const { return victims_; }

 private:
  struct Block {
    uint64_t content = 0;
    bool tracked = false;  // else nobody knows it: a second copy of a content
    int users = 0;
  };
  struct Request {
    RequestFacts facts;
    std::vector<BlockId> table;
  };

  template <typename F>
  void ForAll(F&& f) {
    for (EvictionPolicy* policy : policies_) {
      f(*policy);
    }
    for (EvictionPolicy* observer : observers) {
      f(*observer);
    }
  }
  Block& At(BlockId id) { return blocks_[static_cast<size_t>(id)]; }

  [[nodiscard]] uint64_t Content(uint64_t conversation, int32_t index) const {
    return Rng(index < options_.shared ? 0 : conversation + 1, static_cast<uint64_t>(index)).Next();
  }

  void Start() {
    const uint64_t conversation = rng_.Below(options_.conversations);
    int32_t& length = lengths_[conversation];
    length = rng_.Below(8) == 0
                 ? 1
                 : std::min(options_.max_length, length + static_cast<int32_t>(rng_.Below(4)));
    const bool prefix_only = policies_.front()->hits() == HitScope::kPrefix;
    std::vector<BlockId> used;
    std::vector<BlockId> touched;
    std::vector<uint64_t> missed;
    Request request;
    request.facts = {.request = ++num_requests_, .session = conversation + 1};
    request.table.assign(static_cast<size_t>(length), kNoBlock);
    for (int32_t i = 0; i < length; ++i) {
      const auto it = resident_.find(Content(conversation, i));
      if (it == resident_.end() || (prefix_only && !missed.empty())) {
        missed.push_back(Content(conversation, i));
        continue;
      }
      request.table[static_cast<size_t>(i)] = it->second;
      used.push_back(it->second);
      if (At(it->second).users == 0) {
        touched.push_back(it->second);
      }
    }
    request.facts.prompt_tokens = length * 16 - 8;
    if (options_.outspoken) {
      SpeakOut(request.facts);
    }
    if (!options_.reuse && !used.empty()) {
      return;
    }
    if (missed.size() > free_.size() + evictable_.size() - touched.size()) {
      return;  // no room
    }
    const Access access{now_us_, request.facts};
    for (const BlockId id : used) {
      ++At(id).users;
      evictable_.erase(id);
    }
    ForAll([&](EvictionPolicy& policy) {
      policy.Hit(used, access);
      policy.Touch(touched, access);
      policy.Missed(missed, access);
    });
    MakeRoom(missed.size());
    for (int32_t i = 0; i < length; ++i) {
      BlockId& slot = request.table[static_cast<size_t>(i)];
      if (slot == kNoBlock) {
        slot = free_.back();
        free_.pop_back();
        Fill(slot, Content(conversation, i), i);
      }
    }
    active_.push_back(std::move(request));
  }

  void SpeakOut(RequestFacts& facts) {
    if (rng_.Below(3) == 0) {
      facts.will_continue = rng_.Below(2) == 0;
    }
    if (rng_.Below(3) != 0) {
      return;
    }
    Retention retention;
    for (uint64_t i = rng_.Below(3); i > 0; --i) {
      const auto start =
          static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(facts.prompt_tokens)));
      retention.ranges.push_back({.start_token = start,
                                  .end_token = start + 1 + static_cast<int32_t>(rng_.Below(100)),
                                  .priority = static_cast<int32_t>(rng_.Below(101)),
                                  .duration_us = Duration()});
    }
    retention.decode_priority = static_cast<int32_t>(rng_.Below(101));
    retention.decode_duration_us = Duration();
    facts.retention = std::make_shared<const Retention>(std::move(retention));
  }
  int64_t Duration() {
    return rng_.Below(2) == 0 ? kForGood : 1 + static_cast<int64_t>(rng_.Below(30'000'000));
  }

  void Fill(BlockId id, uint64_t content, int32_t index) {
    const bool is_new = resident_.emplace(content, id).second;
    At(id) = Block{content, is_new, 1};
    if (is_new) {
      ForAll([&](EvictionPolicy& policy) {
        policy.Track({.block = id, .first_pos = index * 16, .content = content});
      });
    }
  }

  void MakeRoom(size_t blocks) {
    const size_t count = blocks - std::min(blocks, free_.size());
    std::vector<BlockId> victims = policies_.front()->SelectVictims(count, now_us_);
    ASSERT_EQ(victims.size(), count);
    if (on_victims) {
      on_victims(victims, now_us_);
    }
    for (size_t i = 1; i < policies_.size(); ++i) {
      ASSERT_EQ(policies_[i]->SelectVictims(count, now_us_), victims)
          << policies_[i]->name() << " (policy " << i << ") and " << policies_[0]->name();
    }
    for (const BlockId id : victims) {
      ASSERT_EQ(evictable_.erase(id), 1U) << "block " << id << " is held, or went before";
      Drop(id);
    }
    num_victims_ += static_cast<int64_t>(count);
    victims_.insert(victims_.end(), victims.begin(), victims.end());
  }

  void Drop(BlockId id) {
    resident_.erase(At(id).content);
    At(id) = Block{};
    free_.push_back(id);
  }

  void Finish(size_t which) {
    std::swap(active_[which], active_.back());
    Request request = std::move(active_.back());
    active_.pop_back();
    request.facts.tool_call = options_.tool_calls && rng_.Below(3) == 0;
    if (options_.outspoken && request.facts.tool_call) {
      request.facts.tool = rng_.Below(4);
    }
    std::vector<BlockId> released;
    for (auto it = request.table.rbegin(); it != request.table.rend(); ++it) {
      if (--At(*it).users > 0) {
        continue;
      }
      if (At(*it).tracked) {
        released.push_back(*it);
        evictable_.insert(*it);
      } else {
        At(*it) = Block{};
        free_.push_back(*it);
      }
    }
    ForAll([&](EvictionPolicy& policy) {
      policy.Release(released, Access{now_us_, request.facts, request.table});
    });
  }

  void ForgetSome() {
    for (auto it = evictable_.begin(); it != evictable_.end();) {
      if (rng_.Below(20) == 0) {
        ForAll([&](EvictionPolicy& policy) { policy.Forget(*it); });
        Drop(*it);
        it = evictable_.erase(it);
      } else {
        ++it;
      }
    }
  }

  void Check() {
    for (const EvictionPolicy* policy : policies_) {
      const PolicyStats stats = policy->stats();
      ASSERT_EQ(stats.evictable, static_cast<int64_t>(evictable_.size()));
      ASSERT_EQ(stats.tracked, static_cast<int64_t>(resident_.size()));
      ASSERT_EQ(stats.evicted, num_victims_);
    }
  }

  ToyCacheOptions options_;
  std::vector<EvictionPolicy*> policies_;
  Rng rng_;
  int64_t now_us_ = 5'000'000;
  std::vector<BlockId> free_;
  std::vector<Block> blocks_;
  std::map<uint64_t, BlockId> resident_;  // by content
  std::set<BlockId> evictable_;
  std::vector<int32_t> lengths_;  // [conversations] blocks, now
  std::vector<Request> active_;
  uint64_t num_requests_ = 0;
  int64_t num_victims_ = 0;
  std::vector<BlockId> victims_;
};

}  // namespace kvik::kv
