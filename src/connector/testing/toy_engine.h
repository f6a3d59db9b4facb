// SPDX-License-Identifier: Apache-2.0
// connector/testing/toy_engine.h: an engine without a model, to hold a connector to its contract.
//
// The bytes of a block are a function of its key, so whoever gets a wrong one notices. It keeps the
// engine's side of kv/connector.h and aborts when the connector breaks its own: blocks confirmed
// twice or never, released without being held, KV that is worse than what the request accepts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/float16.h"
#include "base/rng.h"
#include "codec/model_facts.h"
#include "kv/connector.h"

namespace kvik::connector::testing {

inline constexpr kv::NumericsTag kToyNumerics{0x70F};

inline kv::KvGeometry ToyGeometry() {
  return {.num_layers = 3, .num_kv_heads = 2, .head_dim = 16, .block_size_tokens = 16};
}

// Keys of a made-up prompt: block i depends on the choices 0..i, as chained hashes do.
inline std::vector<kv::ContentKey> ToyKeys(const std::vector<uint64_t>& choices) {
  std::vector<kv::ContentKey> keys;
  uint64_t chain = 0x9E37;
  for (const uint64_t choice : choices) {
    Rng rng(chain ^ (choice * 0x100000001B3ULL));
    chain = rng.Next();
    kv::ContentKey key;
    for (size_t at = 0; at < 16; at += 8) {
      const uint64_t part = rng.Next();
      std::memcpy(key.hash.bytes.data() + at, &part, 8);
    }
    key.domain.bytes.fill(0x5A);
    keys.push_back(key);
  }
  return keys;
}

// What a block of this key holds: bf16 values all over.
inline std::vector<std::byte> ToyBytes(const kv::ContentKey& key, const kv::KvGeometry& geometry) {
  std::vector<std::byte> bytes(geometry.bytes_per_block());
  Rng rng(key.Digest());
  for (size_t at = 0; at < bytes.size(); at += 2) {
    const Bf16 value = ToBf16(static_cast<float>(4 * rng.Uniform() - 2));
    std::memcpy(bytes.data() + at, &value, 2);
  }
  return bytes;
}

struct ToyRequest {
  std::vector<kv::ContentKey> keys;
  int32_t num_tokens = 0;       // of the prompt; at least one beyond the loadable blocks
  size_t generated_blocks = 0;  // of `keys`: the answer's
  kv::MinQuality quality;
  std::shared_ptr<const kv::TransferParams> transfer;
  int64_t slo_ttft_us = 0;
  std::string workload;
};

struct ToyStats {
  int64_t computed_blocks = 0;
  int64_t arrived_blocks = 0;
  int64_t lossy_arrived_blocks = 0;
  float least_q = 1.0F;  // of what arrived
  int64_t not_coming_blocks = 0;
  int64_t finished = 0;
  int64_t failed = 0;  // by the connector
  int64_t offered_blocks = 0;
  std::map<kv::LoadEnd, int64_t> ends;
};

class ToyEngine {
 public:
  ToyEngine(kv::Connector& connector, const Clock& clock, int32_t num_blocks, uint64_t seed,
            kv::NumericsTag numerics = kToyNumerics)
      : connector_(connector),
        clock_(clock),
        geometry_(ToyGeometry()),
        numerics_(numerics),
        arena_(static_cast<size_t>(num_blocks) * geometry_.bytes_per_block()),
        references_(static_cast<size_t>(num_blocks)),
        owner_(static_cast<size_t>(num_blocks)),
        rng_(seed, 77) {
    for (int32_t i = num_blocks; i-- > 0;) {
      free_.push_back(i);
    }
    kv::ConnectorHost host;
    host.arena = arena_;
    host.geometry = geometry_;
    host.num_blocks = num_blocks;
    host.block_size_tokens = geometry_.block_size_tokens;
    host.numerics = numerics_;
    connector_.Attach(host);
  }

  int32_t compute_blocks_per_step = 2;
  ToyStats stats;
  std::vector<std::shared_ptr<const kv::TransferReport>> reports;

