// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_exchange.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace kvik::engine {

struct KvExchange::Stay {
  // Where the KV of a block of the prompt came from first.
  enum class Source : uint8_t { kComputed, kCached, kExternal };

  RequestId id = 0;
  kv::TicketId ticket = 0;
  kv::LoadRequest request;           // keys and residents are filled in for each ticket
  kv::Sequence* sequence = nullptr;  // while admitted
  bool held_back = false;            // by Added, until LetIn
  bool admitted_before = false;
  std::vector<Source> sources;  // [full blocks of the prompt]
  int32_t external_blocks = 0;
  int32_t num_offered = 0;   // of the sequence's blocks: looked at by OfferSealed
  int64_t ask_again_us = 0;  // Connector::Yield
  int32_t asked_front = -1;  // for which block
  std::shared_ptr<const kv::TransferReport> report;  // of an earlier ticket
};

KvExchange::KvExchange(kv::Connector& connector, const kv::ConnectorHost& host, kv::KvCache& cache,
                       const Clock& clock, Options options)
    : connector_(connector), cache_(cache), clock_(clock), options_(std::move(options)) {
  connector_.Attach(host);
}

KvExchange::~KvExchange() {
  KVIK_CHECK(stays_.empty());
  connector_.Detach();
  for (const auto& [ticket, blocks] : loads_) {
    for (const auto& [index, block] : blocks) {
      (void)cache_.EndLoad(block, std::nullopt);
    }
  }
  for (const auto& [block, holds] : held_) {
    for (int32_t i = 0; i < holds; ++i) {
      cache_.Unhold(block);
    }
  }
}

KvExchange::Stay& KvExchange::At(RequestId id) const {
  const auto it = stays_.find(id);
  KVIK_CHECK(it != stays_.end(), "unknown request %llu", static_cast<unsigned long long>(id));
  return *it->second;
}

void KvExchange::Register(RequestId id, const Request& request, int32_t prompt_tokens,
                          int64_t submitted_us) {
  auto stay = std::make_unique<Stay>();
  stay->id = id;
  stay->request.request = id;
  stay->request.quality = request.quality;
  stay->request.workload = request.workload;
  stay->request.slo_ttft_us = request.slo_ttft_us;
  stay->request.slo_us = request.slo_us;
  stay->request.submitted_us = submitted_us;
  stay->request.transfer = request.transfer;
  stay->sources.resize(static_cast<size_t>(prompt_tokens / cache_.options().block_size_tokens));
  KVIK_CHECK(stays_.emplace(id, std::move(stay)).second);
}

std::shared_ptr<const kv::TransferReport> KvExchange::Close(RequestId id,
                                                            const kv::TicketFate& fate) {
  const auto it = stays_.find(id);
  KVIK_CHECK(it != stays_.end());
  const std::unique_ptr<Stay> stay = std::move(it->second);
  stays_.erase(it);
  loading_.erase(id);
  if (open_.erase(stay->ticket) == 0) {
    return stay->report;  // the scheduler never took it
  }
  auto report = connector_.Close(stay->ticket, fate);
  return report != nullptr ? report : stay->report;
}

// ---- sched::BlockLoader ----

bool KvExchange::Added(RequestId id, kv::Sequence& sequence) {
  Stay& stay = At(id);
  Ask(stay, sequence, /*resumed=*/false);
  const bool promised = stay.request.transfer != nullptr && !stay.request.transfer->peer.empty();
  const int64_t wait_us = promised ? options_.max_promised_wait_us : options_.max_answer_wait_us;
  if (stay.request.num_loadable == 0 || wait_us == 0) {
    return false;
  }
  stay.held_back = true;
  answers_.emplace(clock_.NowMicros() + wait_us, stay.ticket);
  return true;
}

void KvExchange::Admitted(RequestId id, kv::Sequence& sequence) {
  Stay& stay = At(id);
  stay.sequence = &sequence;
  stay.num_offered = 0;
  stay.asked_front = -1;
  if (!stay.admitted_before) {
    stay.admitted_before = true;
    for (const kv::ResidentRun& run : sequence.hit_runs()) {
      std::fill_n(stay.sources.begin() + run.first_block, run.num_blocks, Stay::Source::kCached);
    }
    for (const kv::BlockRange& range : cache_.MissingBlocks(sequence)) {
      totals_.query_tokens += int64_t{range.num_blocks} * cache_.options().block_size_tokens;
    }
  }
  Claim(stay);
}

