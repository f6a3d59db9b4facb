// SPDX-License-Identifier: Apache-2.0
// events/follower.h: follows the events of any number of publishers (events/publisher.h), so that
// what is known of each is what it holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "events/follow.h"
#include "events/wire.h"

namespace kvik::events {

// A publisher, and which life of it.
struct EventSource {
  std::string endpoint;                        // of its PUB socket
  std::optional<std::string> replay_endpoint;  // none: gaps stay gaps
  std::string topic;
  std::string instance;  // another one after each start of it
  friend bool operator==(const EventSource&, const EventSource&) = default;
};

// Called by the follower's thread.
class EventListener {
 public:
  virtual ~EventListener() = default;
  // Nothing is known of this publisher any more.
  virtual void OnForget(uint64_t publisher) = 0;
  // In order; kCleared: it holds nothing.
  virtual void OnEvents(uint64_t publisher, std::span<const ReceivedEvent> events) = 0;
};

struct FollowStats {
  int64_t batches = 0;  // taken
  int64_t gaps = 0;
  int64_t start_overs = 0;  // from nothing, the first time included
  bool up_to_date = false;
};

class Follower {
 public:
  // `listener` and `clock` must outlive the follower.
  Follower(EventListener& listener, const Clock& clock, const FollowOptions& options = {});
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Whom to follow from now on, by numbers of the caller's choice; others are let go. A publisher
  // whose source is another one than before begins anew. Any thread; returns at once.
  void Follow(std::map<uint64_t, EventSource> sources);

  // By publisher. Any thread.
  [[nodiscard]] std::map<uint64_t, FollowStats> stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::events
