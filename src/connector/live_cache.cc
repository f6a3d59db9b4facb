// SPDX-License-Identifier: Apache-2.0
#include "connector/live_cache.h"

#include <algorithm>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "connector/chunk.h"
#include "connector/chunk_sender.h"
#include "connector/load_choice.h"

namespace kvik::connector {
namespace {

// Hashes of one request's blocks, in order.
struct Chain {
  kv::CacheDomain domain;
  std::vector<kv::BlockHash> hashes;
  [[nodiscard]] kv::ContentKey Key(size_t i) const { return {hashes[i], domain}; }
};
using ChainPtr = std::shared_ptr<const Chain>;

struct Place {
  ChainPtr chain;
  size_t at = 0;
};

// A peer waits for one chunk.
class LiveGet final : public ObjectProducer {
 public:
  const CodecProfile* profile = nullptr;
  Place last;                        // of the chunk
  size_t first = 0;                  // in the chain
  std::vector<HeldBlockPtr> blocks;  // null: not here yet
  size_t missing = 0;
  bool asked = false;    // the engine's answer is still to come
  bool settled = false;  // handed to a sender, or failed
  int64_t asked_us = 0;
  int64_t deadline_us = 0;
  size_t index = 0;
  kv::ObjectKey key;
  std::shared_ptr<transfer::GetReply> reply;
  std::function<void()> done;

  void OnRoom() override { Forward(&ChunkSender::OnRoom); }
  void Stop() override { Forward(&ChunkSender::Stop); }
  void SetSender(std::shared_ptr<ChunkSender> sender) KVIK_EXCLUDES(mutex_) {
    bool stop = false;
    {
      MutexLock lock(mutex_);
      sender_ = sender;
      stop = stopped_;
    }
    if (stop) {
      sender->Stop();
    }
  }
  [[nodiscard]] bool stopped() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return stopped_;
  }

 private:
  void Forward(void (ChunkSender::*call)()) KVIK_EXCLUDES(mutex_) {
    std::shared_ptr<ChunkSender> sender;
    {
      MutexLock lock(mutex_);
      stopped_ = stopped_ || call == &ChunkSender::Stop;
      sender = sender_;
    }
    if (sender != nullptr) {
      ((*sender).*call)();
    }
  }

  Mutex mutex_;
  std::shared_ptr<ChunkSender> sender_ KVIK_GUARDED_BY(mutex_);
  bool stopped_ KVIK_GUARDED_BY(mutex_) = false;
};
using LiveGetPtr = std::shared_ptr<LiveGet>;

struct LiveLookup {
  ChainPtr chain;
  kv::MinQuality quality;
  std::function<void(std::vector<transfer::FoundObject>)> done;
};

class LiveCacheImpl final : public LiveCache, public std::enable_shared_from_this<LiveCacheImpl> {
 public:
  LiveCacheImpl(const LiveCacheOptions& options, std::shared_ptr<const ProfileSet> profiles,
                IoPool& io, ScratchPool& scratch, WantIds& wants, const Clock& clock)
      : options_(options),
        profiles_(std::move(profiles)),
        io_(io),
        scratch_(scratch),
        wants_(wants),
        clock_(clock) {}

  void Attach(const kv::ConnectorHost& host, std::shared_ptr<EventQueue> events) override {
    MutexLock lock(mutex_);
    host_ = host;
    events_ = std::move(events);
    attached_ = true;
  }

  void Detach() override {
    std::vector<std::function<void()>> calls;
    std::vector<std::shared_ptr<ChunkSender>> senders;
    {
      MutexLock lock(mutex_);
      attached_ = false;
      held_.clear();
      interest_.clear();
      for (const LiveGetPtr& get : std::list<LiveGetPtr>(waiting_)) {
        FailGet(get, Err(ErrorCode::kUnavailable, "shutting down"), calls);
      }
      for (auto& [want, lookup] : lookups_) {
        calls.push_back([lookup = std::move(lookup)] { lookup.done({}); });
      }
      lookups_.clear();
      asked_gets_.clear();
      senders.assign(senders_.begin(), senders_.end());
    }
    for (const auto& call : calls) {
      call();
    }
    for (const auto& sender : senders) {
      sender->Stop();
    }
  }