void KvExchange::Preempted(RequestId id, kv::Sequence& sequence) {
  Stay& stay = At(id);
  stay.sequence = nullptr;
  loading_.erase(id);
  open_.erase(stay.ticket);
  kv::TicketFate fate;
  fate.reason = kv::CloseReason::kPreempted;
  fate.closed_us = clock_.NowMicros();
  if (auto report = connector_.Close(stay.ticket, fate); report != nullptr) {
    stay.report = std::move(report);
  }
  Ask(stay, sequence, /*resumed=*/true);
}

void KvExchange::Ask(Stay& stay, kv::Sequence& sequence, bool resumed) {
  const kv::AdmissionPlan plan = cache_.Plan(sequence, sequence.num_tokens());
  kv::LoadRequest& request = stay.request;
  stay.ticket = request.ticket = ++last_ticket_;
  request.keys = sequence.keys();
  request.num_loadable = static_cast<int32_t>(plan.hits.blocks.size());
  request.resident.clear();
  for (const kv::ResidentRun& run : plan.hits.runs) {
    request.resident.push_back({run.first_block, run.num_blocks});
  }
  request.num_tokens = sequence.num_tokens();
  request.resumed = resumed;
  ++totals_.tickets;
  open_.emplace(stay.ticket, &stay);
  connector_.Ask(request);
  request.keys = {};
}

// ---- Loads ----

void KvExchange::Claim(Stay& stay) {
  kv::Sequence& sequence = *stay.sequence;
  const std::vector<kv::BlockRange> missing = cache_.MissingBlocks(sequence);
  if (missing.empty()) {
    return;
  }
  const int32_t front = sequence.next_pos() / cache_.options().block_size_tokens;
  for (const kv::BlockRange& range : connector_.Claim(stay.ticket, front, missing)) {
    const std::vector<BlockId> blocks = cache_.BeginLoad(sequence, range);
    auto& loads = loads_[stay.ticket];
    for (size_t i = 0; i < blocks.size(); ++i) {
      loads.emplace(range.first_block + static_cast<int32_t>(i), blocks[i]);
    }
    totals_.claimed += range.num_blocks;
    loading_.insert(stay.id);
    if (options_.lend) {
      options_.lend(blocks);
    }
    connector_.Load(stay.ticket, range, blocks);
  }
}

KvExchange::News KvExchange::Poll() {
  News news;
  TakeEvents(news);
  AskBlocked();
  TakeEvents(news);  // what was given up at once is computed in this step
  const int64_t now_us = clock_.NowMicros();
  while (!answers_.empty()) {
    const auto [due_us, ticket] = *answers_.begin();
    const auto it = open_.find(ticket);
    const bool waits = it != open_.end() && it->second->held_back;
    if (waits && due_us > now_us) {
      break;
    }
    if (waits) {
      ++totals_.unanswered;
      LetIn(*it->second, news);
    }
    answers_.erase(answers_.begin());
  }
  return news;
}

void KvExchange::AskBlocked() {
  const int64_t now_us = clock_.NowMicros();
  for (const RequestId id : loading_) {
    Stay& stay = At(id);
    if (!stay.sequence->blocked()) {
      continue;
    }
    const int32_t front = stay.sequence->next_pos() / cache_.options().block_size_tokens;
    if (front != stay.asked_front || stay.ask_again_us <= now_us) {
      stay.asked_front = front;
      stay.ask_again_us = connector_.Yield(stay.ticket, front);
    }
  }
}

int64_t KvExchange::next_poll_us() const {
  int64_t next_us = kv::kUntilEvent;
  for (const auto& [due_us, ticket] : answers_) {
    const auto it = open_.find(ticket);
    if (it != open_.end() && it->second->held_back) {
      next_us = due_us;
      break;
    }
  }
  for (const RequestId id : loading_) {
    const Stay& stay = At(id);
    if (stay.sequence->blocked()) {
      next_us = std::min(next_us, stay.ask_again_us);
    }
  }
  return next_us;
}

