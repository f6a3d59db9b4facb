// SPDX-License-Identifier: Apache-2.0
#include "connector/storer.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "connector/chunk.h"
#include "connector/load_choice.h"

namespace kvik::connector {
namespace {

// The last `capacity` keys. Thread-compatible.
class RecentKeys {
 public:
  explicit RecentKeys(size_t capacity) : capacity_(capacity) {}
  void Add(const kv::ObjectKey& key) {
    if (places_.contains(key)) {
      return;
    }
    order_.push_back(key);
    places_.insert(key);
    if (order_.size() > capacity_) {
      places_.erase(order_.front());
      order_.pop_front();
    }
  }
  [[nodiscard]] bool Has(const kv::ObjectKey& key) const { return places_.contains(key); }

 private:
  const size_t capacity_;
  std::list<kv::ObjectKey> order_;
  std::unordered_set<kv::ObjectKey, kv::ObjectKeyHash> places_;
};

// A chunk in one profile, from when it is decided that it will be stored.
struct Gather {
  const CodecProfile* profile = nullptr;
  int32_t first_block = 0;
  kv::ObjectKey key;
  kv::BlockHash parent;
  kv::CacheDomain domain;
  std::vector<kv::BlockHash> hashes;
  std::vector<HeldBlockPtr> blocks;  // null: not here yet; empty: given up
};
using GatherPtr = std::shared_ptr<Gather>;

// The blocks of one ticket.
struct Sequence {
  kv::CacheDomain domain;
  std::vector<kv::BlockHash> hashes;     // of blocks 0, 1, ...
  int32_t prompt_blocks = 0;             // of them, known from the beginning
  bool prompt_stored = false;            // its last chunk, if that is shorter than others
  std::map<int32_t, HeldBlockPtr> held;  // by position
  std::map<int32_t, int32_t> new_until;  // by first block of a chunk of the smallest layout: the
                                         // end of what was sealed in it
  std::set<std::pair<size_t, int32_t>> done;  // (profile, first block)
  int64_t held_since_us = 0;
};

class StorerImpl final : public Storer, public std::enable_shared_from_this<StorerImpl> {
 public:
  StorerImpl(StorerOptions options, IoPool& io, ScratchPool& scratch, WantIds& wants,
             const Clock& clock)
      : options_(std::move(options)),
        io_(io),
        scratch_(scratch),
        wants_(wants),
        clock_(clock),
        kept_(std::make_shared<std::atomic<int32_t>>(0)),
        known_(options_.max_known) {}

  void Attach(const kv::ConnectorHost& host, std::shared_ptr<EventQueue> events) override {
    MutexLock lock(mutex_);
    host_ = host;
    events_ = std::move(events);
    attached_ = true;
  }

  void Detach() override {
    std::unordered_map<kv::TicketId, Sequence> sequences;
    std::list<GatherPtr> gathers;
    MutexLock lock(mutex_);
    attached_ = false;
    sequences.swap(sequences_);
    gathers.swap(queued_);
    asked_.clear();
    for (const GatherPtr& gather : gathers) {
      gather->blocks.clear();
    }
  }

  void Begin(kv::TicketId ticket, std::span<const kv::ContentKey> keys) override {
    Sequence sequence;
    for (const kv::ContentKey& key : keys) {
      sequence.domain = key.domain;
      sequence.hashes.push_back(key.hash);
    }
    sequence.prompt_blocks = static_cast<int32_t>(keys.size());
    MutexLock lock(mutex_);
    sequences_[ticket] = std::move(sequence);
  }

  void End(kv::TicketId ticket) override {
    MutexLock lock(mutex_);
    const auto found = sequences_.find(ticket);
    if (found == sequences_.end()) {
      return;
    }
    Sequence sequence = std::move(found->second);
    sequences_.erase(found);
    for (size_t p = 0; p < options_.profiles.size(); ++p) {
      const ChunkLayout layout = LayoutOf(*options_.profiles[p]);
      std::map<int32_t, int32_t> ends;  // of what is new, by first block of the chunk
      for (const auto& [block, until] : sequence.new_until) {
        int32_t& end = ends[layout.FirstBlockOf(block)];
        end = std::max(end, until);
      }
      for (const auto& [first, end] : ends) {
        const bool stored = sequence.prompt_stored && end == sequence.prompt_blocks &&
                            end - first < layout.chunk_blocks;
        if (!stored && sequence.done.insert({p, first}).second) {
          Store(sequence, p, {first, end - first});
        }
      }
    }
  }