  kv::TicketId Submit(ToyRequest request) {
    auto& r = requests_[++last_ticket_];
    r.want = std::move(request);
    r.want.quality.workload = kv::WorkloadTag::Of(r.want.workload);
    const size_t full = r.want.keys.size() - r.want.generated_blocks;
    r.loadable =
        std::min(static_cast<int32_t>(full), (r.want.num_tokens - 1) / geometry_.block_size_tokens);
    r.blocks.assign(r.want.keys.size(), Slot{});
    kv::LoadRequest ask;
    ask.ticket = last_ticket_;
    ask.request = last_ticket_;
    ask.keys = std::span(r.want.keys).first(full);
    ask.num_loadable = r.loadable;
    ask.num_tokens = r.want.num_tokens;
    ask.quality = r.want.quality;
    ask.submitted_us = clock_.NowMicros();
    ask.slo_ttft_us = r.want.slo_ttft_us;
    ask.transfer = r.want.transfer;
    ask.workload = r.want.workload;
    for (int32_t i = 0; i < r.loadable; ++i) {
      if (Resident(r.want.keys[static_cast<size_t>(i)], r.want.quality) != nullptr) {
        AppendBlock(ask.resident, i);
      }
    }
    connector_.Ask(ask);
    return last_ticket_;
  }

  void Abort(kv::TicketId ticket) {
    if (requests_.contains(ticket)) {
      End(ticket, kv::CloseReason::kAborted);
    }
  }

  // Events, admissions and some computing.
  void Step() {
    for (kv::ConnectorEvent& event : connector_.Poll()) {
      std::visit([this](auto& e) { Handle(e); }, event);
    }
    std::vector<kv::TicketId> tickets;
    for (const auto& [ticket, r] : requests_) {
      tickets.push_back(ticket);
    }
    for (const kv::TicketId ticket : tickets) {
      const auto found = requests_.find(ticket);
      if (found != requests_.end() && found->second.answered) {
        Run(ticket, found->second);
      }
    }
  }

  // Evicts what nobody uses.
  void Evict(size_t blocks) {
    for (size_t i = 0; i < blocks; ++i) {
      if (!EvictOne()) {
        return;
      }
    }
  }

  [[nodiscard]] bool idle() const { return requests_.empty() && loading_.empty(); }
  [[nodiscard]] size_t open_requests() const { return requests_.size(); }
  [[nodiscard]] std::vector<kv::TicketId> tickets() const {
    std::vector<kv::TicketId> out;
    for (const auto& [ticket, r] : requests_) {
      out.push_back(ticket);
    }
    return out;
  }
  // References that the connector holds.
  [[nodiscard]] int64_t held() const {
    int64_t sum = 0;
    for (const auto& [block, count] : held_) {
      sum += count;
    }
    return sum;
  }
  [[nodiscard]] bool Has(const kv::ContentKey& key) const { return resident_.contains(key); }
  [[nodiscard]] std::span<const std::byte> Bytes(const kv::ContentKey& key) const {
    const auto at = static_cast<size_t>(resident_.at(key).block) * geometry_.bytes_per_block();
    return std::span(arena_).subspan(at, geometry_.bytes_per_block());
  }
  void CheckIdle() const {
    KVIK_CHECK(idle());
    for (size_t block = 0; block < references_.size(); ++block) {
      KVIK_CHECK(references_[block] == (held_.contains(static_cast<BlockId>(block))
                                            ? held_.at(static_cast<BlockId>(block))
                                            : 0),
                 "block %zu has %d references", block, references_[block]);
    }
    KVIK_CHECK(free_.size() + resident_.size() == references_.size());
  }

