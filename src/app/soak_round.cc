// SPDX-License-Identifier: Apache-2.0
#include "app/soak_round.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/answers.h"
#include "base/clock.h"
#include "engine/engine.h"

namespace kvik::app {
namespace {

constexpr size_t kDocuments = 4;
constexpr size_t kConversations = 20;
constexpr int32_t kMaxSeqs = 8;
constexpr int32_t kStepsPerCheck = 8;
constexpr uint64_t kOneInCompared = 4;
// What a step costs in the round's time.
constexpr int64_t kStepUs = 20'000;
constexpr int64_t kTokenUs = 1'000;

using Tokens = std::vector<TokenId>;

struct Conversation {
  uint64_t session = 0;
  Tokens text;  // all that was said
  std::string salt;
  std::string adapter;
  int64_t next_us = 0;  // when its next turn comes
  bool in_flight = false;
};

// When a client leaves.
struct Patience {
  enum class For { kEver, kSteps, kTokens };
  For what = For::kEver;
  size_t count = 0;
};

struct Flight {
  size_t conversation = 0;
  engine::RequestId id = 0;
  engine::Request request;
  Patience patience;
  size_t age_steps = 0;
  Answer answer;
  std::optional<engine::RequestOutput> end;
  bool told_after_end = false;
};

class SoakRound {
 public:
  SoakRound(const SoakRoundOptions& options, engine::Executor& executor, engine::Executor& alone,
            Rng rng, Sha256& hash)
      : options_(options), executor_(executor), alone_(alone), rng_(rng), hash_(hash) {}

  Result<SoakTally> Run() {
    KVIK_TRY(CreateEngine());
    drops_ = rng_.Below(3) == 0;
    tool_marker_ = RandomTokens(2);
    markers_ = std::make_shared<const std::vector<Tokens>>(std::vector<Tokens>{tool_marker_});
    for (size_t i = 0; i < kDocuments; ++i) {
      documents_.push_back(RandomTokens(rng_.Range(1, options_.longest_tokens / 3)));
    }
    conversations_.resize(kConversations);
    for (Conversation& conversation : conversations_) {
      Begin(conversation);
      conversation.next_us = clock_.NowMicros() + static_cast<int64_t>(rng_.Below(5'000'000));
    }
    KVIK_TRY(Serve());
    KVIK_TRY(CheckCounters());
    KVIK_TRY(CompareWithAlone());
    return tally_;
  }

 private:
  Result<void> CreateEngine() {
    engine::EngineOptions options;
    options.cache.num_blocks = options_.num_blocks;
    options.cache.block_size_tokens = options_.block_size_tokens;
    options.cache.numerics = options_.numerics;
    options.cache.policy = options_.policy;
    options.cache.policy.seed = rng_.Next();
    options.cache.hash.algorithm =
        rng_.Below(2) == 0 ? kv::HashAlgorithm::kXxh3 : kv::HashAlgorithm::kSha256Cbor;
    options.scheduler.max_num_seqs = static_cast<int32_t>(rng_.Range(2, kMaxSeqs));
    options.scheduler.max_num_batched_tokens =
        static_cast<int32_t>(rng_.Range(kMaxSeqs, options_.max_batch_rows));
    options.scheduler.chunk_max = static_cast<int32_t>(rng_.Range(8, 100));
    options.scheduler.chunk_floor =
        static_cast<int32_t>(rng_.Range(1, options.scheduler.chunk_max));
    if (rng_.Below(4) != 0) {
      options.scheduler.reserve_new_tokens = static_cast<int32_t>(rng_.Range(0, 16));
    }
    options.verify_sealed_blocks = true;
    KVIK_ASSIGN(engine_, engine::Engine::Create(options, executor_, clock_));
    return {};
  }

  TokenId RandomToken() {
    return static_cast<TokenId>(rng_.Below(static_cast<uint64_t>(executor_.limits().vocab_size)));
  }
  Tokens RandomTokens(int64_t count) {
    Tokens tokens(static_cast<size_t>(count));
    std::generate(tokens.begin(), tokens.end(), [this] { return RandomToken(); });
    return tokens;
  }

