// SPDX-License-Identifier: Apache-2.0
// Setting up and taking down, look-ups, what to load, and what goes out.
#include "connector/core.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace kvik::connector {
namespace {

constexpr int64_t kSweepUs = 250'000;
constexpr double kMemoryBytesPerS = 4e9;  // of a store in this process, until it is measured
constexpr int64_t kProbePatienceUs = 500'000;
constexpr double kLeastPace = 0.1;
constexpr double kMostPace = 20;

}  // namespace

// ---- Setting up ----

std::unique_ptr<SourceState> Core::MakeState(std::shared_ptr<ObjectSource> source,
                                             double initial_bytes_per_s) const {
  SourceState::Setup setup;
  setup.source = std::move(source);
  setup.goodput = options_.goodput;
  if (initial_bytes_per_s > 0) {
    setup.goodput.initial_bytes_per_s = initial_bytes_per_s;
  }
  setup.controller = options_.controller;
  const codec::ModelFacts& model = profiles_->model();
  setup.controller.raw_bytes_per_token =
      4.0 * model.num_layers * model.num_kv_heads * model.head_dim;
  setup.controller.frames_per_chunk = model.num_layers;
  setup.controller.chunk_tokens = profiles_->raw().chunk_tokens;
  setup.decode_threads = std::max(options_.io_threads, 1);
  return std::make_unique<SourceState>(std::move(setup), profiles_, options_.speeds);
}

void Core::AddSource(std::shared_ptr<ObjectSource> source, double initial_bytes_per_s) {
  sources_.push_back(MakeState(std::move(source), initial_bytes_per_s));
}

Result<void> Core::Open(const ConnectorParts& parts) {
  if (options_.kv_profile != kAdaptive) {
    fixed_ = profiles_->Find(options_.kv_profile);
    if (fixed_ == nullptr) {
      std::string names = kAdaptive;
      for (const CodecProfile& profile : profiles_->all()) {
        names += ", " + profile.name;
      }
      return Err(ErrorCode::kInvalidInput, "no profile is called \"%s\"; there are %s",
                 options_.kv_profile.c_str(), names.c_str());
    }
  }
  StorerOptions storing;
  for (const std::string& name : options_.store_profiles) {
    const CodecProfile* const profile = profiles_->Find(name);
    if (profile == nullptr) {
      return Err(ErrorCode::kInvalidInput, "KV cannot be stored as \"%s\": no such profile",
                 name.c_str());
    }
    storing.profiles.push_back(profile);
  }
  if (storing.profiles.empty()) {
    storing.profiles = fixed_ != nullptr ? std::vector<const CodecProfile*>{fixed_}
                                         : profiles_->ForStoring(options_.speeds);
  }

  MutexLock lock(mutex_);
  if (parts.store != nullptr) {
    store_source_ =
        std::make_shared<StoreSource>(*parts.store, options_.tenant, store_io_, put_io_, clock_);
    AddSource(store_source_, kMemoryBytesPerS);
    storing.targets.push_back(store_source_);
  }
  for (const std::string& address : options_.pools) {
    if (endpoint_ == nullptr) {
      return Err(ErrorCode::kInvalidInput, "the pool %s cannot be reached without a network",
                 address.c_str());
    }
    const std::shared_ptr<PeerSource> pool = MakePeer("pool", address);
    AddSource(pool, 0);
    storing.targets.push_back(pool);
  }
  for (const auto& source : parts.sources) {
    AddSource(source, 0);
  }
  storing.targets.insert(storing.targets.end(), parts.targets.begin(), parts.targets.end());
  common_sources_ = sources_.size();

  if (options_.store_new_kv && !storing.targets.empty()) {
    storing.root = options_.root;
    storing.max_share = options_.max_storing_share;
    storing.put_timeout_us = options_.put_timeout_us;
    storer_ = Storer::Create(std::move(storing), encode_io_, scratch_, wants_, clock_);
  }
  if (parts.node != nullptr) {
    LiveCacheOptions live = options_.live;
    live.compute = options_.compute;
    live.root = options_.root;
    live_ = LiveCache::Create(live, profiles_, io_, scratch_, wants_, clock_);
    node_ = parts.node;
  }
  return {};
}