 private:
  enum class State { kMissing, kLoading, kHave };
  struct Slot {
    State state = State::kMissing;
    BlockId block = kNoBlock;
    kv::BlockQuality quality;
  };
  struct Running {
    ToyRequest want;
    int32_t loadable = 0;
    bool answered = false;
    bool admitted = false;
    std::vector<Slot> blocks;
    std::vector<kv::BlockRange> claimed;
  };
  struct Cached {
    BlockId block = kNoBlock;
    kv::BlockQuality quality;
  };
  struct LoadingBlock {
    kv::TicketId ticket = 0;
    int32_t at = 0;
    auto operator<=>(const LoadingBlock&) const = default;
  };

  static void AppendBlock(std::vector<kv::BlockRange>& ranges, int32_t block) {
    if (!ranges.empty() && ranges.back().end_block() == block) {
      ++ranges.back().num_blocks;
    } else {
      ranges.push_back({block, 1});
    }
  }

  const Cached* Resident(const kv::ContentKey& key, const kv::MinQuality& quality) const {
    const auto found = resident_.find(key);
    return found != resident_.end() && quality.Accepts(found->second.quality) ? &found->second
                                                                              : nullptr;
  }

  std::span<std::byte> At(BlockId block) {
    return std::span(arena_).subspan(static_cast<size_t>(block) * geometry_.bytes_per_block(),
                                     geometry_.bytes_per_block());
  }

  bool EvictOne() {
    std::vector<kv::ContentKey> candidates;
    for (const auto& [key, cached] : resident_) {
      if (references_[static_cast<size_t>(cached.block)] == 0) {
        candidates.push_back(key);
      }
    }
    if (candidates.empty()) {
      return false;
    }
    const kv::ContentKey key = candidates[rng_.Below(candidates.size())];
    const BlockId block = resident_.at(key).block;
    resident_.erase(key);
    Scribble(block);
    free_.push_back(block);
    return true;
  }

  // A block that nobody has holds rubbish: whoever reads it late gets wrong bytes.
  void Scribble(BlockId block) {
    for (std::byte& byte : At(block)) {
      byte = std::byte{0xEE};
    }
  }

  std::optional<BlockId> Allocate() {
    if (free_.empty() && !EvictOne()) {
      return std::nullopt;
    }
    const BlockId block = free_.back();
    free_.pop_back();
    KVIK_CHECK(references_[static_cast<size_t>(block)] == 0);
    references_[static_cast<size_t>(block)] = 1;
    return block;
  }

  void Unreference(BlockId block, bool resident) {
    int32_t& count = references_[static_cast<size_t>(block)];
    KVIK_CHECK(count > 0, "block %d is let go once too often", block);
    if (--count == 0 && !resident) {
      Scribble(block);
      free_.push_back(block);
    }
  }

  bool IsResident(BlockId block, const kv::ContentKey& key) const {
    const auto found = resident_.find(key);
    return found != resident_.end() && found->second.block == block;
  }

  // A block that a request filled: the index keeps the better one.
  void Publish(const kv::ContentKey& key, BlockId block, const kv::BlockQuality& quality) {
    owner_[static_cast<size_t>(block)] = key;
    if (!resident_.contains(key)) {
      resident_[key] = {block, quality};
    }
  }

  void Handle(kv::Answered& event) {
    const auto found = requests_.find(event.ticket);
    KVIK_CHECK(found != requests_.end(), "an answer for a closed ticket");
    found->second.answered = true;
  }

  void Handle(kv::Arrived& event) {
    for (int32_t at = event.range.first_block; at < event.range.end_block(); ++at) {
      const BlockId block = Confirm(event.ticket, at);
      ++stats.arrived_blocks;
      stats.lossy_arrived_blocks += event.quality.fidelity == kv::Fidelity::kLossy ? 1 : 0;
      stats.least_q =
          std::min(stats.least_q, event.quality.For(loaded_quality_.at(event.ticket).workload));
      const auto found = requests_.find(event.ticket);
      const kv::ContentKey& key = loaded_keys_.at({event.ticket, at});
      const auto truth = ToyBytes(key, geometry_);
      const bool same = std::memcmp(At(block).data(), truth.data(), truth.size()) == 0;
      KVIK_CHECK(same || event.quality.fidelity == kv::Fidelity::kLossy,
                 "a block that is said to be exact is not");
      KVIK_CHECK(loaded_quality_.at(event.ticket).Accepts(event.quality),
                 "KV that the request does not accept");
      Publish(key, block, event.quality);
      if (found != requests_.end()) {
        Slot& slot = found->second.blocks[static_cast<size_t>(at)];
        slot = {State::kHave, block, event.quality};
      } else {
        Unreference(block, IsResident(block, key));
      }
    }
  }