  bool Wants(const kv::SealedBlocks& sealed) const override {
    MutexLock lock(mutex_);
    if (!attached_) {
      return false;
    }
    if (sealed.want != 0) {
      return asked_.contains(sealed.want);
    }
    const double limit = options_.max_share * host_.num_blocks;
    return sequences_.contains(sealed.ticket) && !sealed.blocks.empty() &&
           kept_->load() + static_cast<double>(sealed.blocks.size()) <= limit;
  }

  void Take(const kv::SealedBlocks& sealed, std::span<const HeldBlockPtr> held) override {
    MutexLock lock(mutex_);
    if (!attached_) {
      return;
    }
    if (sealed.want != 0) {
      Answer(sealed.want, held);
      return;
    }
    const auto found = sequences_.find(sealed.ticket);
    if (found == sequences_.end()) {
      return;
    }
    Sequence& sequence = found->second;
    std::set<int32_t> touched;
    for (const HeldBlockPtr& block : held) {
      const kv::SealedBlock& facts = block->sealed();
      if (facts.first_pos < 0) {
        continue;
      }
      const int32_t at = facts.first_pos / host_.block_size_tokens;
      const auto known = static_cast<int32_t>(sequence.hashes.size());
      if (at == known) {
        sequence.hashes.push_back(facts.key.content.hash);
        sequence.domain = facts.key.content.domain;
      } else if (at > known ||
                 !(sequence.hashes[static_cast<size_t>(at)] == facts.key.content.hash)) {
        continue;  // not of the chain that this ticket began with
      }
      if (sequence.held.empty()) {
        sequence.held_since_us = clock_.NowMicros();
      }
      sequence.held[at] = Keep(block);
      int32_t& until = sequence.new_until[at];
      until = at + 1;
      touched.insert(at);
    }
    for (size_t p = 0; p < options_.profiles.size(); ++p) {
      const ChunkLayout layout = LayoutOf(*options_.profiles[p]);
      std::set<int32_t> chunks;
      for (const int32_t at : touched) {
        chunks.insert(layout.FirstBlockOf(at));
      }
      for (const int32_t first : chunks) {
        const kv::BlockRange chunk{first, layout.chunk_blocks};
        if (AllHeld(sequence, chunk) && sequence.done.insert({p, first}).second) {
          Store(sequence, p, chunk);
        }
      }
      // The same prompt may get another answer: its last chunk counts without this one's.
      if (touched.contains(sequence.prompt_blocks - 1)) {
        const int32_t first = layout.FirstBlockOf(sequence.prompt_blocks - 1);
        const int32_t blocks = sequence.prompt_blocks - first;
        if (blocks < layout.chunk_blocks) {
          Store(sequence, p, {first, blocks});
        }
        sequence.prompt_stored = true;
      }
    }
    DropDone(sequence);
  }

  int32_t NeedRoom(int32_t missing_blocks) override {
    const int32_t before = kept_->load();
    MutexLock lock(mutex_);
    for (auto& [ticket, sequence] : sequences_) {
      sequence.held.clear();
    }
    while (!queued_.empty() && before - kept_->load() < missing_blocks) {
      queued_.front()->blocks.clear();
      queued_.pop_front();
      ++counters_.dropped_stores;
    }
    return std::max(0, before - kept_->load());
  }

  void Sweep() override {
    MutexLock lock(mutex_);
    const int64_t now = clock_.NowMicros();
    for (auto& [ticket, sequence] : sequences_) {
      // What is still incomplete is gathered anew at the end.
      if (!sequence.held.empty() && now - sequence.held_since_us >= options_.gather_us) {
        sequence.held.clear();
      }
    }
  }

  void AddTo(ConnectorCounters& counters) const override {
    MutexLock lock(mutex_);
    counters.stored_objects += counters_.stored_objects;
    counters.store_failures += counters_.store_failures;
    counters.dropped_stores += counters_.dropped_stores;
    counters.stored_wire_bytes += counters_.stored_wire_bytes;
    counters.stored_raw_bytes += counters_.stored_raw_bytes;
    counters.encode_us += counters_.encode_us;
  }

  void Known(const kv::ObjectKey& key) override {
    MutexLock lock(mutex_);
    known_.Add(key);
  }

  void Flush() override {
    MutexLock lock(mutex_);
    while (busy_ > 0 && io_.num_threads() > 0) {
      idle_.Wait(mutex_);
    }
  }

 private:
  [[nodiscard]] ChunkLayout LayoutOf(const CodecProfile& profile) const KVIK_REQUIRES(mutex_) {
    return ChunkLayout::Of(profile.chunk_tokens, host_.block_size_tokens);
  }