  void Begin(kv::TicketId ticket, std::span<const kv::ContentKey> keys, bool for_peer) override {
    if (keys.empty()) {
      return;
    }
    auto chain = std::make_shared<Chain>();
    chain->domain = keys.front().domain;
    for (const kv::ContentKey& key : keys) {
      chain->hashes.push_back(key.hash);
    }
    MutexLock lock(mutex_);
    for (const kv::ContentKey& key : keys) {
      ++promised_[key];
    }
    Remember(chain);
    tickets_[ticket] = {std::move(chain), for_peer};
  }

  void End(kv::TicketId ticket) override {
    MutexLock lock(mutex_);
    const auto found = tickets_.find(ticket);
    if (found == tickets_.end()) {
      return;
    }
    const Chain& chain = *found->second.chain;
    for (size_t i = 0; i < chain.hashes.size(); ++i) {
      const auto promise = promised_.find(chain.Key(i));
      if (--promise->second == 0) {
        promised_.erase(promise);
      }
    }
    tickets_.erase(found);
    // What was loaded or resident here was never offered; it may be there all the same.
    for (const LiveGetPtr& get : waiting_) {
      if (!get->asked && !StillPromised(*get)) {
        AskEngine(get);
      }
    }
  }

  bool Wants(const kv::SealedBlocks& sealed) const override {
    MutexLock lock(mutex_);
    if (!attached_) {
      return false;
    }
    if (sealed.want != 0) {
      return lookups_.contains(sealed.want) || asked_gets_.contains(sealed.want);
    }
    if (sealed.blocks.empty()) {
      return false;
    }
    const auto ticket = tickets_.find(sealed.ticket);
    if (ticket != tickets_.end() && ticket->second.for_peer && HasRoom(sealed.blocks.size())) {
      return true;
    }
    for (const kv::SealedBlock& block : sealed.blocks) {
      if (interest_.contains(block.key.content)) {
        return true;
      }
    }
    return false;
  }

  void Take(const kv::SealedBlocks& sealed, std::span<const HeldBlockPtr> held) override {
    std::vector<std::function<void()>> calls;
    {
      MutexLock lock(mutex_);
      if (!attached_) {
        return;
      }
      const auto ticket = tickets_.find(sealed.ticket);
      const bool for_peer = ticket != tickets_.end() && ticket->second.for_peer;
      for (const HeldBlockPtr& block : held) {
        const kv::ContentKey& key = block->sealed().key.content;
        if (!(block->sealed().key.numerics == host_.numerics)) {
          continue;
        }
        for (const LiveGetPtr& get : waiting_) {
          Fill(*get, key, block);
        }
        const bool of_interest = sealed.want != 0 || for_peer || interest_.contains(key);
        if (of_interest && HasRoom(1)) {
          held_.insert_or_assign(key, Held{block, clock_.NowMicros() + options_.lease_us});
        }
      }
      if (sealed.want != 0) {
        if (const auto lookup = lookups_.find(sealed.want); lookup != lookups_.end()) {
          AnswerLookup(lookup->second, calls);
          lookups_.erase(lookup);
        }
        if (const auto get = asked_gets_.find(sealed.want); get != asked_gets_.end()) {
          get->second->asked = false;
          asked_gets_.erase(get);
        }
      }
      SettleGets(calls);
    }
    for (const auto& call : calls) {
      call();
    }
  }

  int32_t NeedRoom(int32_t missing_blocks) override {
    MutexLock lock(mutex_);
    int32_t freed = 0;
    // Those whose lease ends first.
    while (freed < missing_blocks && !held_.empty()) {
      auto oldest = held_.begin();
      for (auto it = held_.begin(); it != held_.end(); ++it) {
        if (it->second.until_us < oldest->second.until_us) {
          oldest = it;
        }
      }
      freed += oldest->second.block.use_count() == 1 ? 1 : 0;
      held_.erase(oldest);
    }
    return freed;
  }

  void Sweep() override {
    std::vector<std::function<void()>> calls;
    {
      MutexLock lock(mutex_);
      const int64_t now = clock_.NowMicros();
      for (auto it = held_.begin(); it != held_.end();) {
        const bool over = it->second.until_us <= now;
        counters_.expired_leases += over ? 1 : 0;
        it = over ? held_.erase(it) : std::next(it);
      }
      std::erase_if(interest_, [&](const auto& item) { return item.second <= now; });
      for (const LiveGetPtr& get : std::list<LiveGetPtr>(waiting_)) {
        if (get->deadline_us <= now) {
          FailGet(get, Err(ErrorCode::kTimeout, "not all of its blocks were computed in time"),
                  calls);
        } else if (get->stopped()) {
          FailGet(get, Err(ErrorCode::kUnavailable, "cancelled"), calls);
        }
      }
    }
    for (const auto& call : calls) {
      call();
    }
  }