void KvExchange::TakeEvents(News& news) {
  for (const kv::ConnectorEvent& event : connector_.Poll()) {
    std::visit([&](const auto& known) { On(known, news); }, event);
  }
}

void KvExchange::On(const kv::Answered& event, News& news) {
  const auto it = open_.find(event.ticket);
  if (it == open_.end()) {
    return;
  }
  Stay& stay = *it->second;
  if (stay.held_back) {
    LetIn(stay, news);
  } else if (stay.sequence != nullptr) {
    Claim(stay);
  }
}

void KvExchange::LetIn(Stay& stay, News& news) {
  stay.held_back = false;
  news.let_in.push_back(stay.id);
}

void KvExchange::On(const kv::Arrived& event, News& /*news*/) {
  Confirm(event.ticket, event.range, IsPlausible(event) ? &event : nullptr, totals_.failed);
}

void KvExchange::On(const kv::NotComing& event, News& /*news*/) {
  Confirm(event.ticket, event.range, nullptr,
          event.why == kv::LoadEnd::kGivenUp ? totals_.given_up
          : event.why == kv::LoadEnd::kLate  ? totals_.late
                                             : totals_.failed);
}

void KvExchange::On(const kv::Failed& event, News& news) {
  if (const auto it = open_.find(event.ticket); it != open_.end()) {
    news.failed.emplace_back(it->second->id, event.error);
  }
}

// Whether the cache can take it as it is said to be: it came over a network.
bool KvExchange::IsPlausible(const kv::Arrived& event) const {
  const bool exact = event.quality.fidelity == kv::Fidelity::kExact;
  if (!(event.quality.q >= 0 && event.quality.q <= 1) ||
      !(event.quality.workload_q >= 0 && event.quality.workload_q <= 1) ||
      (exact && !event.dropped.empty())) {
    return false;
  }
  const kv::BlockMasks* masks = cache_.masks();
  const int32_t size = cache_.options().block_size_tokens;
  return std::all_of(event.dropped.begin(), event.dropped.end(), [&](const auto& dropped) {
    return masks != nullptr && dropped.layer >= 0 && dropped.layer < masks->geometry().num_layers &&
           dropped.kv_head >= 0 && dropped.kv_head < masks->geometry().num_kv_heads &&
           dropped.first_token >= event.range.first_block * size &&
           dropped.first_token <= dropped.end_token &&
           dropped.end_token <= event.range.end_block() * size;
  });
}

// `arrived` is null for blocks that are not coming, and `not_coming` counts those.
void KvExchange::Confirm(kv::TicketId ticket, const kv::BlockRange& range,
                         const kv::Arrived* arrived, int64_t& not_coming) {
  const auto loads = loads_.find(ticket);
  KVIK_CHECK(loads != loads_.end(), "ticket %llu loads nothing",
             static_cast<unsigned long long>(ticket));
  const auto open = open_.find(ticket);
  Stay* const stay = open == open_.end() ? nullptr : open->second;
  for (int32_t i = range.first_block; i < range.end_block(); ++i) {
    const auto load = loads->second.find(i);
    KVIK_CHECK(load != loads->second.end(), "block %d is not being loaded", i);
    const BlockId block = load->second;
    loads->second.erase(load);
    const auto outcome =
        cache_.EndLoad(block, arrived == nullptr ? std::nullopt : std::optional(arrived->quality));
    switch (outcome) {
      case kv::LoadOutcome::kReady:
      case kv::LoadOutcome::kDuplicate: {
        ++totals_.arrived;
        totals_.duplicates += outcome == kv::LoadOutcome::kDuplicate ? 1 : 0;
        const auto at = static_cast<size_t>(i);
        if (at < stay->sources.size() && stay->sources[at] == Stay::Source::kComputed) {
          stay->sources[at] = Stay::Source::kExternal;
          ++stay->external_blocks;
        }
        break;
      }
      case kv::LoadOutcome::kRefused:
        ++totals_.refused;
        break;
      case kv::LoadOutcome::kCompute:
        ++not_coming;
        break;
      case kv::LoadOutcome::kCached:
      case kv::LoadOutcome::kDropped:
        ++totals_.abandoned;
        break;
    }
    if (outcome == kv::LoadOutcome::kReady || outcome == kv::LoadOutcome::kCached) {
      DropTokens(block, i, arrived->dropped);
    }
  }
  if (loads->second.empty()) {
    loads_.erase(loads);
    if (stay != nullptr) {
      loading_.erase(stay->id);
    }
  }
}