void Core::Attach(const kv::ConnectorHost& host) {
  events_->Open(host.wake);
  bool moves = host.geometry.has_value() && !host.arena.empty();
  if (moves) {
    if (const auto fits = CheckGeometry(*host.geometry, profiles_->model()); !fits.has_value()) {
      LogWarning("no KV is loaded or stored: %s", fits.error().message.c_str());
      moves = false;
    }
  }
  {
    MutexLock lock(mutex_);
    host_ = host;
    moves_bytes_ = moves;
  }
  if (!moves) {
    return;
  }
  if (storer_ != nullptr) {
    storer_->Attach(host, events_);
  }
  if (live_ != nullptr) {
    live_->Attach(host, events_);
    node_->SetLive(live_);
  }
  ArmSweep();
}

void Core::ArmSweep() {
  if (storer_ == nullptr && live_ == nullptr) {
    return;
  }
  io_.PostAt(clock_.NowMicros() + kSweepUs, [weak = weak_from_this()] {
    if (const auto core = weak.lock()) {
      if (core->storer_ != nullptr) {
        core->storer_->Sweep();
      }
      if (core->live_ != nullptr) {
        core->live_->Sweep();
      }
      core->ArmSweep();
    }
  });
}

void Core::Detach() {
  std::vector<std::shared_ptr<ChunkLoad>> cancel;
  {
    MutexLock lock(mutex_);
    if (std::exchange(detached_, true)) {
      return;
    }
    for (const LoadJobPtr& job : jobs_.Running()) {
      if (job->load != nullptr) {
        cancel.push_back(job->load);
      }
    }
    for (const auto& [id, ticket] : tickets_) {
      ticket->closed = true;
      ticket->waiting.clear();
    }
    tickets_.clear();
    jobs_.ClearWaiting();
  }
  if (node_ != nullptr) {
    node_->SetLive(nullptr);
  }
  for (const auto& load : cancel) {
    load->Cancel();
  }
  encode_io_.Stop();  // encodes what waits: that needs the engine's blocks, writing it does not
  if (storer_ != nullptr) {
    storer_->Detach();
  }
  if (live_ != nullptr) {
    live_->Detach();
  }
  io_.Stop();  // all else that reads or writes the arena runs there
  events_->Close();
}

void Core::Shutdown() {
  Detach();
  store_io_.Stop();
  put_io_.Stop();
  std::vector<std::unique_ptr<SourceState>> sources;
  {
    MutexLock lock(mutex_);
    sources.swap(sources_);  // ends calls to peers
    common_sources_ = 0;
  }
}

// ---- Looking up ----

std::shared_ptr<const Core::Peer> Core::PeerOf(const std::string& address,
                                               std::unique_ptr<SourceState>& forgotten) {
  const int64_t now = clock_.NowMicros();
  if (const auto found = peers_.find(address); found != peers_.end()) {
    found->second->used_us = now;
    return found->second;
  }
  for (size_t i = 0; i < options_.pools.size(); ++i) {
    if (options_.pools[i] == address) {
      return nullptr;  // it is asked anyway
    }
  }
  if (endpoint_ == nullptr) {
    return nullptr;
  }
  size_t source = sources_.size();
  if (peers_.size() < options_.max_peers) {
    AddSource(MakePeer("peer", address), 0);
  } else {
    // Servers come and go, and a client can name anything: whom nobody has named for longest and
    // no request knows any more makes room.
    auto oldest = peers_.end();
    for (auto peer = peers_.begin(); peer != peers_.end(); ++peer) {
      if (peer->second.use_count() == 1 &&
          (oldest == peers_.end() || peer->second->used_us < oldest->second->used_us)) {
        oldest = peer;
      }
    }
    if (oldest == peers_.end()) {
      return nullptr;
    }
    source = oldest->second->source;
    peers_.erase(oldest);
    forgotten = std::exchange(sources_[source], MakeState(MakePeer("peer", address), 0));
  }
  return peers_.emplace(address, std::make_shared<Peer>(Peer{source, now})).first->second;
}

