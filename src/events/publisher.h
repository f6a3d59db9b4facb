// SPDX-License-Identifier: Apache-2.0
// events/publisher.h: tells whoever listens which blocks come and go, as vLLM does: over ZeroMQ.
//
//   PUB     topic, sequence (8 bytes, big-endian), batch (events/wire.h)
//   ROUTER  asked with a sequence: answers with sequence and batch for each from that one on, then
//           with sequence 2^64 - 1 and nothing
//
// Sequences count from 0. A subscriber that is too slow, or comes late, sees a gap and asks at the
// ROUTER; what is not kept any more is answered by one batch that starts over (events/history.h).
//
// ZeroMQ has no access control: whoever reaches the endpoints reads the tokens of prompts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "events/config.h"
#include "kv/block_events.h"

namespace kvik::events {

// The sequence that ends a replay.
constexpr uint64_t kEndOfReplay = UINT64_MAX;

struct PublisherOptions {
  PublisherConfig config;
  std::function<double()> unix_seconds;        // any thread
  std::function<int32_t()> block_size_tokens;  // any thread; 0: not known
};

struct PublisherStats {
  int64_t batches = 0;       // published
  int64_t lost_batches = 0;  // more waited than max_queue_size
  int64_t replays = 0;       // answered
  int64_t held_blocks = 0;   // now, in all media
};

class Publisher {
 public:
  // kUnavailable: an endpoint is in use, or is none.
  static Result<std::unique_ptr<Publisher>> Create(PublisherOptions options);
  // Publishes what waits, and gives subscribers that are connected a moment to take it.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // Any thread; never waits for a subscriber. The events of one caller stay in order.
  void Publish(std::vector<kv::BlockEvent> events);

  // As they were bound: with numbers in place of wildcards for ports. None: it connects instead.
  [[nodiscard]] const std::optional<std::string>& endpoint() const;
  [[nodiscard]] const std::optional<std::string>& replay_endpoint() const;
  [[nodiscard]] PublisherStats stats() const;

 private:
  struct Impl;
  explicit Publisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::events