void KvExchange::DropTokens(BlockId block, int32_t block_index,
                            const std::vector<kv::DroppedTokens>& dropped) {
  const int32_t size = cache_.options().block_size_tokens;
  const int32_t first_pos = block_index * size;
  for (const kv::DroppedTokens& tokens : dropped) {
    const int32_t begin = std::max(tokens.first_token - first_pos, 0);
    const int32_t end = std::min(tokens.end_token - first_pos, size);
    if (begin < end) {
      cache_.masks()->Drop(block, tokens.layer, tokens.kv_head, begin, end);
    }
  }
}

int32_t KvExchange::external_blocks(RequestId id) const { return At(id).external_blocks; }

// ---- Offers ----

void KvExchange::OfferSealed(RequestId id, const kv::Sequence& sequence) {
  Stay& stay = At(id);
  std::vector<kv::SealedBlock> sealed;
  const kv::NumericsTag numerics = kv::NumericsTag::FromDescription(cache_.options().numerics);
  for (; stay.num_offered < sequence.num_sealed(); ++stay.num_offered) {
    const int32_t i = stay.num_offered;
    const BlockId block = sequence.block_table()[static_cast<size_t>(i)];
    if (!sequence.IsReady(i) && cache_.index().Contains(block)) {
      sealed.push_back({{sequence.keys()[static_cast<size_t>(i)], numerics},
                        block,
                        cache_.index().quality(block),
                        i * cache_.options().block_size_tokens});
    }
  }
  if (!sealed.empty()) {
    OfferBlocks({stay.ticket, 0, sealed});
  }
}

void KvExchange::On(const kv::Wanted& event, News& /*news*/) {
  std::vector<kv::SealedBlock> sealed;
  const kv::NumericsTag numerics = kv::NumericsTag::FromDescription(cache_.options().numerics);
  int32_t room = cache_.AvailableBlocks();  // what running requests were promised is not given away
  for (const kv::ContentKey& key : event.keys) {
    const BlockId block = cache_.index().Find(key, event.quality);
    if (block == kNoBlock) {
      continue;
    }
    if (cache_.pool().state(block) == kv::BlockState::kCached && room-- <= 0) {
      break;
    }
    sealed.push_back({{key, numerics}, block, cache_.index().quality(block), -1});
  }
  OfferBlocks({0, event.want, sealed});
}

void KvExchange::OfferBlocks(const kv::SealedBlocks& sealed) {
  const auto count = static_cast<int64_t>(sealed.blocks.size());
  totals_.offered += count;
  if (!connector_.Offer(sealed)) {
    return;
  }
  totals_.taken += count;
  for (const kv::SealedBlock& block : sealed.blocks) {
    cache_.Hold(block.block);
    ++held_[block.block];
  }
}

void KvExchange::On(const kv::Released& event, News& /*news*/) {
  for (const BlockId block : event.blocks) {
    const auto it = held_.find(block);
    KVIK_CHECK(it != held_.end(), "block %d is released, but not held", block);
    if (--it->second == 0) {
      held_.erase(it);
    }
    cache_.Unhold(block);
    ++totals_.released;
  }
}

void KvExchange::NeedRoom(int32_t missing_blocks) {
  if (!held_.empty()) {
    connector_.NeedRoom(missing_blocks);
  }
}

KvExchangeStats KvExchange::stats() const {
  KvExchangeStats stats = totals_;
  stats.loading = cache_.stats().loading_blocks;
  stats.held = cache_.stats().held_blocks;
  return stats;
}

}  // namespace kvik::engine