  void Handle(kv::NotComing& event) {
    ++stats.ends[event.why];
    for (int32_t at = event.range.first_block; at < event.range.end_block(); ++at) {
      const BlockId block = Confirm(event.ticket, at);
      ++stats.not_coming_blocks;
      Unreference(block, false);
      if (const auto found = requests_.find(event.ticket); found != requests_.end()) {
        found->second.blocks[static_cast<size_t>(at)] = Slot{};
      }
    }
  }

  void Handle(kv::Failed& event) {
    KVIK_CHECK(requests_.contains(event.ticket), "a closed ticket failed");
    ++stats.failed;
    End(event.ticket, kv::CloseReason::kFailed);
  }

  void Handle(kv::Released& event) {
    for (const BlockId block : event.blocks) {
      const auto found = held_.find(block);
      KVIK_CHECK(found != held_.end(), "block %d was not taken", block);
      if (--found->second == 0) {
        held_.erase(found);
      }
      Unreference(block, IsResident(block, owner_[static_cast<size_t>(block)]));
    }
  }

  void Handle(kv::Wanted& event) {
    std::vector<kv::SealedBlock> blocks;
    for (const kv::ContentKey& key : event.keys) {
      if (const Cached* cached = Resident(key, event.quality); cached != nullptr) {
        blocks.push_back({{key, numerics_}, cached->block, cached->quality, -1});
      }
    }
    OfferBlocks(0, event.want, blocks);
  }

  void OfferBlocks(kv::TicketId ticket, kv::WantId want,
                   const std::vector<kv::SealedBlock>& blocks) {
    // The references are taken first: the connector may release before Offer returns.
    if (connector_.Offer({ticket, want, blocks})) {
      for (const kv::SealedBlock& block : blocks) {
        ++held_[block.block];
        ++references_[static_cast<size_t>(block.block)];
      }
    }
  }

  BlockId Confirm(kv::TicketId ticket, int32_t at) {
    const auto found = loading_.find({ticket, at});
    KVIK_CHECK(found != loading_.end(), "block %d of ticket %llu is confirmed and was not loading",
               at, static_cast<unsigned long long>(ticket));
    const BlockId block = found->second;
    loading_.erase(found);
    return block;
  }

  void Run(kv::TicketId ticket, Running& r) {
    if (!r.admitted) {
      r.admitted = true;
      for (int32_t i = 0; i < r.loadable; ++i) {
        const kv::ContentKey& key = r.want.keys[static_cast<size_t>(i)];
        if (const Cached* cached = Resident(key, r.want.quality); cached != nullptr) {
          ++references_[static_cast<size_t>(cached->block)];
          r.blocks[static_cast<size_t>(i)] = {State::kHave, cached->block, cached->quality};
        }
      }
      Claim(ticket, r);
    }
    std::vector<kv::SealedBlock> sealed;
    kv::BlockQuality tainted;
    int32_t computed = 0;
    bool stuck = false;
    bool yield = false;
    int32_t front = 0;
    for (size_t i = 0; i < r.blocks.size(); ++i) {
      Slot& slot = r.blocks[i];
      if (slot.state == State::kHave) {
        if (slot.quality.fidelity == kv::Fidelity::kLossy) {
          tainted = WorseOf(tainted, slot.quality, r.want.quality.workload);
        }
        continue;
      }
      if (slot.state == State::kLoading) {
        yield = !stuck;
        front = static_cast<int32_t>(i);
        stuck = true;
        break;
      }
      if (computed == compute_blocks_per_step) {
        stuck = true;
        break;
      }
      const auto block = Allocate();
      if (!block.has_value()) {
        connector_.NeedRoom(1);
        stuck = true;
        break;
      }
      const auto truth = ToyBytes(r.want.keys[i], geometry_);
      std::memcpy(At(*block).data(), truth.data(), truth.size());
      slot = {State::kHave, *block, tainted};
      Publish(r.want.keys[i], *block, tainted);
      ++computed;
      ++stats.computed_blocks;
      sealed.push_back({{r.want.keys[i], numerics_},
                        *block,
                        tainted,
                        static_cast<int32_t>(i) * geometry_.block_size_tokens});
    }
    if (!sealed.empty()) {
      stats.offered_blocks += static_cast<int64_t>(sealed.size());
      OfferBlocks(ticket, 0, sealed);
    }
    if (yield) {
      const int64_t before = clock_.NowMicros();
      KVIK_CHECK(connector_.Yield(ticket, front) > before, "asked to come back at once");
    } else if (!stuck) {
      ++stats.finished;
      End(ticket, kv::CloseReason::kFinished);
    }
  }