  void Begin(Conversation& conversation) {
    conversation.session = ++num_sessions_;
    const Tokens& document = documents_[rng_.Below(documents_.size())];
    const auto end = document.begin() + rng_.Range(1, static_cast<int64_t>(document.size()));
    conversation.text.assign(document.begin(), end);
    conversation.salt = rng_.Below(4) == 0 ? "tenant" : "";
    conversation.adapter = rng_.Below(8) == 0 ? "tenant" : "";
  }

  Result<void> Serve() {
    int32_t left = options_.requests;
    bool over = false;
    while (true) {
      over = over || (options_.is_over && options_.is_over());
      KVIK_TRY(Arrivals(over ? 0 : left, left));
      Departures();
      KVIK_TRY(TakeEnded());
      if (!engine_->HasWork()) {
        if (over || left == 0) {
          return {};
        }
        WaitForTheNextTurn();
        continue;
      }
      const engine::StepReport report = engine_->Step();
      if (!report.idle_reason.empty()) {
        return Err(ErrorCode::kInternal, "a step did nothing: %s", report.idle_reason.c_str());
      }
      clock_.Advance(kStepUs + kTokenUs * report.num_tokens);
      if (++tally_.steps % kStepsPerCheck == 0) {
        engine_->cache().CheckInvariant();
      }
      Happen();
      KVIK_TRY(TakeEnded());
    }
  }

  // Turns whose time has come, at most `most` of them; `left` counts down.
  Result<void> Arrivals(int32_t most, int32_t& left) {
    for (size_t i = 0; i < conversations_.size() && most > 0; ++i) {
      Conversation& conversation = conversations_[i];
      if (conversation.in_flight || conversation.next_us > clock_.NowMicros()) {
        continue;
      }
      KVIK_TRY(Submit(i));
      --most;
      --left;
    }
    return {};
  }

  void WaitForTheNextTurn() {
    int64_t next_us = std::numeric_limits<int64_t>::max();
    for (const Conversation& conversation : conversations_) {
      next_us = std::min(next_us, conversation.next_us);
    }
    clock_.Set(std::max(next_us, clock_.NowMicros()));
  }

  Result<void> Submit(size_t index) {
    Conversation& conversation = conversations_[index];
    // Words and an answer fit.
    const int64_t room = options_.longest_tokens - static_cast<int64_t>(conversation.text.size());
    if (room < 45 || rng_.Below(8) == 0) {
      Begin(conversation);
    }
    const Tokens words = RandomTokens(rng_.Range(1, 40));
    conversation.text.insert(conversation.text.end(), words.begin(), words.end());
    auto flight = std::make_unique<Flight>();
    flight->conversation = index;
    flight->request = MakeRequest(conversation);
    flight->patience = MakePatience(flight->request.max_new_tokens);
    KVIK_ASSIGN(flight->id,
                engine_->Submit(flight->request, [f = flight.get()](engine::RequestOutput output) {
                  f->told_after_end = f->told_after_end || f->end.has_value();
                  f->answer.insert(f->answer.end(), output.tokens.begin(), output.tokens.end());
                  if (output.finish) {
                    f->end = std::move(output);
                  }
                }));
    conversation.in_flight = true;
    flights_.push_back(std::move(flight));
    ++tally_.requests;
    return {};
  }