void Core::Ask(const kv::LoadRequest& request) {
  auto ticket = std::make_shared<Ticket>();
  ticket->id = request.ticket;
  ticket->asked_us = clock_.NowMicros();
  ticket->slo_us = request.slo_us;
  ticket->resumed = request.resumed;
  ticket->transfer = request.transfer;
  LoadFacts& facts = ticket->facts;
  facts.request = request.request;
  facts.keys.assign(request.keys.begin(), request.keys.end());
  facts.num_loadable =
      std::min(request.num_loadable,
               static_cast<int32_t>(std::min(request.keys.size(), transfer::kMaxLookupHashes)));
  facts.num_tokens = request.num_tokens;
  facts.quality = request.quality;
  facts.workload = request.workload.empty() ? options_.default_workload : request.workload;
  facts.slo_end_us = request.slo_ttft_us > 0 ? request.submitted_us + request.slo_ttft_us : 0;
  ticket->resident = request.resident;
  for (const kv::BlockRange& range : request.resident) {
    ticket->resident_blocks += range.num_blocks;
  }

  std::vector<std::pair<size_t, std::shared_ptr<ObjectSource>>> ask;
  transfer::LookupRequest lookup;
  bool moves = false;
  std::unique_ptr<SourceState> forgotten;  // ends its connection when the lock is let go
  {
    MutexLock lock(mutex_);
    moves = moves_bytes_ && !detached_;
    facts.numerics = host_.numerics;
    KVIK_CHECK(tickets_.emplace(ticket->id, ticket).second, "a ticket is asked for once");
    ++counters_.open_tickets;
    const bool useful = moves && facts.num_loadable > ticket->resident_blocks;
    if (useful) {
      for (size_t i = 0; i < common_sources_; ++i) {
        ask.emplace_back(i, sources_[i]->shared());
      }
      if (request.transfer != nullptr && !request.transfer->peer.empty()) {
        if (const auto peer = PeerOf(request.transfer->peer, forgotten)) {
          ticket->peer = peer->source;
          ticket->peer_use = peer;
          ask.emplace_back(*ticket->peer, sources_[*ticket->peer]->shared());
        }
      }
    }
    ticket->answers_missing = static_cast<int>(ask.size());
    if (!ask.empty()) {
      ++counters_.lookups;
      counters_.queried_blocks += facts.num_loadable - ticket->resident_blocks;
    }
  }
  if (moves && storer_ != nullptr) {
    storer_->Begin(ticket->id, facts.keys);
  }
  if (moves && live_ != nullptr) {
    live_->Begin(ticket->id, facts.keys, request.transfer != nullptr && request.transfer->for_peer);
  }
  if (ask.empty()) {
    events_->Push(kv::Answered{ticket->id});
    return;
  }
  lookup.domain = facts.keys.front().domain;
  // Of all full blocks: the last one is computed in any case, but an object may end with it.
  const size_t asked = std::min(facts.keys.size(), transfer::kMaxLookupHashes);
  for (size_t i = 0; i < asked; ++i) {
    lookup.hashes.push_back(facts.keys[i].hash);
  }
  // What a lossy encoding is worth for this workload is judged here.
  lookup.quality = {facts.quality.allow_lossy, 0.0F};
  lookup.numerics = facts.numerics;
  lookup.tenant = options_.tenant;
  for (const auto& [index, source] : ask) {
    const int64_t patience_us =
        index == ticket->peer ? options_.promised_patience_us : options_.lookup_patience_us;
    source->Lookup(lookup, ticket->asked_us + patience_us,
                   [self = shared_from_this(), ticket,
                    source_index = index](Result<std::vector<transfer::FoundObject>> found) {
                     self->OnFound(ticket, source_index, std::move(found));
                   });
    ProbeIfSilent(index, source);
  }
}

// What is compressed more slowly than the link could take it says nothing about the link, and a
// link that was slow for a while may be fast again.
void Core::ProbeIfSilent(size_t index, const std::shared_ptr<ObjectSource>& source) {
  std::optional<uint64_t> bytes;
  {
    MutexLock lock(mutex_);
    if (index < sources_.size()) {
      bytes = sources_[index]->goodput.TakeProbe(clock_.NowMicros());
    }
  }
  if (bytes.has_value()) {
    Probe(index, source, *bytes);
  }
}

