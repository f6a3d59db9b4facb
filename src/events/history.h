// SPDX-License-Identifier: Apache-2.0
// events/history.h: what was published: the last batches as they were sent, and what is held now.
//
// A follower that missed batches gets them again while they are kept. One that missed more, or
// comes late, gets one batch that starts over: AllBlocksCleared and then everything that is held.
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "events/wire.h"
#include "kv/block_events.h"

namespace kvik::events {

class EventHistory {
 public:
  struct Options {
    size_t max_batches = 10'000;          // kept to be sent again; at least 1
    size_t max_bytes = size_t{64} << 20;  // of them
    bool int_block_hashes = true;
  };
  struct Message {
    uint64_t sequence = 0;
    std::shared_ptr<const std::string> payload;  // EncodeBatch
  };

  explicit EventHistory(const Options& options) : options_(options) {}

  // The message that tells what of `events` is news: a block that two sources hold (two models,
  // two arithmetics) is stored by the first and removed by the last. None: nothing is.
  // `block_size_tokens` as WireForm has it.
  [[nodiscard]] std::optional<Message> Append(double unix_seconds,
                                              std::vector<kv::BlockEvent> events,
                                              int32_t block_size_tokens);
  // Events were lost before these, so that nobody knows what is held. A sequence number is left
  // out, and the message begins with AllBlocksCleared.
  [[nodiscard]] Message AppendAfterLoss(double unix_seconds, std::vector<kv::BlockEvent> events,
                                        int32_t block_size_tokens);
  // What a follower lacks that expects `sequence` next. Nothing: it is up to date.
  [[nodiscard]] std::vector<Message> From(uint64_t sequence, double unix_seconds,
                                          int32_t block_size_tokens);

  [[nodiscard]] uint64_t next_sequence() const { return next_; }
  [[nodiscard]] size_t num_blocks() const { return held_.size(); }
  [[nodiscard]] size_t num_batches() const { return batches_.size(); }

 private:
  struct Place {
    kv::BlockMedium medium;
    kv::BlockHash hash;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct PlaceHash {
    size_t operator()(const Place& place) const;
  };
  struct Held {
    uint32_t sources = 0;
    std::optional<kv::BlockHash> parent;
    std::vector<TokenId> tokens;
    std::shared_ptr<const kv::ExtraKeys> extra;  // null: none
  };

  void Take(kv::BlockEvent event, std::vector<kv::BlockEvent>& news);
  void TakeStored(const kv::BlockEvent& event, std::vector<kv::BlockEvent>& news);
  void TakeRemoved(const kv::BlockEvent& event, std::vector<kv::BlockEvent>& news);
  void TakeCleared(kv::BlockMedium medium, std::vector<kv::BlockEvent>& news);
  Message Keep(double unix_seconds, const std::vector<kv::BlockEvent>& news,
               int32_t block_size_tokens);
  [[nodiscard]] std::vector<kv::BlockEvent> Everything() const;

  const Options options_;
  uint64_t next_ = 0;
  std::deque<Message> batches_;
  size_t batch_bytes_ = 0;
  std::unordered_map<Place, Held, PlaceHash> held_;
  std::optional<Message> start_over_;  // as of the last batch
};

}  // namespace kvik::events
