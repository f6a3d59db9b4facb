// SPDX-License-Identifier: Apache-2.0
// Random schedules of everything that can happen between the engine and a store elsewhere.
//
// The store is made of what the engine offered; it loses, distorts, delays and withholds, writes
// garbage into blocks until the moment it confirms them, gives up when asked, answers late or
// never, and keeps writing for requests that are gone. Requests come, are aborted, fail and preempt
// each other; the cache loses blocks at random. Whatever happens: exact requests say what they say
// alone, what the index or an offer calls exact is exact, sealed bytes do not change, every prompt
// token has one source, and in the end every block is back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/testing/fake_connector.h"
#include "engine/testing/fake_executor.h"
#include "engine/testing/known_kv.h"
#include "engine/testing/requests.h"
#include "kv/testing/each_policy.h"

namespace kvik::engine {
namespace {

using kv::BlockQuality;
using kv::BlockRange;
using kv::ContentKey;
using kv::Fidelity;
using Ticket = FakeConnector::Ticket;

constexpr int32_t kBlock = 16;

// A connector with a store behind it, driven by a random stream.
class RandomStore {
 public:
  struct Stored {
    KnownKv::Slots slots;
    BlockQuality quality;
  };

  RandomStore(uint64_t seed, kv::FakeKv& kv, const Clock& clock)
      : rng_(seed, 1), kv_(kv), clock_(clock) {
    connector.on_ask = [this](Ticket& ticket) {
      if (rng_.Below(3) != 0) {
        connector.Push(kv::Answered{ticket.request.ticket});
      } else if (rng_.Below(3) != 0) {
        answers_.push_back(ticket.request.ticket);
      }
    };
    connector.on_claim = [this](Ticket& ticket, int32_t, std::span<const BlockRange> missing) {
      return Claim(ticket, missing);
    };
    connector.on_yield = [this](Ticket& ticket, int32_t front) { return Yield(ticket, front); };
    connector.on_close = [this](Ticket& ticket) {
      if (rng_.Below(2) == 0) {
        FailSome(ticket, kv::LoadEnd::kGivenUp);
      }
      return nullptr;
    };
    connector.on_offer = [this](const kv::SealedBlocks& sealed) { return Offer(sealed); };
    connector.on_need_room = [this](int32_t) { ReleaseAll(); };
  }

  FakeConnector connector;

  // What its threads do between two steps.
  void Work() {
    for (size_t i = 0; i < answers_.size();) {
      if (rng_.Below(4) == 0) {
        Answer(answers_[i]);
        answers_[i] = answers_.back();
        answers_.pop_back();
      } else {
        ++i;
      }
    }
    for (auto& [id, ticket] : connector.tickets) {
      for (const auto& [index, block] : ticket.loading) {
        if (rng_.Below(2) == 0) {
          WriteGarbage(block);
        }
      }
      if (!ticket.loading.empty() && rng_.Below(3) == 0) {
        Confirm(ticket);
      }
      if (!ticket.closed && rng_.Below(40) == 0) {
        Answer(id);  // more is known: it may claim again
      }
    }
    if (rng_.Below(4) == 0 && !taken_.empty()) {
      Release(rng_.Below(taken_.size()));
    }
    if (rng_.Below(6) == 0 && !stored.empty()) {
      WantSome();
    }
  }
  void Settle() {
    for (auto& [id, ticket] : connector.tickets) {
      while (!ticket.loading.empty()) {
        Confirm(ticket);
      }
    }
    connector.on_offer = {};  // what it wanted and has not heard of
    ReleaseAll();
  }

  std::unordered_map<ContentKey, Stored, kv::ContentKeyHash> stored;
  int64_t arrived = 0;
  int64_t arrived_lossy = 0;

 private:
  struct Taken {
    BlockId block;
    KnownKv::Slots slots;  // when it was taken
  };

  void Answer(kv::TicketId id) {
    if (!connector.tickets.at(id).closed) {
      connector.Push(kv::Answered{id});
    }
  }