void Core::Probe(size_t index, const std::shared_ptr<ObjectSource>& source, uint64_t bytes) {
  source->Probe(bytes, clock_.NowMicros() + kProbePatienceUs,
                [self = shared_from_this(), index,
                 weak = std::weak_ptr(source)](const control::Goodput::Probe& probe) {
                  const auto asked = weak.lock();
                  std::optional<uint64_t> more;
                  {
                    MutexLock lock(self->mutex_);
                    if (asked != nullptr && !self->detached_ && index < self->sources_.size() &&
                        self->sources_[index]->shared() == asked) {
                      more =
                          self->sources_[index]->goodput.AddProbe(probe, self->clock_.NowMicros());
                    }
                  }
                  if (more.has_value()) {
                    self->Probe(index, asked, *more);
                  }
                });
}

void Core::OnFound(const TicketPtr& ticket, size_t source,
                   Result<std::vector<transfer::FoundObject>> found) {
  std::vector<kv::ObjectKey> known;
  std::vector<kv::ObjectKey> prefetch;
  {
    MutexLock lock(mutex_);
    KVIK_CHECK(ticket->answers_missing > 0);
    --ticket->answers_missing;
    if (!found.has_value()) {
      ++counters_.lookup_failures;
    }
    if (ticket->closed || detached_) {
      return;
    }
    bool any = false;
    if (found.has_value()) {
      const LoadRules rules = Rules(*ticket);
      for (transfer::FoundObject& object : *found) {
        if (Plausible(ticket->facts, *profiles_, rules, object)) {
          any = true;
          if (object.info.key.profile_hash != kAnyProfile && source < common_sources_) {
            known.push_back(object.info.key);
          }
          ticket->found.push_back({source, std::move(object)});
        }
      }
    }
    if (!found.has_value()) {
      Fail(*ticket, source, found.error());
    } else if (!any) {
      Fail(*ticket, source, Err(ErrorCode::kNotFound, "it has none of the request's KV"));
    }
    if (any && sources_[source]->shared() == store_source_) {
      prefetch = ToPrefetch(*ticket, source);
    }
    if (ticket->answers_missing == 0) {
      counters_.found_blocks += FoundBlocks(*ticket);
      if (!ticket->failed) {
        events_->Push(kv::Answered{ticket->id});
      }
    }
  }
  // When too many wait already these are read when they are asked for.
  if (!prefetch.empty() && store_source_->Prefetch(prefetch)) {
    MutexLock lock(mutex_);
    counters_.prefetched_objects += static_cast<int64_t>(prefetch.size());
  }
  if (storer_ != nullptr) {
    for (const kv::ObjectKey& key : known) {
      storer_->Known(key);
    }
  }
}

// What an object that was found is worth to this request.
kv::BlockQuality Core::QualityOf(const Ticket& ticket, const kv::ObjectInfo& info) const {
  const CodecProfile* const profile = profiles_->FindHash(info.key.profile_hash);
  return profile == nullptr ? info.quality
                            : QualityFor(*profile, info.quality, ticket.facts.workload);
}