  void AddTo(ConnectorCounters& counters) const override {
    MutexLock lock(mutex_);
    counters.served_objects += counters_.served_objects;
    counters.served_failures += counters_.served_failures;
    counters.served_wire_bytes += counters_.served_wire_bytes;
    counters.expired_leases += counters_.expired_leases;
    counters.encode_us += counters_.encode_us;
  }

  void Lookup(const transfer::CallContext& context, const transfer::LookupRequest& request,
              std::function<void(std::vector<transfer::FoundObject>)> done) override {
    // The engine answers between two of its steps; a peer that waits less is told what is known.
    const int64_t now = clock_.NowMicros();
    const int64_t left_us =
        context.deadline_us == transfer::kNever ? kLookupPatienceUs : context.deadline_us - now;
    const int64_t patience_us = std::min<int64_t>(left_us * 3 / 4, kLookupPatienceUs);
    std::vector<std::function<void()>> calls;
    {
      MutexLock lock(mutex_);
      if (!attached_ || !request.include_live || !(request.numerics == host_.numerics) ||
          request.hashes.empty()) {
        calls.push_back([&] { done({}); });
      } else {
        auto chain = std::make_shared<Chain>();
        chain->domain = request.domain;
        chain->hashes = request.hashes;
        Remember(chain);
        kv::Wanted wanted;
        bool all_promised = true;
        for (size_t i = 0; i < chain->hashes.size(); ++i) {
          const kv::ContentKey key = chain->Key(i);
          if (const auto held = held_.find(key); held != held_.end()) {
            held->second.until_us = now + options_.lease_us;
            continue;
          }
          if (promised_.contains(key)) {
            interest_[key] = now + options_.lease_us;
          } else {
            all_promised = false;
          }
          wanted.keys.push_back(key);
        }
        LiveLookup lookup{std::move(chain), request.quality, std::move(done)};
        // A step of the engine takes a while. What a running request has or will have is promised:
        // the peer gets that answer at once, and what is resident is looked for when it comes for
        // it.
        if (all_promised) {
          AnswerLookup(lookup, calls);
        } else {
          wanted.want = wants_.Next();
          const kv::WantId want = wanted.want;
          lookups_.emplace(want, std::move(lookup));
          events_->Push(std::move(wanted));
          io_.PostAt(now + patience_us,
                     [self = shared_from_this(), want] { self->LookupLate(want); });
        }
      }
    }
    for (const auto& call : calls) {
      call();
    }
  }

  std::shared_ptr<ObjectProducer> Get(const transfer::CallContext& context,
                                      const kv::ObjectKey& key, int32_t num_blocks, size_t index,
                                      std::shared_ptr<transfer::GetReply> reply,
                                      std::function<void()> done) override {
    auto get = std::make_shared<LiveGet>();
    get->index = index;
    get->key = key;
    get->asked_us = clock_.NowMicros();
    get->deadline_us = context.deadline_us;
    get->reply = std::move(reply);
    get->done = std::move(done);
    std::vector<std::function<void()>> calls;
    {
      MutexLock lock(mutex_);
      const auto place = index_.find(key.last_block.content);
      get->profile = profiles_->FindHash(key.profile_hash);
      waiting_.push_back(get);
      if (!attached_ || place == index_.end() || !(key.last_block.numerics == host_.numerics)) {
        FailGet(get, Err(ErrorCode::kNotFound, "nobody looked these blocks up here"), calls);
      } else if (get->profile == nullptr) {
        FailGet(get,
                Err(ErrorCode::kUnsupported, "this process does not know the profile %016llx",
                    static_cast<unsigned long long>(key.profile_hash)),
                calls);
      } else if (!PlaceOf(*get, place->second, num_blocks)) {
        FailGet(get,
                Err(ErrorCode::kInvalidInput, "%d blocks of a chunk that has no more than %d",
                    num_blocks, static_cast<int32_t>(place->second.at) + 1),
                calls);
      } else {
        for (size_t i = get->first; i <= get->last.at; ++i) {
          const auto held = held_.find(get->last.chain->Key(i));
          get->blocks.push_back(held != held_.end() ? held->second.block : nullptr);
          get->missing += get->blocks.back() == nullptr ? 1 : 0;
        }
        if (get->missing > 0) {
          for (size_t i = get->first; i <= get->last.at; ++i) {
            // Until then every block of it that is sealed is for this peer.
            interest_[get->last.chain->Key(i)] =
                std::min(get->deadline_us, clock_.NowMicros() + kLongestWaitUs);
          }
          AskEngine(get);
        }
        SettleGets(calls);
      }
    }
    for (const auto& call : calls) {
      call();
    }
    return get;
  }