  void Claim(kv::TicketId ticket, Running& r) {
    std::vector<kv::BlockRange> missing;
    for (int32_t i = 0; i < r.loadable; ++i) {
      if (r.blocks[static_cast<size_t>(i)].state == State::kMissing) {
        AppendBlock(missing, i);
      }
    }
    if (missing.empty()) {
      return;
    }
    const auto claimed = connector_.Claim(ticket, missing[0].first_block, missing);
    int32_t before = 0;
    for (const kv::BlockRange& range : claimed) {
      KVIK_CHECK(range.first_block >= before && range.num_blocks >= 1);
      before = range.end_block();
      // As many as there is room for, in pieces.
      kv::BlockRange piece{range.first_block, 0};
      std::vector<BlockId> blocks;
      for (int32_t at = range.first_block; at < range.end_block(); ++at) {
        Slot& slot = r.blocks[static_cast<size_t>(at)];
        KVIK_CHECK(slot.state == State::kMissing, "block %d was not missing", at);
        const auto block = Allocate();
        if (!block.has_value()) {
          break;
        }
        slot = {State::kLoading, *block, {}};
        loading_[{ticket, at}] = *block;
        loaded_keys_[{ticket, at}] = r.want.keys[static_cast<size_t>(at)];
        loaded_quality_[ticket] = r.want.quality;
        blocks.push_back(*block);
        ++piece.num_blocks;
      }
      if (piece.num_blocks > 0) {
        connector_.Load(ticket, piece, blocks);
      }
    }
  }

  void End(kv::TicketId ticket, kv::CloseReason reason) {
    const auto node = requests_.extract(ticket);
    const Running& r = node.mapped();
    kv::TicketFate fate;
    fate.reason = reason;
    fate.closed_us = clock_.NowMicros();
    reports.push_back(connector_.Close(ticket, fate));
    for (size_t i = 0; i < r.blocks.size(); ++i) {
      if (r.blocks[i].state == State::kHave) {
        Unreference(r.blocks[i].block, IsResident(r.blocks[i].block, r.want.keys[i]));
      }
    }
  }

  kv::Connector& connector_;
  const Clock& clock_;
  const kv::KvGeometry geometry_;
  const kv::NumericsTag numerics_;
  std::vector<std::byte> arena_;
  std::vector<BlockId> free_;
  std::vector<int32_t> references_;    // by block
  std::vector<kv::ContentKey> owner_;  // by block: what it was last filled with
  std::unordered_map<kv::ContentKey, Cached, kv::ContentKeyHash> resident_;
  std::map<kv::TicketId, Running> requests_;
  std::map<LoadingBlock, BlockId> loading_;
  std::map<LoadingBlock, kv::ContentKey> loaded_keys_;
  std::map<kv::TicketId, kv::MinQuality> loaded_quality_;
  std::map<BlockId, int32_t> held_;
  kv::TicketId last_ticket_ = 0;
  Rng rng_;
};

}  // namespace kvik::connector::testing