// Objects that `source` has on a disk: while the request waits they can come nearer. Which encoding
// will be chosen is not known yet; of each chunk it is likely the one that costs least.
std::vector<kv::ObjectKey> Core::ToPrefetch(const Ticket& ticket, size_t source) {
  struct Best {
    const transfer::FoundObject* found = nullptr;
    double cost_us = 0;
  };
  std::unordered_map<kv::ContentKey, Best, kv::ContentKeyHash> cheapest;
  SourceState& state = *sources_[source];
  static_cast<void>(state.Controller(/*live=*/false));  // prices are its
  for (const FoundAt& at : ticket.found) {
    const kv::ObjectInfo& info = at.found.info;
    const CodecProfile* const profile = profiles_->FindHash(info.key.profile_hash);
    if (at.source != source || profile == nullptr ||
        !ticket.facts.quality.Accepts(QualityOf(ticket, info))) {
      continue;
    }
    const auto end = static_cast<int32_t>(at.found.hash_index) + 1;
    const kv::BlockRange range{end - info.num_blocks, info.num_blocks};
    const bool resident =
        std::any_of(ticket.resident.begin(), ticket.resident.end(), [&](const kv::BlockRange& run) {
          return run.first_block <= range.first_block && run.end_block() >= range.end_block();
        });
    if (resident) {
      continue;
    }
    const double raw_bytes = static_cast<double>(info.num_blocks) *
                             static_cast<double>(host_.geometry->bytes_per_block());
    const int64_t tokens = int64_t{info.num_blocks} * host_.block_size_tokens;
    const double cost_us = static_cast<double>(info.size_bytes) * state.goodput.us_per_byte() +
                           state.Price(/*live=*/false, *profile, tokens, raw_bytes).decode_us;
    Best& best = cheapest[info.key.last_block.content];
    if (best.found == nullptr || cost_us < best.cost_us) {
      best = {&at.found, cost_us};
    }
  }
  std::vector<const transfer::FoundObject*> chosen;
  for (const auto& [key, best] : cheapest) {
    if (best.found->info.tier == kv::ObjectTier::kDisk) {
      chosen.push_back(best.found);
    }
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const auto* a, const auto* b) { return a->hash_index > b->hash_index; });
  // From the tail, as they will be asked for. If the request does not wait, the first few are being
  // read already: reading ahead of those is of more use.
  const size_t first_few =
      std::min(chosen.size(), static_cast<size_t>(std::max(options_.max_loads_in_flight, 0)));
  std::rotate(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(first_few), chosen.end());
  std::vector<kv::ObjectKey> keys;
  for (const transfer::FoundObject* found : chosen) {
    keys.push_back(found->info.key);
  }
  return keys;
}

// How many blocks of the request somebody has in a quality that it accepts.
int32_t Core::FoundBlocks(const Ticket& ticket) const {
  std::vector<bool> found(ticket.facts.keys.size());
  for (const FoundAt& at : ticket.found) {
    const kv::ObjectInfo& info = at.found.info;
    if (!ticket.facts.quality.Accepts(QualityOf(ticket, info))) {
      continue;
    }
    for (int32_t i = 0; i < at.found.info.num_blocks; ++i) {
      found[at.found.hash_index - static_cast<uint32_t>(i)] = true;
    }
  }
  return static_cast<int32_t>(
      std::count(found.begin(), found.begin() + ticket.facts.num_loadable, true));
}

// The request's KV was promised by a peer and that did not keep it.
void Core::Fail(Ticket& ticket, size_t source, const Error& error) {
  if (options_.failure_policy != FailurePolicy::kFail || ticket.peer != source || ticket.closed ||
      std::exchange(ticket.failed, true)) {
    return;
  }
  events_->Push(kv::Failed{ticket.id, error.Wrap("KV of " + sources_[source]->report.name)});
}

// ---- Claiming ----

LoadRules Core::Rules(const Ticket& ticket) const {
  LoadRules rules;
  rules.fixed = fixed_;
  rules.block_size_tokens = host_.block_size_tokens;
  rules.raw_bytes_per_block = static_cast<double>(host_.geometry->bytes_per_block());
  rules.compute = options_.compute;
  rules.compute_factor = std::clamp(pace_.factor(), kLeastPace, kMostPace);
  rules.promised_by = ticket.peer;
  rules.promised_compute_weight = options_.promised_compute_weight;
  rules.compute_share = options_.compute_share;
  rules.step_tokens = options_.step_tokens;
  rules.frames_per_chunk = host_.geometry->num_layers;
  return rules;
}