 private:
  static constexpr int64_t kLookupPatienceUs = 2'000'000;
  static constexpr int64_t kLongestWaitUs = 600'000'000;
  struct Held {
    HeldBlockPtr block;
    int64_t until_us = 0;
  };
  struct TicketState {
    ChainPtr chain;
    bool for_peer = false;
  };

  [[nodiscard]] bool HasRoom(size_t blocks) const KVIK_REQUIRES(mutex_) {
    return static_cast<double>(held_.size() + blocks) <= options_.max_held_share * host_.num_blocks;
  }

  // So that a Get can be told by the hash of its last block alone.
  void Remember(const ChainPtr& chain) KVIK_REQUIRES(mutex_) {
    for (size_t i = 0; i < chain->hashes.size(); ++i) {
      index_.insert_or_assign(chain->Key(i), Place{chain, i});
    }
    remembered_.push_back(chain);
    remembered_blocks_ += chain->hashes.size();
    while (remembered_blocks_ > options_.max_remembered_blocks && remembered_.size() > 1) {
      const ChainPtr oldest = std::move(remembered_.front());
      remembered_.pop_front();
      remembered_blocks_ -= oldest->hashes.size();
      for (size_t i = 0; i < oldest->hashes.size(); ++i) {
        const auto found = index_.find(oldest->Key(i));
        if (found != index_.end() && found->second.chain == oldest) {
          index_.erase(found);
        }
      }
    }
  }

  void LookupLate(kv::WantId want) {
    std::vector<std::function<void()>> calls;
    {
      MutexLock lock(mutex_);
      const auto lookup = lookups_.find(want);
      if (lookup == lookups_.end()) {
        return;
      }
      AnswerLookup(lookup->second, calls);
      lookups_.erase(lookup);
    }
    for (const auto& call : calls) {
      call();
    }
  }

  // Runs of blocks that are here, and of those that are being computed.
  void AnswerLookup(LiveLookup& lookup, std::vector<std::function<void()>>& calls)
      KVIK_REQUIRES(mutex_) {
    struct State {
      bool there = false;
      bool promised = false;
      kv::BlockQuality quality;
    };
    const auto alike = [](const State& a, const State& b) {
      return a.there == b.there && a.promised == b.promised &&
             a.quality.fidelity == b.quality.fidelity && a.quality.q == b.quality.q;
    };
    const Chain& chain = *lookup.chain;
    const auto state_of = [&](size_t i) KVIK_REQUIRES(mutex_) {
      const kv::ContentKey key = chain.Key(i);
      State state;
      if (const auto held = held_.find(key); held != held_.end()) {
        state.quality = held->second.block->sealed().quality;
        state.there = lookup.quality.Accepts(state.quality);
      } else {
        state.promised = promised_.contains(key);
      }
      return state;
    };
    std::vector<transfer::FoundObject> found;
    for (size_t begin = 0; begin < chain.hashes.size();) {
      const State state = state_of(begin);
      size_t end = begin + 1;
      while (end < chain.hashes.size() && alike(state, state_of(end))) {
        ++end;
      }
      if (state.there || state.promised) {
        transfer::FoundObject run;
        run.hash_index = static_cast<uint32_t>(end - 1);
        run.info.key = {{chain.Key(end - 1), host_.numerics}, kAnyProfile};
        run.info.num_blocks = static_cast<int32_t>(end - begin);
        run.info.quality = state.quality;
        run.info.size_bytes = (end - begin) * host_.geometry->bytes_per_block();
        run.info.tier = kv::ObjectTier::kLive;
        if (state.promised) {
          const auto block_tokens = static_cast<int64_t>(host_.block_size_tokens);
          run.info.ready_in_us = static_cast<int64_t>(
              options_.compute.RecomputeUs(static_cast<int64_t>(begin) * block_tokens,
                                           static_cast<int64_t>(end - begin) * block_tokens));
        }
        found.push_back(run);
      }
      begin = end;
    }
    calls.push_back([done = std::move(lookup.done), found = std::move(found)] { done(found); });
  }