  engine::Request MakeRequest(const Conversation& conversation) {
    engine::Request request;
    request.prompt = conversation.text;
    const auto room = options_.longest_tokens - static_cast<int64_t>(request.prompt.size());
    // Now and then more than there is room for, which the engine clips.
    request.max_new_tokens = static_cast<int32_t>(rng_.Range(1, std::min<int64_t>(room + 5, 48)));
    request.sampling.temperature = rng_.Below(2) == 0 ? 0.0F : 0.8F;
    request.sampling.seed = rng_.Next();
    request.sampling.num_logprobs = rng_.Below(4) == 0 ? -1 : 2;
    if (rng_.Below(3) == 0) {
      request.sampling.top_p = 0.9F;
      request.sampling.repetition_penalty = 1.1F;
      request.sampling.presence_penalty = 0.5F;
    }
    for (uint64_t i = rng_.Below(3); i > 0; --i) {
      request.stop_token_ids.push_back(RandomToken());
    }
    request.min_new_tokens =
        static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(request.max_new_tokens) + 1));
    request.priority = static_cast<int32_t>(rng_.Below(3));
    request.cache_salt = conversation.salt;
    request.adapter = conversation.adapter;
    request.session = rng_.Below(2) == 0 ? conversation.session : 0;
    if (rng_.Below(4) == 0) {
      request.will_continue = rng_.Below(2) == 0;
    }
    if (rng_.Below(4) == 0) {
      request.retention = MakeRetention(request.prompt.size());
    }
    request.tool_call_markers = markers_;
    request.tool_of_call = [](std::span<const TokenId> call) {
      return call.empty() ? 0 : 1 + static_cast<uint64_t>(call.front()) % 3;
    };
    if (rng_.Below(4) == 0) {
      request.forced_tokens = RandomTokens(rng_.Range(1, request.max_new_tokens));
      if (request.forced_tokens.size() > tool_marker_.size()) {
        std::copy(tool_marker_.begin(), tool_marker_.end(), request.forced_tokens.begin());
      }
    }
    return request;
  }

  std::shared_ptr<const kv::Retention> MakeRetention(size_t prompt_tokens) {
    auto retention = std::make_shared<kv::Retention>();
    const auto priority = [this] { return static_cast<int32_t>(rng_.Range(0, kv::kMaxPriority)); };
    const auto duration_us = [this] {
      return rng_.Below(2) == 0 ? kv::kForGood : rng_.Range(0, 10'000'000);
    };
    for (uint64_t i = rng_.Below(3); i > 0; --i) {
      const auto start = static_cast<int32_t>(rng_.Below(prompt_tokens));
      retention->ranges.push_back({.start_token = start,
                                   .end_token = start + static_cast<int32_t>(rng_.Range(1, 100)),
                                   .priority = priority(),
                                   .duration_us = duration_us()});
    }
    retention->decode_priority = priority();
    retention->decode_duration_us = duration_us();
    return retention;
  }

  Patience MakePatience(int32_t max_new_tokens) {
    switch (rng_.Below(8)) {
      case 0:
        return {Patience::For::kSteps, rng_.Below(3)};
      case 1:
        return {Patience::For::kSteps, rng_.Below(40)};
      case 2:
        return {Patience::For::kTokens, 1 + rng_.Below(static_cast<uint64_t>(max_new_tokens))};
      default:
        return {};
    }
  }

  void Departures() {
    for (const std::unique_ptr<Flight>& flight : flights_) {
      const Patience& patience = flight->patience;
      const bool leaves =
          (patience.what == Patience::For::kSteps && flight->age_steps >= patience.count) ||
          (patience.what == Patience::For::kTokens && flight->answer.size() >= patience.count);
      if (leaves && !flight->end) {
        engine_->Abort(flight->id);
      }
      ++flight->age_steps;
    }
  }

  // What an operator does, and blocks that vanish where no policy would take them.
  void Happen() {
    if (drops_ && rng_.Below(25) == 0) {
      dropped_blocks_ += engine_->cache().EvictAtRandom(rng_, 0.2);
    }
    if (rng_.Below(400) == 0) {
      dropped_blocks_ += engine_->cache().Clear();
    }
    if (rng_.Below(2000) == 0) {
      engine_->AbortAll();
    }
  }