  // A share of ours in a held block, counted while it lives.
  [[nodiscard]] HeldBlockPtr Keep(const HeldBlockPtr& block) const {
    kept_->fetch_add(1);
    return {block.get(), [share = HeldBlockPtr(block), kept = kept_](const HeldBlock*) mutable {
              share.reset();
              kept->fetch_sub(1);
            }};
  }

  [[nodiscard]] static bool AllHeld(const Sequence& sequence, const kv::BlockRange& chunk) {
    for (int32_t block = chunk.first_block; block < chunk.end_block(); ++block) {
      if (!sequence.held.contains(block)) {
        return false;
      }
    }
    return true;
  }

  // Lets go of blocks that no further profile waits for.
  void DropDone(Sequence& sequence) KVIK_REQUIRES(mutex_) {
    for (auto it = sequence.held.begin(); it != sequence.held.end();) {
      bool all = true;
      for (size_t p = 0; p < options_.profiles.size(); ++p) {
        all = all &&
              sequence.done.contains({p, LayoutOf(*options_.profiles[p]).FirstBlockOf(it->first)});
      }
      it = all ? sequence.held.erase(it) : std::next(it);
    }
  }

  // Decides that a chunk is stored in a profile; asks the engine for what of it is not here.
  void Store(const Sequence& sequence, size_t p, const kv::BlockRange& chunk)
      KVIK_REQUIRES(mutex_) {
    const CodecProfile& profile = *options_.profiles[p];
    if (static_cast<size_t>(chunk.end_block()) > sequence.hashes.size()) {
      return;
    }
    auto gather = std::make_shared<Gather>();
    gather->profile = &profile;
    gather->first_block = chunk.first_block;
    gather->domain = sequence.domain;
    gather->hashes.assign(sequence.hashes.begin() + chunk.first_block,
                          sequence.hashes.begin() + chunk.end_block());
    gather->parent = chunk.first_block == 0
                         ? options_.root
                         : sequence.hashes[static_cast<size_t>(chunk.first_block - 1)];
    gather->key = {{{gather->hashes.back(), sequence.domain}, host_.numerics}, profile.hash};
    if (known_.Has(gather->key)) {
      return;
    }
    kv::Wanted wanted;
    for (int32_t block = chunk.first_block; block < chunk.end_block(); ++block) {
      const auto held = sequence.held.find(block);
      gather->blocks.push_back(held != sequence.held.end() ? held->second : nullptr);
      if (gather->blocks.back() == nullptr) {
        wanted.keys.push_back({sequence.hashes[static_cast<size_t>(block)], sequence.domain});
      }
    }
    if (wanted.keys.empty()) {
      Queue(gather);
      return;
    }
    wanted.want = wants_.Next();  // exact blocks only
    asked_.emplace(wanted.want, gather);
    events_->Push(std::move(wanted));
  }

  void Answer(kv::WantId want, std::span<const HeldBlockPtr> held) KVIK_REQUIRES(mutex_) {
    const auto found = asked_.find(want);
    if (found == asked_.end()) {
      return;
    }
    const GatherPtr gather = std::move(found->second);
    asked_.erase(found);
    size_t missing = 0;
    for (size_t i = 0; i < gather->blocks.size(); ++i) {
      if (gather->blocks[i] != nullptr) {
        continue;
      }
      const auto match = std::find_if(held.begin(), held.end(), [&](const HeldBlockPtr& block) {
        return block->sealed().key.content == kv::ContentKey{gather->hashes[i], gather->domain};
      });
      if (match != held.end()) {
        gather->blocks[i] = Keep(*match);
      } else {
        ++missing;
      }
    }
    if (missing == 0 && kept_->load() <= options_.max_share * host_.num_blocks) {
      Queue(gather);
    } else {
      ++counters_.dropped_stores;  // evicted, approximate, or too much is waiting
    }
  }

  void Queue(const GatherPtr& gather) KVIK_REQUIRES(mutex_) {
    kv::BlockQuality quality;
    for (const HeldBlockPtr& block : gather->blocks) {
      quality = WorseOf(quality, block->sealed().quality);
      if (!(block->sealed().key.numerics == host_.numerics)) {
        return;
      }
    }
    // What depends on approximations is not approximated on top.
    if (gather->profile->lossy && quality.fidelity == kv::Fidelity::kLossy) {
      return;
    }
    if (bytes_in_flight_ > options_.max_bytes_in_flight) {
      ++counters_.dropped_stores;
      return;
    }
    queued_.push_back(gather);
    ++busy_;
    if (!io_.Post(
            [self = shared_from_this(), gather, quality] { self->Encode(gather, quality); })) {
      queued_.pop_back();
      --busy_;
    }
  }