  std::vector<BlockRange> Claim(const Ticket& ticket, std::span<const BlockRange> missing) {
    std::vector<BlockRange> claims;
    const uint64_t mood = rng_.Below(4);
    for (const BlockRange& gap : missing) {
      if (mood == 0) {
        break;
      }
      for (int32_t i = gap.first_block; i < gap.end_block(); ++i) {
        const bool has = stored.contains(ticket.keys[static_cast<size_t>(i)]);
        if (!(has ? mood == 1 || rng_.Below(8) != 0 : rng_.Below(16) == 0)) {
          continue;
        }
        if (claims.empty() || claims.back().end_block() != i || rng_.Below(8) == 0) {
          claims.push_back({i, 0});
        }
        ++claims.back().num_blocks;
      }
    }
    return claims;
  }

  int64_t Yield(Ticket& ticket, int32_t front) {
    EXPECT_TRUE(ticket.loading.contains(front));
    switch (rng_.Below(4)) {
      case 0:
        FailSome(ticket, kv::LoadEnd::kGivenUp);
        return kv::kUntilEvent;
      case 1:
        return clock_.NowMicros() + static_cast<int64_t>(rng_.Below(5'000));
      default:
        return kv::kUntilEvent;
    }
  }

  void FailSome(Ticket& ticket, kv::LoadEnd why) {
    const std::map<int32_t, BlockId> loading = ticket.loading;
    for (const auto& [index, block] : loading) {
      if (rng_.Below(4) != 0) {
        WriteGarbage(block);
        connector.Fail(ticket, {index, 1}, why);
      }
    }
  }

  // Some consecutive blocks that are being loaded are there, or are not coming.
  void Confirm(Ticket& ticket) {
    auto it = std::next(ticket.loading.begin(),
                        static_cast<std::ptrdiff_t>(rng_.Below(ticket.loading.size())));
    BlockRange range{it->first, 0};
    const bool lossy =
        rng_.Below(2) == 0 && (ticket.request.quality.allow_lossy || rng_.Below(8) == 0);
    const uint64_t level = 1 + rng_.Below(9);
    const bool fails = rng_.Below(6) == 0;
    BlockQuality quality;
    const auto most = static_cast<int32_t>(rng_.Range(1, 6));
    for (; it != ticket.loading.end() && it->first == range.end_block() &&
           range.num_blocks < most && !fails;
         ++it) {
      const auto stored_it = stored.find(ticket.keys[static_cast<size_t>(it->first)]);
      if (stored_it == stored.end()) {
        break;
      }
      const Stored& found = stored_it->second;
      KnownKv::Slots slots = found.slots;
      if (found.quality.fidelity == Fidelity::kLossy) {
        quality = {Fidelity::kLossy, std::min(quality.q, found.quality.q)};
      } else if (lossy) {
        slots = KnownKv::Distort(std::move(slots), level);
        quality = {Fidelity::kLossy, std::min(quality.q, static_cast<float>(level) / 10)};
      }
      std::ranges::copy(slots, kv_.Block(it->second).begin());
      ++range.num_blocks;
    }
    if (range.num_blocks > 0) {
      arrived += range.num_blocks;
      arrived_lossy += quality.fidelity == Fidelity::kLossy ? range.num_blocks : 0;
      connector.Arrive(ticket, range, quality);
    } else {
      range.num_blocks = 1;
      WriteGarbage(ticket.loading.at(range.first_block));
      connector.Fail(ticket, range, rng_.Below(2) == 0 ? kv::LoadEnd::kLate : kv::LoadEnd::kFailed);
    }
  }

  bool Offer(const kv::SealedBlocks& sealed) {
    if (rng_.Below(4) == 0) {
      return false;
    }
    for (const kv::SealedBlock& block : sealed.blocks) {
      const auto slots = kv_.Block(block.block);
      taken_.push_back({block.block, {slots.begin(), slots.end()}});
      Stored& entry = stored[block.key.content];
      if (entry.slots.empty() || block.quality.fidelity == Fidelity::kExact) {
        entry = {taken_.back().slots, block.quality};
      }
    }
    return true;
  }

  void Release(size_t which) {
    std::swap(taken_[which], taken_.back());
    EXPECT_TRUE(std::ranges::equal(kv_.Block(taken_.back().block), taken_.back().slots))
        << "a held block changed";
    connector.Release({taken_.back().block});
    taken_.pop_back();
  }
  void ReleaseAll() {
    while (!taken_.empty()) {
      Release(0);
    }
  }

  void WantSome() {
    kv::Wanted wanted{++last_want_, {}, {rng_.Below(2) == 0, 0.0F}};
    for (const auto& [key, entry] : stored) {
      if (rng_.Below(8) == 0) {
        wanted.keys.push_back(key);
      }
    }
    connector.Push(std::move(wanted));
  }

  void WriteGarbage(BlockId block) {
    for (uint64_t& slot : kv_.Block(block)) {
      slot = rng_.Next();
    }
  }

  Rng rng_;
  kv::FakeKv& kv_;
  const Clock& clock_;
  std::vector<kv::TicketId> answers_;  // to come
  std::vector<Taken> taken_;
  kv::WantId last_want_ = 0;
};

struct Totals {
  int64_t arrived = 0;
  int64_t arrived_lossy = 0;
  int64_t abandoned = 0;
  int64_t given_up = 0;
  int64_t duplicates = 0;
  int64_t refused = 0;
  int64_t preemptions = 0;
  int64_t compared = 0;
};

class KvExchangeSoak : public testing::TestWithParam<std::string_view> {
 protected:
  void RunSeed(uint64_t seed);
  Totals totals_;
};
INSTANTIATE_TEST_SUITE_P(Policies, KvExchangeSoak, kv::EachPolicy(), kv::PolicyTestName);

void KvExchangeSoak::RunSeed(uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  const auto num_blocks = static_cast<int32_t>(rng.Range(14, 40));
  FakeExecutorOptions fake;
  fake.num_blocks = num_blocks;
  FakeExecutor executor(fake);
  ManualClock clock(1'000'000);
  bool fail = false;
  executor.before_execute = [&](const model::StepBatch&) -> Result<void> {
    return fail ? Result<void>(Err(ErrorCode::kInternal, "on fire")) : Result<void>();
  };
  EngineOptions options;
  options.cache.num_blocks = num_blocks;
  options.cache.block_size_tokens = kBlock;
  options.cache.policy.name = GetParam();
  options.scheduler.max_num_seqs = static_cast<int32_t>(rng.Range(1, 6));
  options.scheduler.chunk_max = static_cast<int32_t>(rng.Range(1, 80));
  options.scheduler.chunk_floor = 1;
  options.scheduler.reserve_new_tokens =
      rng.Below(2) == 0 ? std::numeric_limits<int32_t>::max() : static_cast<int32_t>(rng.Below(9));
  options.max_answer_wait_us = rng.Below(3) == 0 ? 0 : 3'000;
  options.verify_sealed_blocks = true;
  RandomStore store(seed, executor.kv(), clock);
  auto engine = Engine::Create(options, executor, clock).value();
  ASSERT_TRUE(engine->Connect(store.connector, {}).has_value());

  std::vector<std::vector<TokenId>> stems;
  for (int i = 0; i < 3; ++i) {
    stems.push_back(RandomPrompt(rng, 12 * kBlock));
  }
  std::map<RequestId, Request> requests;
  std::map<RequestId, Received> received;
  int left = 80;
  for (int step = 0; left > 0 || engine->HasWork(); ++step) {
    ASSERT_LT(step, 20'000) << "does not end";
    if (left > 0 && rng.Below(3) == 0) {
      --left;
      std::vector<TokenId> prompt = stems[rng.Below(stems.size())];
      prompt.resize(1 + rng.Below(prompt.size()));
      if (rng.Below(3) == 0) {
        prompt.push_back(static_cast<TokenId>(rng.Below(kVocab)));
      }
      Request request = Greedy(std::move(prompt), static_cast<int32_t>(rng.Range(1, 24)));
      request.priority = static_cast<int32_t>(rng.Below(3));
      if (rng.Below(3) == 0) {
        request.quality = {true, static_cast<float>(rng.Below(10)) / 10};
      }
      const auto id = engine->Submit(
          request, [&](const RequestOutput& output) { received[output.id].Add(output); });
      ASSERT_TRUE(id.has_value());
      requests[*id] = request;
    }
    if (rng.Below(12) == 0 && !requests.empty()) {
      (void)engine->Abort(
          std::next(requests.begin(), static_cast<std::ptrdiff_t>(rng.Below(requests.size())))
              ->first);
    }
    if (rng.Below(4) == 0) {
      (void)engine->cache().EvictAtRandom(rng, 0.5);
    }
    fail = rng.Below(60) == 0;
    (void)engine->Step();
    engine->cache().CheckInvariant();
    store.Work();
    if (rng.Below(4) == 0) {
      engine->TakeEvents();
      engine->cache().CheckInvariant();
    }
    clock.Advance(static_cast<int64_t>(rng.Below(2'000)));
    ASSERT_FALSE(HasFailure());
  }
  store.Settle();
  engine->TakeEvents();
  engine->cache().CheckInvariant();

  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.cache.free_blocks + stats.cache.cached_blocks, num_blocks);
  EXPECT_EQ(stats.cache.reserved_blocks + stats.cache.loading_blocks + stats.cache.held_blocks, 0);
  EXPECT_EQ(stats.prompt_tokens, stats.prompt_tokens_computed + stats.prompt_tokens_cached +
                                     stats.prompt_tokens_external);
  const KvExchangeStats& e = stats.exchange;
  EXPECT_EQ(e.claimed, e.arrived + e.refused + e.given_up + e.late + e.failed + e.abandoned);
  KnownKv known(kBlock);
  for (const auto& [id, request] : requests) {
    const Received& got = received.at(id);
    ASSERT_TRUE(got.finish.has_value());
    auto tokens = request.prompt;
    tokens.insert(tokens.end(), got.tokens.begin(), got.tokens.end());
    known.Add(tokens);
    EXPECT_LE(got.usage.cached_tokens + got.usage.external_tokens, got.usage.prompt_tokens - 1);
    const bool exact = !request.quality.allow_lossy;
    EXPECT_TRUE(exact ? got.usage.least_q == 1 : got.usage.least_q >= request.quality.q_min);
    totals_.preemptions += got.usage.preemptions;
    if (exact || got.usage.least_q == 1) {
      std::vector<TokenId> solo = Solo(request).tokens;
      const bool whole = got.finish == FinishReason::kLength || got.finish == FinishReason::kStop;
      solo.resize(whole ? solo.size() : got.tokens.size());
      EXPECT_EQ(got.tokens, solo) << "request " << id;
      ++totals_.compared;
    }
  }
  for (const auto& [key, slots] : known.blocks()) {
    if (const BlockId block = engine->cache().index().Find(key, {}); block != kNoBlock) {
      EXPECT_TRUE(std::ranges::equal(executor.kv().Block(block), slots)) << "block " << block;
    }
    const auto it = store.stored.find(key);
    if (it != store.stored.end() && it->second.quality.fidelity == Fidelity::kExact) {
      EXPECT_EQ(it->second.slots, slots);
    }
  }
  totals_.arrived += store.arrived;
  totals_.arrived_lossy += store.arrived_lossy;
  totals_.abandoned += stats.exchange.abandoned;
  totals_.given_up += stats.exchange.given_up;
  totals_.duplicates += stats.exchange.duplicates;
  totals_.refused += stats.exchange.refused;
}

TEST_P(KvExchangeSoak, NothingIsEverWrongOrLost) {
  for (uint64_t seed = 0; seed < 20 && !HasFailure(); ++seed) {
    RunSeed(seed);
  }
  // The schedules do reach all corners.
  EXPECT_GT(totals_.arrived, 500);
  EXPECT_GT(totals_.arrived_lossy, 100);
  EXPECT_GT(totals_.abandoned, 50);
  EXPECT_GT(totals_.given_up, 50);
  EXPECT_GT(totals_.duplicates, 0);
  EXPECT_GT(totals_.refused, 0);
  EXPECT_GT(totals_.preemptions, 0);
  EXPECT_GT(totals_.compared, 200);
  std::printf(
      "%lld arrived, %lld lossy, %lld abandoned, %lld given up, %lld duplicates, %lld refused\n",
      static_cast<long long>(totals_.arrived), static_cast<long long>(totals_.arrived_lossy),
      static_cast<long long>(totals_.abandoned), static_cast<long long>(totals_.given_up),
      static_cast<long long>(totals_.duplicates), static_cast<long long>(totals_.refused));
}

}  // namespace
}  // namespace kvik::engine