std::vector<kv::BlockRange> Core::Claim(kv::TicketId id, std::span<const kv::BlockRange> missing) {
  MutexLock lock(mutex_);
  const auto it = tickets_.find(id);
  if (it == tickets_.end() || it->second->found.empty() || missing.empty()) {
    return {};
  }
  Ticket& ticket = *it->second;
  std::vector<kv::BlockRange> loadable;
  for (kv::BlockRange range : missing) {
    const int32_t end = std::min(range.end_block(), ticket.facts.num_loadable);
    if (range.first_block < end) {
      loadable.push_back({range.first_block, end - range.first_block});
    }
  }
  if (loadable.empty()) {
    return {};
  }
  std::vector<SourceState*> sources;
  for (const auto& source : sources_) {
    sources.push_back(source.get());
  }
  const LoadRules rules = Rules(ticket);
  LoadChoice choice = ChooseLoads(ticket.facts, *profiles_, rules, ticket.found, loadable, sources,
                                  clock_.NowMicros(), rng_);
  ticket.why = WhyText(choice, rules, sources);
  ticket.plan = std::move(choice.plan);
  ticket.decisions = std::move(choice.decisions);
  for (const SourceDecision& decided : ticket.decisions) {
    SourceState& source = *sources_[decided.source];
    if (source.Existing(decided.live, decided.generation) != nullptr) {
      const CodecProfile* const profile = source.ProfileOf(decided.live, decided.decision.arm);
      ++source.report.choices[{profile->name, decided.live}];
    }
  }
  ticket.planned = std::move(choice.loads);

  std::vector<kv::BlockRange> claimed;
  for (const LoadCandidate& candidate : ticket.planned) {
    const kv::BlockRange& wanted = candidate.wanted;
    counters_.claimed_blocks += wanted.num_blocks;
    // Ranges of different gaps stay apart: they are not adjacent.
    if (!claimed.empty() && claimed.back().end_block() == wanted.first_block) {
      claimed.back().num_blocks += wanted.num_blocks;
    } else {
      claimed.push_back(wanted);
    }
  }
  return claimed;
}

// ---- Going out ----

bool Core::Offer(const kv::SealedBlocks& sealed) {
  {
    MutexLock lock(mutex_);
    if (!moves_bytes_ || detached_) {
      return false;
    }
    if (sealed.want == 0) {
      counters_.offered_blocks += static_cast<int64_t>(sealed.blocks.size());
    }
  }
  const bool store = storer_ != nullptr && storer_->Wants(sealed);
  const bool serve = live_ != nullptr && live_->Wants(sealed);
  if (!store && !serve) {
    return false;
  }
  std::vector<HeldBlockPtr> held;
  for (const kv::SealedBlock& block : sealed.blocks) {
    held.push_back(std::make_shared<HeldBlock>(block, events_));
  }
  {
    MutexLock lock(mutex_);
    counters_.taken_blocks += static_cast<int64_t>(held.size());
  }
  if (store) {
    storer_->Take(sealed, held);
  }
  if (serve) {
    live_->Take(sealed, held);
  }
  return !held.empty();
}

void Core::NeedRoom(int32_t missing_blocks) {
  if (storer_ != nullptr) {
    missing_blocks -= storer_->NeedRoom(missing_blocks);
  }
  if (live_ != nullptr && missing_blocks > 0) {
    live_->NeedRoom(missing_blocks);
  }
}

// ---- Telling ----

ConnectorCounters Core::counters() const {
  ConnectorCounters counters;
  {
    MutexLock lock(mutex_);
    counters = counters_;
    counters.compute_pace = pace_.factor();
  }
  if (storer_ != nullptr) {
    storer_->AddTo(counters);
  }
  if (live_ != nullptr) {
    live_->AddTo(counters);
  }
  counters.released_blocks = events_->released();
  counters.held_blocks = counters.taken_blocks - counters.released_blocks;
  return counters;
}

std::vector<SourceReport> Core::sources() const {
  std::vector<SourceReport> reports;
  std::vector<std::shared_ptr<ObjectSource>> sources;
  {
    MutexLock lock(mutex_);
    for (const auto& source : sources_) {
      reports.push_back(source->report);
      reports.back().goodput_bytes_per_s = source->goodput.bytes_per_s();
      sources.push_back(source->shared());
    }
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    reports[i].link = sources[i]->link();
  }
  return reports;
}

std::vector<std::string> Core::Decisions(size_t limit) const {
  MutexLock lock(mutex_);
  std::vector<std::pair<int64_t, std::string>> texts;
  for (const auto& source : sources_) {
    for (const bool live : {false, true}) {
      const control::Controller* const controller =
          source->Existing(live, source->generation(live));
      if (controller == nullptr) {
        continue;
      }
      for (const control::DecisionRecord& record : controller->ring().Last(limit)) {
        texts.emplace_back(record.question.now_us, control::WhyJson(record, controller->table()));
      }
    }
  }
  std::stable_sort(texts.begin(), texts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> last;
  for (size_t i = texts.size() - std::min(limit, texts.size()); i < texts.size(); ++i) {
    last.push_back(std::move(texts[i].second));
  }
  return last;
}

}  // namespace kvik::connector
