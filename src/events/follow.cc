// SPDX-License-Identifier: Apache-2.0
#include "events/follow.h"

#include <algorithm>
#include <limits>

namespace kvik::events {

FollowState::Verdict FollowState::Live(uint64_t sequence) {
  if (!options_.can_replay) {
    // What was missed, or what was there before the first batch, nobody will tell. Lower numbers
    // are of a publisher that has started anew.
    const bool in_order = started_ && sequence == next_;
    gaps_ += started_ && sequence > next_ ? 1 : 0;
    started_ = true;
    up_to_date_ = true;
    next_ = sequence + 1;
    return Verdict{!in_order, true};
  }
  if (sequence == next_) {
    ++next_;
    return Verdict{false, true};
  }
  if (sequence > next_ && sequence >= seen_) {
    gaps_ += seen_ <= next_ && started_ ? 1 : 0;
    seen_ = sequence + 1;
    if (!replaying_) {
      due_us_ = 0;
    }
  }
  return Verdict{};  // had already, or will be asked for
}

FollowState::Verdict FollowState::Replayed(uint64_t sequence, bool starts_over) {
  if (sequence < next_) {
    return Verdict{};
  }
  const bool missing = sequence > next_;
  next_ = sequence + 1;
  return Verdict{missing && !starts_over, true};
}

void FollowState::ReplayEnded(int64_t now_us) {
  if (!replaying_) {
    return;
  }
  replaying_ = false;
  started_ = true;
  up_to_date_ = seen_ <= next_;
  // A replay that brought nothing will not bring more at once.
  const bool again = !up_to_date_ && next_ > asked_;
  due_us_ = again ? now_us : now_us + options_.ask_interval_us;
}

std::optional<uint64_t> FollowState::Ask(int64_t now_us) {
  if (!options_.can_replay || replaying_ || now_us < due_us_) {
    return std::nullopt;
  }
  replaying_ = true;
  asked_ = next_;
  due_us_ = now_us + options_.replay_timeout_us;
  return next_;
}

bool FollowState::GiveUp(int64_t now_us) {
  if (!replaying_ || now_us < due_us_) {
    return false;
  }
  replaying_ = false;
  up_to_date_ = false;
  due_us_ = now_us;
  return true;
}

int64_t FollowState::due_us() const {
  return options_.can_replay ? due_us_ : std::numeric_limits<int64_t>::max();
}

}  // namespace kvik::events