  Result<void> TakeEnded() {
    for (auto& flight : flights_) {
      if (!flight->end) {
        continue;
      }
      KVIK_TRY(Account(*flight));
      Conversation& conversation = conversations_[flight->conversation];
      conversation.in_flight = false;
      // From a tenth of a second to half a minute, short pauses as often as long ones.
      conversation.next_us =
          clock_.NowMicros() + static_cast<int64_t>(1e5 * std::exp(5.7 * rng_.Uniform()));
      for (const engine::TokenOutput& token : flight->answer) {
        conversation.text.push_back(token.token);
      }
      if (!flight->answer.empty() && rng_.Below(kOneInCompared) == 0) {
        to_compare_.push_back(std::move(flight));
      }
      flight.reset();
    }
    std::erase(flights_, nullptr);
    return {};
  }

  Result<void> Account(const Flight& flight) {
    const engine::RequestOutput& end = *flight.end;
    if (end.error || end.finish == engine::FinishReason::kError) {
      return Err(ErrorCode::kInternal, "request %llu failed: %s",
                 static_cast<unsigned long long>(flight.id),
                 end.error ? end.error->message.c_str() : "no reason");
    }
    const bool told_right =
        end.usage.completion_tokens == static_cast<int32_t>(flight.answer.size()) &&
        end.usage.prompt_tokens == static_cast<int32_t>(flight.request.prompt.size()) &&
        end.usage.cached_tokens >= end.usage.prefix_tokens &&
        end.usage.cached_tokens < end.usage.prompt_tokens;
    if (flight.told_after_end || !told_right) {
      return Err(ErrorCode::kInternal, "request %llu: %s",
                 static_cast<unsigned long long>(flight.id),
                 told_right ? "told after its end" : "its usage does not fit what it said");
    }
    AddToHash(flight.answer, hash_);
    tally_.preemptions += end.usage.preemptions;
    if (end.finish == engine::FinishReason::kCancelled) {
      ++(end.timing.scheduled_us == 0     ? tally_.cancelled_waiting
         : end.timing.first_token_us == 0 ? tally_.cancelled_computing
                                          : tally_.cancelled_answering);
    }
    scheduled_prompt_tokens_ += end.timing.scheduled_us != 0 ? end.usage.prompt_tokens : 0;
    generated_tokens_ += end.usage.completion_tokens;
    if (end.timing.first_token_us != 0) {
      tally_.prompt_tokens += end.usage.prompt_tokens;
      tally_.cached_tokens += end.usage.cached_tokens;
      tally_.gaps += end.usage.cached_tokens > end.usage.prefix_tokens ? 1 : 0;
    }
    return {};
  }

  // Nothing is held, and what the engine counted is what its clients saw.
  Result<void> CheckCounters() {
    engine_->cache().CheckInvariant();
    const engine::EngineStats stats = engine_->stats();
    tally_.evictions = stats.cache.evictions - dropped_blocks_;
    tally_.duplicates = stats.cache.duplicates;
    const int64_t ended = stats.finished_stop + stats.finished_length + stats.finished_cancelled;
    struct Sum {
      const char* what;
      int64_t got, want;
    };
    const Sum sums[] = {
        {"blocks free or cached", stats.cache.free_blocks + stats.cache.cached_blocks,
         stats.cache.total_blocks},
        {"blocks reserved", stats.cache.reserved_blocks, 0},
        {"blocks that Clear leaves", stats.cache.cached_blocks - engine_->cache().Clear(), 0},
        {"blocks free in the end", engine_->stats().cache.free_blocks, stats.cache.total_blocks},
        {"requests that ended", ended, tally_.requests},
        {"requests cancelled", stats.finished_cancelled, tally_.cancelled()},
        {"requests failed", stats.finished_error + stats.failed_steps + stats.rejected, 0},
        {"prompt tokens", stats.prompt_tokens, tally_.prompt_tokens},
        {"prompt tokens from the cache", stats.prompt_tokens_cached, tally_.cached_tokens},
        {"prompt tokens computed", stats.prompt_tokens_computed,
         tally_.prompt_tokens - tally_.cached_tokens},
        {"prompt tokens looked up", stats.scheduler.prefix_query_tokens, scheduled_prompt_tokens_},
        {"tokens generated", stats.generation_tokens, generated_tokens_},
        {"preemptions", stats.scheduler.preemptions, tally_.preemptions},
        {"steps", stats.steps, tally_.steps},
    };
    for (const Sum& sum : sums) {
      if (sum.got != sum.want) {
        return Err(ErrorCode::kInternal, "%s: %lld, not %lld", sum.what,
                   static_cast<long long>(sum.got), static_cast<long long>(sum.want));
      }
    }
    tally_.rounds = 1;
    return {};
  }