  void Encode(const GatherPtr& gather, const kv::BlockQuality& quality) {
    std::vector<HeldBlockPtr> blocks;
    kv::KvGeometry geometry;
    std::span<std::byte> arena;
    {
      MutexLock lock(mutex_);
      queued_.remove(gather);
      blocks.swap(gather->blocks);
      if (!attached_ || blocks.empty()) {
        Done();
        return;
      }
      geometry = *host_.geometry;
      arena = host_.arena;
    }
    std::vector<BlockId> ids;
    for (const HeldBlockPtr& block : blocks) {
      ids.push_back(block->sealed().block);
    }
    const ChunkPages pages{&geometry, arena, gather->first_block, ids};
    const int64_t begin_us = clock_.NowMicros();
    const ObjectHead head{gather->key, gather->parent, gather->hashes, quality};
    auto bytes = [&] {
      ScratchPool::Loan scratch = scratch_.Take();
      return EncodeChunk(*gather->profile->codec, head, pages, *scratch);
    }();
    const int64_t took_us = clock_.NowMicros() - begin_us;
    blocks.clear();

    NewObject object;
    uint64_t size = 0;
    {
      MutexLock lock(mutex_);
      counters_.encode_us += took_us;
      if (!bytes.has_value()) {
        ++counters_.store_failures;
        Done();
        return;
      }
      size = bytes->size();
      bytes_in_flight_ += size;
      counters_.stored_raw_bytes += pages.raw_bytes();
      counters_.stored_wire_bytes += size;
      object.info.key = gather->key;
      object.info.num_blocks = static_cast<int32_t>(gather->hashes.size());
      object.info.quality = gather->profile->lossy
                                ? WorseOf(quality, {kv::Fidelity::kLossy, gather->profile->q})
                                : quality;
      object.info.size_bytes = size;
    }
    object.blocks = gather->hashes;
    object.parent = gather->parent;
    object.bytes = transfer::SharedBytes::Own(std::move(bytes).value());

    struct Puts {
      std::atomic<size_t> left;
      std::atomic<bool> stored{false};
    };
    auto puts = std::make_shared<Puts>();
    puts->left = options_.targets.size();
    const int64_t deadline = clock_.NowMicros() + options_.put_timeout_us;
    for (const auto& target : options_.targets) {
      target->Put(
          object, deadline,
          [self = shared_from_this(), puts, key = gather->key, size](const Result<void>& outcome) {
            if (outcome.has_value()) {
              puts->stored = true;
            }
            if (puts->left.fetch_sub(1) == 1) {
              self->Stored(key, size, puts->stored);
            }
          });
    }
  }

  void Stored(const kv::ObjectKey& key, uint64_t size, bool stored) {
    MutexLock lock(mutex_);
    bytes_in_flight_ -= size;
    if (stored) {
      ++counters_.stored_objects;
      known_.Add(key);
    } else {
      ++counters_.store_failures;
    }
    Done();
  }

  void Done() KVIK_REQUIRES(mutex_) {
    --busy_;
    idle_.NotifyAll();
  }

  const StorerOptions options_;
  IoPool& io_;
  ScratchPool& scratch_;
  WantIds& wants_;
  const Clock& clock_;
  const std::shared_ptr<std::atomic<int32_t>> kept_;  // shares in blocks

  mutable Mutex mutex_;
  CondVar idle_;
  bool attached_ KVIK_GUARDED_BY(mutex_) = false;
  kv::ConnectorHost host_ KVIK_GUARDED_BY(mutex_);
  std::shared_ptr<EventQueue> events_ KVIK_GUARDED_BY(mutex_);
  std::unordered_map<kv::TicketId, Sequence> sequences_ KVIK_GUARDED_BY(mutex_);
  std::unordered_map<kv::WantId, GatherPtr> asked_ KVIK_GUARDED_BY(mutex_);
  std::list<GatherPtr> queued_ KVIK_GUARDED_BY(mutex_);
  RecentKeys known_ KVIK_GUARDED_BY(mutex_);
  uint64_t bytes_in_flight_ KVIK_GUARDED_BY(mutex_) = 0;
  int64_t busy_ KVIK_GUARDED_BY(mutex_) = 0;  // gathers that are queued, encoded or put
  ConnectorCounters counters_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Storer> Storer::Create(StorerOptions options, IoPool& io, ScratchPool& scratch,
                                       WantIds& wants, const Clock& clock) {
  KVIK_CHECK(!options.targets.empty() && !options.profiles.empty());
  return std::make_shared<StorerImpl>(std::move(options), io, scratch, wants, clock);
}

}  // namespace kvik::connector