  // Where the blocks of `get` are; false: they would lie in more than one chunk.
  [[nodiscard]] bool PlaceOf(LiveGet& get, const Place& last, int32_t num_blocks) const
      KVIK_REQUIRES(mutex_) {
    const ChunkLayout layout = ChunkLayout::Of(get.profile->chunk_tokens, host_.block_size_tokens);
    const auto last_block = static_cast<int32_t>(last.at);
    const int32_t chunk_first = layout.FirstBlockOf(last_block);
    const int32_t first = num_blocks == 0 ? chunk_first : last_block - num_blocks + 1;
    if (first < chunk_first || first > last_block) {
      return false;
    }
    get.last = last;
    get.first = static_cast<size_t>(first);
    return true;
  }

  static void Fill(LiveGet& get, const kv::ContentKey& key, const HeldBlockPtr& block) {
    for (size_t i = 0; i < get.blocks.size(); ++i) {
      if (get.blocks[i] == nullptr && get.last.chain->Key(get.first + i) == key) {
        get.blocks[i] = block;
        --get.missing;
      }
    }
  }

  [[nodiscard]] bool StillPromised(const LiveGet& get) const KVIK_REQUIRES(mutex_) {
    for (size_t i = 0; i < get.blocks.size(); ++i) {
      if (get.blocks[i] == nullptr && !promised_.contains(get.last.chain->Key(get.first + i))) {
        return false;
      }
    }
    return true;
  }

  void AskEngine(const LiveGetPtr& get) KVIK_REQUIRES(mutex_) {
    kv::Wanted wanted;
    wanted.want = wants_.Next();
    for (size_t i = 0; i < get->blocks.size(); ++i) {
      if (get->blocks[i] == nullptr) {
        wanted.keys.push_back(get->last.chain->Key(get->first + i));
      }
    }
    get->asked = true;
    asked_gets_.emplace(wanted.want, get);
    events_->Push(std::move(wanted));
  }

  // Starts those that are whole, ends those that cannot become so.
  void SettleGets(std::vector<std::function<void()>>& calls) KVIK_REQUIRES(mutex_) {
    for (const LiveGetPtr& get : std::list<LiveGetPtr>(waiting_)) {
      if (get->missing == 0) {
        Send(get, calls);
      } else if (!get->asked && !StillPromised(*get)) {
        FailGet(get, Err(ErrorCode::kNotFound, "%zu of its blocks are gone", get->missing), calls);
      }
    }
  }

  void FailGet(const LiveGetPtr& get, const Error& error, std::vector<std::function<void()>>& calls)
      KVIK_REQUIRES(mutex_) {
    waiting_.remove(get);
    std::erase_if(asked_gets_, [&](const auto& item) { return item.second == get; });
    get->blocks.clear();
    ++counters_.served_failures;
    calls.push_back([get, error] {
      get->reply->Fail(get->index, error);
      get->done();
    });
  }

  // Who asked has it: the lease is over, or prompts that were handed over long ago would take the
  // room of those that nobody has come for yet. Another peer that was told of it finds it through
  // the engine, as long as it is cached there.
  void LetGo(const LiveGet& get) KVIK_REQUIRES(mutex_) {
    for (size_t i = get.first; i <= get.last.at; ++i) {
      held_.erase(get.last.chain->Key(i));
    }
  }