  // A cancelled request must have said a part of what it says alone.
  Result<void> CompareWithAlone() {
    engine::EngineOptions options;
    options.cache.num_blocks = options_.longest_tokens / options_.block_size_tokens + 1;
    options.cache.block_size_tokens = options_.block_size_tokens;
    options.cache.numerics = options_.numerics;
    options.cache.prefix_caching = false;
    options.scheduler.max_num_seqs = 1;
    options.scheduler.max_num_batched_tokens = options_.max_batch_rows;
    options.scheduler.chunk_max = options_.max_batch_rows;
    KVIK_ASSIGN(const auto engine, engine::Engine::Create(options, alone_, clock_));
    for (const std::unique_ptr<Flight>& flight : to_compare_) {
      const bool whole = flight->end->finish != engine::FinishReason::kCancelled;
      Answer expected;
      std::optional<engine::FinishReason> finish;
      KVIK_ASSIGN(const engine::RequestId id,
                  engine->Submit(flight->request, [&](const engine::RequestOutput& output) {
                    expected.insert(expected.end(), output.tokens.begin(), output.tokens.end());
                    finish = output.finish;
                  }));
      while (!finish && (whole || expected.size() < flight->answer.size())) {
        engine->Step();
      }
      engine->Abort(id);
      const Differences differences = CompareAnswers(expected, flight->answer);
      tally_.differing_tokens += differences.tokens;
      tally_.differing_logprobs += differences.logprobs;
      if (whole && finish != flight->end->finish) {  // it went on, or stopped
        ++tally_.differing_tokens;
      }
      ++tally_.compared;
    }
    return {};
  }

  const SoakRoundOptions& options_;
  engine::Executor& executor_;
  engine::Executor& alone_;
  Rng rng_;
  Sha256& hash_;
  ManualClock clock_{1'000'000};
  std::unique_ptr<engine::Engine> engine_;
  Tokens tool_marker_;
  std::shared_ptr<const std::vector<Tokens>> markers_;
  std::vector<Tokens> documents_;
  std::vector<Conversation> conversations_;
  std::vector<std::unique_ptr<Flight>> flights_;
  std::vector<std::unique_ptr<Flight>> to_compare_;
  uint64_t num_sessions_ = 0;
  int64_t scheduled_prompt_tokens_ = 0;
  int64_t generated_tokens_ = 0;
  int64_t dropped_blocks_ = 0;
  bool drops_ = false;
  SoakTally tally_;
};

}  // namespace

SoakTally& SoakTally::operator+=(const SoakTally& other) {
  rounds += other.rounds;
  requests += other.requests;
  cancelled_waiting += other.cancelled_waiting;
  cancelled_computing += other.cancelled_computing;
  cancelled_answering += other.cancelled_answering;
  gaps += other.gaps;
  preemptions += other.preemptions;
  evictions += other.evictions;
  duplicates += other.duplicates;
  prompt_tokens += other.prompt_tokens;
  cached_tokens += other.cached_tokens;
  steps += other.steps;
  compared += other.compared;
  differing_tokens += other.differing_tokens;
  differing_logprobs += other.differing_logprobs;
  return *this;
}

Result<SoakTally> RunSoakRound(const SoakRoundOptions& options, engine::Executor& executor,
                               engine::Executor& alone, Rng rng, Sha256& hash) {
  return SoakRound(options, executor, alone, rng, hash).Run();
}

}  // namespace kvik::app
