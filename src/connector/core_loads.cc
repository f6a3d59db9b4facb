// SPDX-License-Identifier: Apache-2.0
// Loads: asked for from the tail forwards, confirmed block by block, given up when computing is
// faster by then.
#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/log.h"
#include "connector/core.h"

namespace kvik::connector {
namespace {

// What is given up must be worth it: a plan that is hardly better is not.
constexpr double kWorthGivingUp = 0.9;

// Loads that follow a prefill on the other side: they wait there, and for little.
constexpr int32_t kMostFollowing = 48;

const char* TierName(kv::ObjectTier tier) {
  switch (tier) {
    case kv::ObjectTier::kLive:
      return "live";
    case kv::ObjectTier::kMemory:
      return "memory";
    case kv::ObjectTier::kDisk:
      return "disk";
    case kv::ObjectTier::kRemote:
      return "remote";
  }
  return "";
}

// The dropped slots within a range of blocks.
std::vector<kv::DroppedTokens> DroppedIn(const std::vector<kv::DroppedTokens>& all,
                                         const kv::BlockRange& range, int32_t block_tokens) {
  std::vector<kv::DroppedTokens> within;
  for (kv::DroppedTokens dropped : all) {
    dropped.first_token = std::max(dropped.first_token, range.first_block * block_tokens);
    dropped.end_token = std::min(dropped.end_token, range.end_block() * block_tokens);
    if (dropped.first_token < dropped.end_token) {
      within.push_back(dropped);
    }
  }
  return within;
}

}  // namespace

// ---- Loading ----

void Core::Load(kv::TicketId id, const kv::BlockRange& range, std::span<const BlockId> blocks) {
  KVIK_CHECK(static_cast<int32_t>(blocks.size()) == range.num_blocks);
  Later later;
  TicketPtr ticket;
  {
    MutexLock lock(mutex_);
    const auto it = tickets_.find(id);
    KVIK_CHECK(it != tickets_.end(), "blocks for a request that was never asked for");
    ticket = it->second;
    counters_.loading_blocks += range.num_blocks;
    std::vector<bool> covered(blocks.size());
    for (auto planned = ticket->planned.begin(); planned != ticket->planned.end();) {
      const int32_t first = std::max(planned->wanted.first_block, range.first_block);
      const int32_t end = std::min(planned->wanted.end_block(), range.end_block());
      if (first >= end) {
        ++planned;
        continue;
      }
      auto job = std::make_shared<LoadJob>();
      job->what = *planned;
      job->wanted = {first, end - first};
      job->blocks.assign(static_cast<size_t>(planned->object.num_blocks), kNoBlock);
      for (int32_t block = first; block < end; ++block) {
        const auto at = static_cast<size_t>(block - range.first_block);
        job->blocks[static_cast<size_t>(block - planned->object.first_block)] = blocks[at];
        covered[at] = true;
      }
      Wait(ticket, job);
      planned = ticket->planned.erase(planned);
    }
    for (int32_t i = 0; i < range.num_blocks; ++i) {
      if (!covered[static_cast<size_t>(i)]) {
        NotComing(*ticket, {range.first_block + i, 1}, kv::LoadEnd::kFailed);
      }
    }
    TakeReady(ticket, later);
  }
  Do(std::move(later));
}

void Core::Wait(const TicketPtr& ticket, const LoadJobPtr& job) {
  const auto place = std::upper_bound(ticket->waiting.begin(), ticket->waiting.end(), job,
                                      [](const LoadJobPtr& a, const LoadJobPtr& b) {
                                        return a->wanted.first_block < b->wanted.first_block;
                                      });
  ticket->waiting.insert(place, job);
  jobs_.AddWaiting(job, ticket);
}

void Core::StopWaiting(Ticket& ticket, const LoadJobPtr& job) {
  std::erase(ticket.waiting, job);
  jobs_.RemoveWaiting(job, ticket);
}

// Chunks are asked for from the tail forwards: where they meet what is computed can move. Those
// that a peer is still computing for this process meet nothing and come as they are computed: all
// of them are asked for at once, so that none waits for a later one.
void Core::TakeReady(const TicketPtr& shared, Later& later) {
  Ticket& ticket = *shared;
  while (!ticket.waiting.empty()) {
    const LoadCandidate& first = ticket.waiting.front()->what;
    const bool follows = first.source == ticket.peer && first.live && first.ready_in_us > 0;
    LoadJobPtr job = follows ? ticket.waiting.front() : ticket.waiting.back();
    if (const LoadJobPtr loader = jobs_.LoaderOf(*job, ticket); loader != nullptr) {
      StopWaiting(ticket, job);
      Share(loader, shared, job);
      continue;
    }
    if (static_cast<int32_t>(ticket.running.size()) >=
        (follows ? kMostFollowing : options_.max_loads_in_flight)) {
      break;
    }
    StopWaiting(ticket, job);
    job->asked_us = clock_.NowMicros();
    if (ticket.first_asked_us == 0) {
      ticket.first_asked_us = job->asked_us;
    }
    const double expected_us = job->what.wire_bytes *
                                   sources_[job->what.source]->goodput.us_per_byte() *
                                   static_cast<double>(ticket.running.size() + 1) +
                               job->what.decode_us + job->what.ready_in_us;
    job->deadline_us =
        job->asked_us + std::max(options_.load_timeout_us, static_cast<int64_t>(4 * expected_us));
    ticket.running.push_back(job);
    jobs_.AddRunning(job, shared);
    ++counters_.loads;
    ShareWaiting(job, ticket);
    later.start.emplace_back(shared, std::move(job));
  }
}

// After one of its loads is over.
void Core::GoOn(const TicketPtr& ticket, Later& later) {
  if (ticket->closed) {
    return;
  }
  TakeReady(ticket, later);
  if (ticket->running.empty() && ticket->waiting.empty() && ticket->sharing.empty()) {
    Observe(*ticket);
  }
}

void Core::Do(Later later) {
  for (const auto& [ticket, job] : later.start) {
    Start(ticket, job);
  }
  for (const auto& load : later.cancel) {
    load->Cancel();
  }
  for (const auto& [source, key] : later.discard) {
    source->Discard(key);
  }
  for (NewObject& object : later.keep) {
    store_source_->Put(std::move(object), clock_.NowMicros() + options_.put_timeout_us,
                       [self = shared_from_this()](const Result<void>& outcome) {
                         MutexLock lock(self->mutex_);
                         self->counters_.kept_originals += outcome.has_value() ? 1 : 0;
                       });
  }
}

void Core::Start(const TicketPtr& ticket, const LoadJobPtr& job) {
  ChunkLoadSpec spec;
  std::shared_ptr<ObjectSource> source;
  uint8_t priority = 0;
  std::shared_ptr<ChunkLoad> load;
  bool cancel = false;
  {
    MutexLock lock(mutex_);
    spec.key = job->what.key;
    spec.profile = job->what.profile;
    spec.geometry = *host_.geometry;
    spec.arena = host_.arena;
    spec.first_block = job->what.object.first_block;
    spec.blocks = job->blocks;
    spec.keep_bytes = spec.profile->lossy && store_source_ != nullptr && options_.store_new_kv &&
                      sources_[job->what.source]->shared() != store_source_;
    for (int32_t i = 0; i < job->what.object.num_blocks; ++i) {
      spec.hashes.push_back(ticket->facts.keys[static_cast<size_t>(spec.first_block + i)].hash);
    }
    // Later ones wait on the wire for earlier ones.
    priority = static_cast<uint8_t>(std::min(ticket->priority++, 191));
    load = ChunkLoad::Create(std::move(spec), io_, scratch_, clock_,
                             [self = shared_from_this(), ticket, job](ChunkOutcome outcome) {
                               self->OnChunk(ticket, job, std::move(outcome));
                             });
    job->load = load;
    cancel = ticket->closed || detached_;
    if (!cancel) {
      source = sources_[job->what.source]->shared();
    }
  }
  if (cancel) {
    load->Cancel();
    return;
  }
  load->SetCall(
      source->Get(job->what.key, job->what.object.num_blocks, job->deadline_us, load, priority));
}

void Core::NotComing(Ticket& ticket, const kv::BlockRange& range, kv::LoadEnd why) {
  counters_.loading_blocks -= range.num_blocks;
  ticket.incomplete = true;
  switch (why) {
    case kv::LoadEnd::kGivenUp:
      counters_.given_up_blocks += range.num_blocks;
      break;
    case kv::LoadEnd::kLate:
      counters_.late_blocks += range.num_blocks;
      break;
    case kv::LoadEnd::kFailed:
      counters_.failed_blocks += range.num_blocks;
      break;
  }
  events_->Push(kv::NotComing{ticket.id, range, why});
}

void Core::Arrived(Ticket& ticket, const LoadJob& job, const ChunkOutcome& outcome,
                   const kv::BlockQuality& quality) {
  counters_.loading_blocks -= job.wanted.num_blocks;
  counters_.arrived_blocks += job.wanted.num_blocks;
  ticket.arrived_blocks += job.wanted.num_blocks;
  if (!job.shared) {
    const auto raw =
        static_cast<uint64_t>(job.what.object.num_blocks) * host_.geometry->bytes_per_block();
    counters_.loaded_wire_bytes += outcome.wire_bytes;
    counters_.loaded_raw_bytes += raw;
    ticket.wire_bytes += outcome.wire_bytes;
    ticket.raw_bytes += raw;
  }
  ticket.encode_us += outcome.times.encode_us;
  ticket.decode_us += outcome.decode_us;
  ticket.wire_us +=
      static_cast<double>(outcome.wire_bytes) * sources_[job.what.source]->goodput.us_per_byte();
  if (job.what.live && job.what.ready_in_us > 0) {
    ticket.produced_us = std::max(ticket.produced_us, job.asked_us + outcome.times.waited_us);
  }
  ticket.last_arrived_us = clock_.NowMicros();
  counters_.load_us += ticket.last_arrived_us - job.asked_us;
  if (ticket.profile.empty()) {
    ticket.profile = job.what.profile->name;
  } else if (ticket.profile != job.what.profile->name) {
    ticket.profile = "mixed";
  }
  events_->Push(kv::Arrived{ticket.id, job.wanted, quality,
                            DroppedIn(outcome.dropped, job.wanted, host_.block_size_tokens)});
}

void Core::OnChunk(const TicketPtr& ticket, const LoadJobPtr& job, ChunkOutcome outcome) {
  if (outcome.result.has_value()) {
    bool copy = false;
    {
      MutexLock lock(mutex_);
      copy = job->copying = !detached_ && !job->sharers.empty();
    }
    if (copy) {
      // Whatever writes to the arena runs there.
      auto shared = std::make_shared<ChunkOutcome>(std::move(outcome));
      if (io_.Post([self = shared_from_this(), ticket, job, shared] {
            self->CopyToSharers(*job);
            self->Finish(ticket, job, std::move(*shared));
          })) {
        return;
      }
      shared->result = Err(ErrorCode::kUnavailable, "shutting down");
      Finish(ticket, job, std::move(*shared));
      return;
    }
  }
  Finish(ticket, job, std::move(outcome));
}

// An approximation cannot be made again from what it became here: it goes on to others as it came.
NewObject Core::OriginalOf(const Ticket& ticket, const LoadJob& job, ChunkOutcome& outcome) {
  const kv::BlockRange& range = job.what.object;
  NewObject object;
  object.info.key = job.what.key;
  object.info.num_blocks = range.num_blocks;
  object.info.quality = WorseOf(outcome.quality, {kv::Fidelity::kLossy, job.what.profile->q});
  object.info.size_bytes = outcome.bytes.size();
  object.parent = outcome.parent;
  for (int32_t block = range.first_block; block < range.end_block(); ++block) {
    object.blocks.push_back(ticket.facts.keys[static_cast<size_t>(block)].hash);
  }
  object.bytes = transfer::SharedBytes::Own(std::move(outcome.bytes));
  return object;
}

// The blocks hold the KV: good enough?
void Core::Deliver(Ticket& ticket, const LoadJob& job, const ChunkOutcome& outcome) {
  kv::BlockQuality quality = QualityFor(*job.what.profile, outcome.quality, job.what.quality);
  if (outcome.fidelity != codec::Fidelity::kExact) {
    quality.fidelity = kv::Fidelity::kLossy;
  }
  if (ticket.facts.quality.Accepts(quality)) {
    Arrived(ticket, job, outcome, quality);
    return;
  }
  ++counters_.refused_quality;
  ++counters_.failed_loads;
  NotComing(ticket, job.wanted, kv::LoadEnd::kFailed);
  Fail(ticket, job.what.source,
       Err(ErrorCode::kUnsupported, "it came in less quality than was announced"));
}

void Core::Finish(const TicketPtr& ticket, const LoadJobPtr& job, ChunkOutcome outcome) {
  Later later;
  {
    MutexLock lock(mutex_);
    jobs_.RemoveRunning(job);
    std::erase(ticket->running, job);
    job->load = nullptr;
    job->copying = false;
    counters_.decode_us += outcome.decode_us;
    if (detached_) {
      counters_.loading_blocks -= job->wanted.num_blocks;
      for (const LoadJob::Sharer& sharer : job->sharers) {
        counters_.loading_blocks -= sharer.job->wanted.num_blocks;
      }
      job->sharers.clear();
      return;
    }
    SourceState& source = *sources_[job->what.source];
    ++source.report.loads;
    source.report.wire_bytes += outcome.wire_bytes;
    if (outcome.stats.wire_us > 0 && outcome.stats.wire_bytes > 0) {
      source.goodput.Add(outcome.stats.wire_bytes, outcome.stats.wire_us, clock_.NowMicros());
    }
    if (outcome.result.has_value()) {
      source.Learn(
          *job->what.profile, outcome.wire_bytes,
          job->what.object.num_blocks * static_cast<double>(host_.geometry->bytes_per_block()));
      Deliver(*ticket, *job, outcome);
      if (!outcome.bytes.empty()) {
        later.keep.push_back(OriginalOf(*ticket, *job, outcome));
      }
    } else {
      const Error& error = outcome.result.error();
      kv::LoadEnd why = kv::LoadEnd::kFailed;
      if (outcome.cancelled) {
        why = job->why_ended;
      } else {
        ++counters_.failed_loads;
        ++source.report.failures;
        why = error.code == ErrorCode::kTimeout ? kv::LoadEnd::kLate : kv::LoadEnd::kFailed;
        LogDebug("%s: blocks [%d, %d) did not come: %s", source.report.name.c_str(),
                 job->wanted.first_block, job->wanted.end_block(), error.message.c_str());
      }
      if (outcome.damaged) {
        ++counters_.damaged_objects;
        later.discard.emplace_back(source.shared(), job->what.key);
      }
      NotComing(*ticket, job->wanted, why);
      if (!outcome.cancelled) {
        Fail(*ticket, job->what.source, error);
      }
    }
    if (ticket->tier.empty() && outcome.result.has_value()) {
      for (const FoundAt& at : ticket->found) {
        if (at.source == job->what.source) {
          ticket->tier = source.report.name + " (" + TierName(at.found.info.tier) + ")";
          break;
        }
      }
    }
    SettleSharers(job, outcome, later);
    GoOn(ticket, later);
  }
  Do(std::move(later));
}

// Everything that was asked for has come: what the controller expected can be compared.
void Core::Observe(Ticket& ticket) {
  if (ticket.incomplete || ticket.decisions.size() != 1 || ticket.first_asked_us == 0) {
    ticket.decisions.clear();
    return;
  }
  const SourceDecision decided = ticket.decisions[0];
  ticket.decisions.clear();
  control::Controller* const controller =
      sources_[decided.source]->Existing(decided.live, decided.generation);
  // Part of what the decision was about was computed: nothing to compare.
  if (controller == nullptr ||
      static_cast<double>(ticket.raw_bytes) < 0.99 * decided.decision.raw_bytes) {
    return;
  }
  // A prefill on the other side is not part of the path.
  control::Observation seen;
  const int64_t begin_us = std::clamp(ticket.produced_us, ticket.first_asked_us,
                                      std::max(ticket.last_arrived_us, ticket.first_asked_us));
  seen.path_us = static_cast<double>(std::max<int64_t>(ticket.last_arrived_us - begin_us, 1));
  seen.produce_us = static_cast<double>(begin_us - ticket.first_asked_us);
  seen.in_time = ticket.facts.slo_end_us == 0 || ticket.last_arrived_us <= ticket.facts.slo_end_us;
  seen.encode_us = static_cast<double>(ticket.encode_us) / std::max(options_.io_threads, 1);
  seen.wire_us = ticket.wire_us;
  seen.decode_us = static_cast<double>(ticket.decode_us) / std::max(options_.io_threads, 1);
  controller->Observe(decided.decision, seen);
}

// ---- Waiting and giving up ----

int64_t Core::Yield(kv::TicketId id, int32_t front_block) {
  Later later;
  TicketPtr ticket;
  int64_t again_us = kv::kUntilEvent;
  {
    MutexLock lock(mutex_);
    const auto it = tickets_.find(id);
    if (it == tickets_.end()) {
      return kv::kUntilEvent;
    }
    ticket = it->second;
    const int64_t now = clock_.NowMicros();
    std::vector<LoadJobPtr> pending = ticket->waiting;
    pending.insert(pending.end(), ticket->running.begin(), ticket->running.end());
    pending.insert(pending.end(), ticket->sharing.begin(), ticket->sharing.end());
    std::sort(pending.begin(), pending.end(), [](const LoadJobPtr& a, const LoadJobPtr& b) {
      return a->wanted.first_block < b->wanted.first_block;
    });
    if (pending.empty()) {
      return kv::kUntilEvent;
    }

    // What is left of each, at the speed that was seen if that is slower than what was expected.
    // A peer that still computes the first chunk says nothing about the link: its deadline ends
    // that.
    uint64_t received = ticket->wire_bytes;
    bool computed_there = true;
    const auto received_of = [](const LoadJob& job) -> uint64_t {
      const LoadJobPtr loader = job.loader.lock();
      const auto& load = loader != nullptr ? loader->load : job.load;
      return load != nullptr ? load->received_bytes() : 0;
    };
    for (const LoadJobPtr& job : pending) {
      if (job->asked_us == 0) {
        continue;
      }
      received += received_of(*job);
      const LoadJobPtr loader = job->loader.lock();
      computed_there = computed_there && (loader != nullptr ? loader : job)->what.live;
    }
    const bool begun = received > 0 || !computed_there;
    double us_per_byte = sources_[pending.front()->what.source]->goodput.us_per_byte();
    const auto waited_us = static_cast<double>(now - ticket->first_asked_us);
    const double expected_us = us_per_byte * static_cast<double>(received);
    if (begun && waited_us > 2 * expected_us + static_cast<double>(options_.lookup_patience_us)) {
      us_per_byte = waited_us / static_cast<double>(std::max<uint64_t>(received, 1));
    }
    const LoadRules rules = Rules(*ticket);
    std::vector<control::LoadEncoding> encodings;
    std::vector<control::LoadChunk> chunks;
    std::vector<control::TokenRange> missing;
    for (const LoadJobPtr& job : pending) {
      const auto got = static_cast<double>(received_of(*job));
      const double left = std::max(job->what.wire_bytes - got, 1.0);
      const double ready_us =
          std::max(0.0, job->what.ready_in_us - static_cast<double>(now - ticket->asked_us));
      encodings.push_back({left, job->what.decode_us * left / std::max(job->what.wire_bytes, 1.0),
                           ready_us, job->what.quality});
      const control::TokenRange tokens{int64_t{job->wanted.first_block} * rules.block_size_tokens,
                                       int64_t{job->wanted.end_block()} * rules.block_size_tokens};
      chunks.push_back({tokens, {}, job->what.compute_weight});
      missing.push_back(tokens);
    }
    for (size_t i = 0; i < chunks.size(); ++i) {
      chunks[i].encodings = std::span(encodings).subspan(i, 1);
    }
    control::LoadProblem problem;
    problem.missing = missing;
    problem.chunks = chunks;
    problem.quality = ticket->facts.quality;
    problem.us_per_byte = us_per_byte;
    problem.frames_per_chunk = rules.frames_per_chunk;
    problem.compute = rules.compute;
    problem.compute_factor = rules.compute_factor;
    problem.compute_share = rules.compute_share;
    problem.step_tokens = rules.step_tokens;
    const control::LoadPlan plan = control::PlanLoad(problem);
    const bool worth = plan.weighed_us < kWorthGivingUp * plan.all_load_us;
    for (size_t i = 0; i < pending.size(); ++i) {
      const LoadJobPtr& job = pending[i];
      const bool asked = job->asked_us != 0;
      const bool late = asked && now >= job->deadline_us;
      if (!late && !(worth && static_cast<int32_t>(i) < plan.first_loaded)) {
        if (asked) {
          again_us = std::min(again_us, job->deadline_us);
        }
        continue;
      }
      const kv::LoadEnd why = late ? kv::LoadEnd::kLate : kv::LoadEnd::kGivenUp;
      if (const LoadJobPtr loader = job->loader.lock(); loader != nullptr) {
        if (!loader->copying) {
          StopSharing(*ticket, job);
          NotComing(*ticket, job->wanted, why);
        }
      } else if (asked) {
        job->why_ended = why;
        if (job->load != nullptr) {
          later.cancel.push_back(job->load);
        }
      } else {
        StopWaiting(*ticket, job);
        NotComing(*ticket, job->wanted, why);
      }
    }
    if (plan.load_us > 0) {
      again_us = std::min(again_us,
                          now + std::max<int64_t>(1000, static_cast<int64_t>(1.25 * plan.load_us)));
    }
    static_cast<void>(front_block);
  }
  Do(std::move(later));
  return again_us;
}

std::shared_ptr<const kv::TransferReport> Core::ReportOf(const Ticket& ticket) const {
  if (ticket.found.empty() && !ticket.peer.has_value()) {
    return nullptr;
  }
  auto report = std::make_shared<kv::TransferReport>();
  report->profile = ticket.profile;
  report->tier = ticket.tier;
  report->why = ticket.why;
  report->wire_bytes = static_cast<int64_t>(ticket.wire_bytes);
  report->raw_bytes = static_cast<int64_t>(ticket.raw_bytes);
  report->predicted_us = static_cast<int64_t>(ticket.plan.load_us);
  if (ticket.last_arrived_us != 0) {
    report->observed_us = ticket.last_arrived_us - ticket.first_asked_us;
  }
  if (ticket.produced_us != 0) {
    report->prefill_us =
        std::clamp<int64_t>(ticket.produced_us - ticket.first_asked_us, 0, report->observed_us);
  }
  report->encode_us = ticket.encode_us;
  report->wire_us = static_cast<int64_t>(ticket.wire_us);
  report->decode_us = ticket.decode_us;
  return report;
}

std::shared_ptr<const kv::TransferReport> Core::Close(kv::TicketId id, const kv::TicketFate& fate) {
  Later later;
  TicketPtr ticket;
  std::shared_ptr<const kv::TransferReport> report;
  {
    MutexLock lock(mutex_);
    const auto it = tickets_.find(id);
    KVIK_CHECK(it != tickets_.end(), "a ticket that is not open is closed");
    ticket = it->second;
    tickets_.erase(it);
    --counters_.open_tickets;
    ticket->closed = true;
    events_->Forget(id);
    ticket->planned.clear();
    for (const LoadJobPtr& job : std::vector<LoadJobPtr>(ticket->waiting)) {
      StopWaiting(*ticket, job);
      NotComing(*ticket, job->wanted, kv::LoadEnd::kGivenUp);
    }
    for (const LoadJobPtr& job : std::vector<LoadJobPtr>(ticket->sharing)) {
      if (const LoadJobPtr loader = job->loader.lock(); loader != nullptr && !loader->copying) {
        StopSharing(*ticket, job);
        NotComing(*ticket, job->wanted, kv::LoadEnd::kGivenUp);
      }
    }
    for (const LoadJobPtr& job : ticket->running) {
      job->why_ended = kv::LoadEnd::kGivenUp;
      if (job->load != nullptr) {
        later.cancel.push_back(job->load);
      }
    }
    // How fast the engine computes under its present load, from requests that only computed.
    const bool only_computed = ticket->first_asked_us == 0 && ticket->resident_blocks == 0 &&
                               !ticket->resumed && fate.first_token_us > fate.scheduled_us &&
                               fate.scheduled_us > 0;
    if (only_computed) {
      const double modelled = options_.compute.RecomputeUs(0, ticket->facts.num_tokens);
      if (modelled > 0) {
        pace_.Add(modelled, static_cast<double>(fate.first_token_us - fate.scheduled_us));
      }
    }
    report = ReportOf(*ticket);
    if (report != nullptr && report->observed_us > 0) {
      counters_.predicted_us += report->predicted_us;
      counters_.observed_us += report->observed_us;
      counters_.remote_prefill_us += report->prefill_us;
      counters_.remote_encode_us += report->encode_us;
    }
  }
  Do(std::move(later));
  if (storer_ != nullptr) {
    storer_->End(id);
  }
  if (live_ != nullptr) {
    live_->End(id);
  }
  return report;
}

}  // namespace kvik::connector