  void Send(const LiveGetPtr& get, std::vector<std::function<void()>>& calls)
      KVIK_REQUIRES(mutex_) {
    kv::BlockQuality quality;
    for (const HeldBlockPtr& block : get->blocks) {
      quality = WorseOf(quality, block->sealed().quality);
    }
    if (get->profile->lossy) {
      if (quality.fidelity == kv::Fidelity::kLossy) {
        FailGet(get,
                Err(ErrorCode::kUnsupported,
                    "these blocks depend on approximated ones and "
                    "are not approximated again"),
                calls);
        return;
      }
    }
    waiting_.remove(get);
    std::erase_if(asked_gets_, [&](const auto& item) { return item.second == get; });
    ChunkSenderSpec spec;
    spec.profile = get->profile;
    spec.geometry = *host_.geometry;
    spec.arena = host_.arena;
    spec.first_block = static_cast<int32_t>(get->first);
    spec.blocks = std::move(get->blocks);
    get->blocks.clear();
    spec.parent = get->first == 0 ? options_.root : get->last.chain->hashes[get->first - 1];
    spec.source = quality;
    spec.info.key = get->key;
    spec.info.num_blocks = static_cast<int32_t>(spec.blocks.size());
    spec.info.quality =
        get->profile->lossy ? kv::BlockQuality{kv::Fidelity::kLossy, get->profile->q} : quality;
    spec.info.size_bytes = spec.blocks.size() * host_.geometry->bytes_per_block();
    spec.info.tier = kv::ObjectTier::kLive;
    spec.index = get->index;
    spec.waited_us = std::max<int64_t>(clock_.NowMicros() - get->asked_us, 0);
    auto place = std::make_shared<std::list<std::shared_ptr<ChunkSender>>::iterator>();
    auto sender =
        ChunkSender::Create(std::move(spec), get->reply, io_, scratch_, clock_,
                            [self = shared_from_this(), get, place](const ChunkSent& sent) {
                              {
                                MutexLock lock(self->mutex_);
                                self->senders_.erase(*place);
                                self->counters_.served_objects += sent.ok ? 1 : 0;
                                self->counters_.served_failures += sent.ok ? 0 : 1;
                                self->counters_.served_wire_bytes += sent.wire_bytes;
                                self->counters_.encode_us += sent.encode_us;
                                if (sent.ok) {
                                  self->LetGo(*get);
                                }
                              }
                              get->done();
                            });
    senders_.push_back(sender);
    *place = std::prev(senders_.end());
    calls.push_back([get, sender] {
      sender->Start();
      get->SetSender(sender);
    });
  }

  const LiveCacheOptions options_;
  const std::shared_ptr<const ProfileSet> profiles_;
  IoPool& io_;
  ScratchPool& scratch_;
  WantIds& wants_;
  const Clock& clock_;

  mutable Mutex mutex_;
  bool attached_ KVIK_GUARDED_BY(mutex_) = false;
  kv::ConnectorHost host_ KVIK_GUARDED_BY(mutex_);
  std::shared_ptr<EventQueue> events_ KVIK_GUARDED_BY(mutex_);
  std::unordered_map<kv::TicketId, TicketState> tickets_ KVIK_GUARDED_BY(mutex_);
  // How many running requests will have the block.
  std::unordered_map<kv::ContentKey, int32_t, kv::ContentKeyHash> promised_ KVIK_GUARDED_BY(mutex_);
  std::unordered_map<kv::ContentKey, Held, kv::ContentKeyHash> held_ KVIK_GUARDED_BY(mutex_);
  // Blocks that a peer was told of or waits for, and until when: kept when they are sealed.
  std::unordered_map<kv::ContentKey, int64_t, kv::ContentKeyHash> interest_ KVIK_GUARDED_BY(mutex_);
  std::unordered_map<kv::ContentKey, Place, kv::ContentKeyHash> index_ KVIK_GUARDED_BY(mutex_);
  std::deque<ChainPtr> remembered_ KVIK_GUARDED_BY(mutex_);
  size_t remembered_blocks_ KVIK_GUARDED_BY(mutex_) = 0;
  std::unordered_map<kv::WantId, LiveLookup> lookups_ KVIK_GUARDED_BY(mutex_);
  std::unordered_map<kv::WantId, LiveGetPtr> asked_gets_ KVIK_GUARDED_BY(mutex_);
  std::list<LiveGetPtr> waiting_ KVIK_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<ChunkSender>> senders_ KVIK_GUARDED_BY(mutex_);
  ConnectorCounters counters_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<LiveCache> LiveCache::Create(const LiveCacheOptions& options,
                                             std::shared_ptr<const ProfileSet> profiles, IoPool& io,
                                             ScratchPool& scratch, WantIds& wants,
                                             const Clock& clock) {
  return std::make_shared<LiveCacheImpl>(options, std::move(profiles), io, scratch, wants, clock);
}

}  // namespace kvik::connector
