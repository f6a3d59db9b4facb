// SPDX-License-Identifier: Apache-2.0
#include "kv/hazard_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kv/kv_cache.h"

namespace kvik::kv {
namespace {

using testing::ElementsAre;

constexpr int32_t kBlock = 16;
constexpr int64_t kSecondUs = 1'000'000;

// A request for the first `blocks` blocks of a conversation, and a token more.
struct Ask {
  int64_t at_us = 0;
  uint64_t conversation = 0;
  int32_t blocks = 1;
  int32_t turn = 0;
  std::optional<bool> will_continue{};
};

ContentKey KeyOf(uint64_t conversation, int32_t index) {
  constexpr int32_t kShared = 2;  // the first blocks of all conversations
  Rng rng(index < kShared ? 0 : conversation + 1, static_cast<uint64_t>(index));
  ContentKey key;
  for (size_t i = 0; i < 4; ++i) {
    const uint64_t part = rng.Next();
    std::memcpy(key.hash.bytes.data() + 8 * i, &part, sizeof part);
  }
  return key;
}

// The real cache under one policy, with requests that take no time.
class Replay {
 public:
  // `state`: what the policy starts from.
  Replay(const std::string& policy, int32_t num_blocks, bool tell_sessions = true,
         const std::string& state = "")
      : tell_sessions_(tell_sessions) {
    auto made = MakeEvictionPolicy({.name = policy, .num_blocks = num_blocks}).value();
    EXPECT_TRUE(made->RestoreState(state).has_value());
    CacheOptions options;
    options.num_blocks = num_blocks;
    options.block_size_tokens = kBlock;
    cache_ = KvCache::Create(options, std::move(made)).value();
  }

  // The blocks of the request: where hits lie and which blocks were evicted shows in them.
  std::vector<BlockId> Serve(const Ask& ask) {
    cache_->AdvanceTime(ask.at_us);
    Sequence sequence = MakeSequence(ask);
    EXPECT_EQ(cache_->Admit(sequence, cache_->Plan(sequence, sequence.num_tokens())),
              AdmitOutcome::kAdmitted);
    num_missed_ += ask.blocks - sequence.num_hit_tokens() / kBlock;
    const auto runs = sequence.NextRuns(sequence.num_tokens());
    cache_->Allocate(sequence, runs);
    cache_->Commit(sequence, runs);
    std::vector<BlockId> table(sequence.block_table().begin(), sequence.block_table().end());
    cache_->Release(sequence);
    return table;
  }
  Sequence MakeSequence(const Ask& ask) {
    std::vector<ContentKey> keys;
    for (int32_t i = 0; i < ask.blocks; ++i) {
      keys.push_back(KeyOf(ask.conversation, i));
    }
    Sequence sequence(std::move(keys), ask.blocks * kBlock + 1, kBlock);
    sequence.facts().request = ++num_requests_;
    sequence.facts().session = tell_sessions_ ? ask.conversation + 1 : 0;
    sequence.facts().turn = tell_sessions_ ? ask.turn : 0;
    sequence.facts().prompt_tokens = sequence.num_tokens();
    sequence.facts().will_continue = ask.will_continue;
    return sequence;
  }
  bool Resident(uint64_t conversation, int32_t index) const {
    return cache_->index().Find(KeyOf(conversation, index), MinQuality{}) != kNoBlock;
  }
  // How many of the first `blocks` blocks of a conversation are there.
  int32_t NumResident(uint64_t conversation, int32_t blocks) const {
    int32_t count = 0;
    for (int32_t i = 0; i < blocks; ++i) {
      count += Resident(conversation, i) ? 1 : 0;
    }
    return count;
  }
  const HazardPolicy& policy() const { return dynamic_cast<const HazardPolicy&>(cache_->policy()); }
  KvCache& cache() { return *cache_; }
  int64_t num_missed() const { return num_missed_; }  // blocks

