// SPDX-License-Identifier: Apache-2.0
// events/follow.h: where a follower of one publisher stands: which batches to take, which not, and
// when to ask for what is missing. Pure: messages and time come from the caller.
//
// Batches come live, and again on request (a replay). What comes live in order is taken. Whatever
// does not is asked for; so is, now and then, whatever comes next, because a publisher that has
// fallen silent gives no other sign of a batch that was lost.
#pragma once

#include <cstdint>
#include <optional>

namespace kvik::events {

struct FollowOptions {
  bool can_replay = true;
  int64_t ask_interval_us = 1'000'000;  // between requests while nothing is known to be missing
  int64_t replay_timeout_us = 5'000'000;
};

class FollowState {
 public:
  explicit FollowState(const FollowOptions& options) : options_(options) {}

  // What to do with a batch. Forgetting comes first.
  struct Verdict {
    bool forget = false;  // everything that was taken before
    bool take = false;
  };
  [[nodiscard]] Verdict Live(uint64_t sequence);
  // `starts_over`: its first event clears everything.
  [[nodiscard]] Verdict Replayed(uint64_t sequence, bool starts_over);
  void ReplayEnded(int64_t now_us);

  // The batch to ask for, once due; from then on the replay is under way.
  [[nodiscard]] std::optional<uint64_t> Ask(int64_t now_us);
  // A replay that is under way takes too long. It counts as never asked for: what still comes of it
  // must not reach this object.
  [[nodiscard]] bool GiveUp(int64_t now_us);
  // When Ask or GiveUp has something to say if nothing comes before; INT64_MAX: never.
  [[nodiscard]] int64_t due_us() const;

  // Everything that was published when the last replay ended was taken.
  [[nodiscard]] bool up_to_date() const { return up_to_date_; }
  // Times that live batches were missing.
  [[nodiscard]] int64_t gaps() const { return gaps_; }

 private:
  const FollowOptions options_;
  uint64_t next_ = 0;  // the batch that is expected
  uint64_t seen_ = 0;  // one more than the highest that came live
  bool started_ = false;
  bool up_to_date_ = false;
  bool replaying_ = false;
  uint64_t asked_ = 0;  // the last request's
  int64_t due_us_ = 0;  // of the next request, or of giving up
  int64_t gaps_ = 0;
};

}  // namespace kvik::events