 private:
  std::unique_ptr<KvCache> cache_;
  bool tell_sessions_;
  uint64_t num_requests_ = 0;
  int64_t num_missed_ = 0;
};

// Conversations that grow by turns, some of which come back for long and others never.
std::vector<Ask> Conversations(uint64_t seed, int count) {
  Rng rng(seed);
  std::vector<Ask> asks;
  std::vector<Ask> open;
  int64_t now_us = 10 * kSecondUs;
  uint64_t next = 1000 * seed;
  while (asks.size() < static_cast<size_t>(count)) {
    now_us += static_cast<int64_t>(rng.Below(4 * kSecondUs));
    if (open.empty() || rng.Below(3) == 0) {
      open.push_back(
          {.conversation = next++, .blocks = 3 + static_cast<int32_t>(rng.Below(10)), .turn = 1});
    }
    const size_t i = rng.Below(open.size());
    open[i].at_us = now_us;
    asks.push_back(open[i]);
    open[i].blocks += static_cast<int32_t>(rng.Below(4));
    ++open[i].turn;
    if (rng.Below(2) == 0 || open[i].blocks > 30) {
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return asks;
}

class HazardForms : public testing::TestWithParam<std::string> {};

TEST_P(HazardForms, VictimsDependOnThePastOnly) {
  const std::vector<Ask> asks = Conversations(1, 1200);
  std::vector<Ask> shuffled = asks;
  for (size_t i = asks.size() / 2; i < asks.size(); ++i) {
    shuffled[i] = asks[asks.size() / 2 + (i * 7) % (asks.size() / 2)];
    shuffled[i].at_us = asks[i].at_us;
  }
  Replay whole(GetParam(), 60);
  Replay other(GetParam(), 60);
  Replay half(GetParam(), 60);
  std::vector<std::vector<BlockId>> tables;
  for (const Ask& ask : asks) {
    tables.push_back(whole.Serve(ask));
  }
  bool differs = false;
  for (size_t i = 0; i < asks.size(); ++i) {
    const auto table = other.Serve(shuffled[i]);
    if (i < asks.size() / 2) {
      ASSERT_EQ(table, tables[i]) << i;
      ASSERT_EQ(half.Serve(asks[i]), tables[i]) << i;
    }
    differs = differs || table != tables[i];
  }
  EXPECT_TRUE(differs);
  EXPECT_GT(whole.cache().stats().evictions, 1000);
}

TEST_P(HazardForms, WhatItRemembersIsBounded) {
  constexpr int32_t kBlocks = 8;
  Replay replay(GetParam(), kBlocks, /*tell_sessions=*/false);
  const size_t max = replay.policy().max_contents();
  for (int i = 0; i < 3000; ++i) {
    replay.Serve({.at_us = i * kSecondUs, .conversation = static_cast<uint64_t>(i), .blocks = 5});
    ASSERT_LE(replay.policy().num_contents(), max);
    ASSERT_LE(replay.policy().num_runs(), max + kBlocks);
  }
  EXPECT_EQ(replay.policy().num_contents(), max);
}

TEST_P(HazardForms, InferredSessionsAreAsGoodAsTold) {
  Replay told(GetParam(), 60);
  Replay inferred(GetParam(), 60, /*tell_sessions=*/false);
  SessionTracker tracker(1 << 20);
  for (Ask ask : Conversations(2, 600)) {
    std::vector<uint64_t> blocks;
    for (int32_t i = 0; i < ask.blocks; ++i) {
      blocks.push_back(KeyOf(ask.conversation, i).Digest());
    }
    ask.turn = tracker.Arrive(blocks).turn;
    ASSERT_EQ(told.Serve(ask), inferred.Serve(ask));
  }
}

TEST_P(HazardForms, RestoredStateGoesOnAsTheOriginal) {
  Replay original(GetParam(), 2000);
  const std::vector<Ask> past = Conversations(3, 300);
  for (const Ask& ask : past) {
    original.Serve(ask);
  }
  // Only what was learned is saved: the original forgets its contents, too.
  original.cache().Clear();
  const std::string state = original.policy().SaveState();
  const auto restored = MakeEvictionPolicy({.name = GetParam(), .num_blocks = 2000}).value();
  ASSERT_TRUE(restored->RestoreState(state).has_value());
  EXPECT_EQ(restored->SaveState(), state);

  // Two conversations of the same size: one of a kind that came back, one of a kind that did not.
  const auto victims = [&](EvictionPolicy& policy) {
    BlockId next = 0;
    for (const int32_t turn : {1, 2, 5, 3, 1, 4}) {
      std::vector<BlockId> blocks;
      for (int32_t i = 0; i < 10; ++i) {
        policy.Track({.block = next,
                      .first_pos = i * kBlock,
                      .content = KeyOf(7'000'000 + static_cast<uint64_t>(next), 5).Digest()});
        blocks.push_back(next++);
      }
      std::reverse(blocks.begin(), blocks.end());
      policy.Release(blocks, {.now_us = past.back().at_us + turn,
                              .request = {.session = static_cast<uint64_t>(next) + 9'000'000,
                                          .turn = turn,
                                          .prompt_tokens = 10 * kBlock}});
    }
    return policy.SelectVictims(50, past.back().at_us + 30 * kSecondUs);
  };
  auto& continued = const_cast<HazardPolicy&>(original.policy());
  const auto expected = victims(continued);
  EXPECT_EQ(victims(*restored), expected);
  const auto fresh = MakeEvictionPolicy({.name = GetParam(), .num_blocks = 2000}).value();
  EXPECT_NE(victims(*fresh), expected);
}

TEST_P(HazardForms, StateThatIsNotItsOwnIsRefusedAndChangesNothing) {
  Replay replay(GetParam(), 60);
  for (const Ask& ask : Conversations(4, 100)) {
    replay.Serve(ask);
  }
  const std::string good = replay.policy().SaveState();
  const auto policy = MakeEvictionPolicy({.name = GetParam(), .num_blocks = 60}).value();
  const std::string before = policy->SaveState();
  EXPECT_TRUE(policy->RestoreState("").has_value());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& bad :
       {std::string("["), std::string("[]"), std::string("{}"), good.substr(0, good.size() / 2),
        with("\"version\":1", "\"version\":2"), with("\"bins\":34", "\"bins\":33"),
        with("kvik.hazard", "kvik.other"), with("\"eviction_age_s\":", "\"eviction_age_s\":-"),
        with("\"node\":", "\"node\":9999999"), with("\"node\":", "\"node\":0.5,\"x\":"),
        with("\"returns\":[", "\"returns\":[1,"), with("\"waiting_s\":[", "\"waiting_s\":[[],"),
        with("\"nodes\":[", "\"nodes\":[7,")}) {
    const auto result = policy->RestoreState(bad);
    ASSERT_FALSE(result.has_value()) << bad.substr(0, 200);
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidInput);
    EXPECT_EQ(policy->SaveState(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, HazardForms, testing::Values("hazard", "hazard-prefix"),
                         [](const auto& param) {
                           return param.param == "hazard" ? "Gaps" : "Prefix";
                         });

TEST(HazardPolicy, TheClientsWordCounts) {
  for (const std::string form : {"hazard", "hazard-prefix"}) {
    Replay replay(form, 40);
    // In an order that is wrong for LRU: the one that goes on is the oldest.
    replay.Serve({.at_us = 1 * kSecondUs,
                  .conversation = 1,
                  .blocks = 10,
                  .turn = 1,
                  .will_continue = true});
    replay.Serve({.at_us = 2 * kSecondUs, .conversation = 2, .blocks = 10, .turn = 1});
    replay.Serve({.at_us = 3 * kSecondUs,
                  .conversation = 3,
                  .blocks = 10,
                  .turn = 1,
                  .will_continue = false});
    replay.Serve({.at_us = 4 * kSecondUs, .conversation = 4, .blocks = 20, .turn = 1});
    EXPECT_EQ(replay.NumResident(1, 10), 10) << form;
    EXPECT_EQ(replay.NumResident(2, 10), 10) << form;
    EXPECT_LT(replay.NumResident(3, 10), 10) << form;
    replay.Serve({.at_us = 5 * kSecondUs, .conversation = 5, .blocks = 14, .turn = 1});
    EXPECT_EQ(replay.NumResident(1, 10), 10) << form;
    EXPECT_EQ(replay.NumResident(3, 10), 2) << form;  // what all conversations share
  }
}

TEST(HazardPolicy, LearnsWhichRequestsComeBack) {
  // First turns never come back, second ones (which come from elsewhere) always do, later.
  Replay replay("hazard", 100);
  int64_t now_us = 0;
  uint64_t next = 1;
  std::vector<uint64_t> loyal;
  for (int round = 0; round < 200; ++round) {
    now_us += 10 * kSecondUs;
    loyal.push_back(next++);
    replay.Serve({.at_us = now_us, .conversation = loyal.back(), .blocks = 10, .turn = 2});
    if (loyal.size() >= 4) {
      replay.Serve(
          {.at_us = now_us, .conversation = loyal[loyal.size() - 4], .blocks = 10, .turn = 5});
    }
    for (int i = 0; i < 4; ++i) {
      replay.Serve({.at_us = now_us, .conversation = next++, .blocks = 10, .turn = 1});
    }
    if (round > 100) {
      EXPECT_GE(replay.NumResident(loyal[loyal.size() - 2], 10), 9) << round;
    }
  }
}

TEST(HazardPolicy, TakesTheShallowEndOfARunInOnePiece) {
  Replay replay("hazard", 61);
  replay.Serve({.at_us = 1, .conversation = 1, .blocks = 30, .turn = 1});
  replay.Serve({.at_us = 2, .conversation = 2, .blocks = 30, .turn = 1});
  replay.Serve({.at_us = 60 * kSecondUs, .conversation = 3, .blocks = 10, .turn = 1});
  for (const uint64_t conversation : {1, 2}) {
    // [shared head] [gap] [rest]
    int changes = 0;
    for (int32_t i = 1; i < 30; ++i) {
      changes += replay.Resident(conversation, i) != replay.Resident(conversation, i - 1) ? 1 : 0;
    }
    EXPECT_LE(changes, 2) << conversation;
    EXPECT_TRUE(replay.Resident(conversation, 29));
  }
}

// With requests of no duration nothing is held when victims are chosen, but by the new request.
TEST(HazardPrefix, AParentNeverGoesBeforeItsChild) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Replay replay("hazard-prefix", 70);
    Rng rng(seed);
    std::vector<std::pair<uint64_t, int32_t>> lengths;
    for (Ask ask : Conversations(seed + 10, 500)) {
      if (rng.Below(4) == 0) {  // a branch off an earlier part
        ask.blocks = 1 + static_cast<int32_t>(rng.Below(static_cast<uint64_t>(ask.blocks)));
      }
      replay.Serve(ask);
      lengths.emplace_back(ask.conversation, ask.blocks);
      for (const auto& [conversation, blocks] : lengths) {
        for (int32_t i = 1; i < blocks; ++i) {
          ASSERT_TRUE(replay.Resident(conversation, i - 1) || !replay.Resident(conversation, i));
        }
      }
      if (lengths.size() > 60) {
        lengths.erase(lengths.begin());
      }
    }
    EXPECT_GT(replay.cache().stats().evictions, 500);
  }
}

TEST(HazardPrefix, ParentsOfHeldChildrenGoWhenNothingElseIsLeft) {
  const auto policy = MakeEvictionPolicy({.name = "hazard-prefix", .num_blocks = 4}).value();
  policy->Track({.block = 0, .first_pos = 0, .content = 10});
  policy->Track({.block = 1, .first_pos = 16, .content = 11, .parent = 10});
  policy->Track({.block = 2, .first_pos = 0, .content = 20});
  policy->Release(std::vector<BlockId>{0}, {.now_us = 1});
  policy->Release(std::vector<BlockId>{2}, {.now_us = 2});
  EXPECT_THAT(policy->SelectVictims(1, 3), ElementsAre(2));
  EXPECT_THAT(policy->SelectVictims(1, 4), ElementsAre(0));
  EXPECT_EQ(policy->stats().tracked, 1);
  // The content that comes back in another block is the parent again.
  policy->Track({.block = 3, .first_pos = 0, .content = 10});
  policy->Track({.block = 2, .first_pos = 0, .content = 30});
  policy->Release(std::vector<BlockId>{3}, {.now_us = 5});
  policy->Release(std::vector<BlockId>{2}, {.now_us = 6});
  EXPECT_THAT(policy->SelectVictims(1, 7), ElementsAre(2));
}

// Conversations of one turn come back within half a minute, those of another never.
class ReturnsByTurn {
 public:
  ReturnsByTurn(int32_t good_turn, int32_t bad_turn) : good_turn_(good_turn), bad_turn_(bad_turn) {}

  void ServeRound(Replay& replay) {
    now_us_ += 5 * kSecondUs;
    replay.Serve({.at_us = now_us_, .conversation = next_, .blocks = 10, .turn = good_turn_});
    waiting_.push_back(next_++);
    replay.Serve({.at_us = now_us_, .conversation = next_++, .blocks = 10, .turn = bad_turn_});
    if (waiting_.size() > 5) {
      const auto i = static_cast<std::ptrdiff_t>(rng_.Below(waiting_.size()));
      replay.Serve({.at_us = now_us_,
                    .conversation = waiting_[static_cast<size_t>(i)],
                    .blocks = 10,
                    .turn = 8});
      waiting_.erase(waiting_.begin() + i);
    }
  }

 private:
  int32_t good_turn_;
  int32_t bad_turn_;
  Rng rng_{1};
  int64_t now_us_ = 0;
  uint64_t next_ = 1;
  std::vector<uint64_t> waiting_;
};

TEST(HazardPolicy, LruTakesOverWhenWhatWasLearnedIsWrongAndGivesBackLater) {
  constexpr int32_t kBlocks = 120;
  Replay past("hazard", kBlocks);
  ReturnsByTurn world(1, 4);
  for (int i = 0; i < 1000; ++i) {
    world.ServeRound(past);
  }
  EXPECT_EQ(past.policy().guard().hand_overs(), 0);

  Replay present("hazard", kBlocks, /*tell_sessions=*/true, past.policy().SaveState());
  ReturnsByTurn new_world(4, 1);
  Replay lru("lru", kBlocks);
  ReturnsByTurn same_world(4, 1);
  bool lru_chose = false;
  for (int i = 0; i < 3000; ++i) {
    new_world.ServeRound(present);
    same_world.ServeRound(lru);
    lru_chose = lru_chose || present.policy().guard().use_lru();
  }
  EXPECT_TRUE(lru_chose);
  EXPECT_FALSE(present.policy().guard().use_lru());
  EXPECT_LE(static_cast<double>(present.num_missed()),
            1.01 * static_cast<double>(lru.num_missed()));
}

}  // namespace
}  // namespace kvik::kv
