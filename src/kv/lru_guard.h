// SPDX-License-Identifier: Apache-2.0
// kv/lru_guard.h: when to stop being clever.
//
// Compares what a policy made requests compute with what LRU would have, and says who should
// choose. LRU does once the policy has cost kHandOver more than LRU over about the last minute and
// is behind over about the last half hour, too, by more than chance explains (kSigmas): one long
// prompt that LRU happened to hold must not undo a policy that is ahead. The policy gets its turn
// back when the two are level over the last minute, after a wait that doubles with every hand-over
// until the policy is ahead again. Thread-compatible.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvik::kv {

class LruGuard {
 public:
  static constexpr double kRecentS = 60;
  static constexpr double kLongS = 1800;
  static constexpr double kHandOver = 0.005;
  static constexpr double kBehind = 0.0025;  // over kLongS
  static constexpr double kSigmas = 3;
  static constexpr double kLevel = 0.0005;
  static constexpr double kFirstWaitS = 60;

  // One request's cost, as it was and as it would have been under LRU. Time never goes back.
  void Add(int64_t now_us, double policy_us, double lru_us) {
    const double passed_s = static_cast<double>(now_us - last_us_) * 1e-6;
    last_us_ = now_us;
    recent_.Add(std::exp(-passed_s / kRecentS), policy_us, lru_us);
    long_.Add(std::exp(-passed_s / kLongS), policy_us, lru_us);
    if (use_lru_) {
      waited_s_ += passed_s;
      use_lru_ = recent_.Behind(kLevel) || waited_s_ < wait_s_;
    } else if (long_.behind_us < 0) {
      wait_s_ = 0;
    } else if (recent_.Behind(kHandOver) && long_.Behind(kBehind) &&
               long_.behind_us > kSigmas * std::sqrt(long_.squares)) {
      use_lru_ = true;
      waited_s_ = 0;
      wait_s_ = wait_s_ == 0 ? kFirstWaitS : 2 * wait_s_;
      ++hand_overs_;
    }
  }
  [[nodiscard]] bool use_lru() const { return use_lru_; }
  [[nodiscard]] int64_t hand_overs() const { return hand_overs_; }  // to LRU, since the start

 private:
  struct Balance {
    double behind_us = 0;
    double lru_us = 0;
    double squares = 0;  // of the differences
    void Add(double fade, double policy_us, double under_lru_us) {
      const double difference = policy_us - under_lru_us;
      behind_us = behind_us * fade + difference;
      lru_us = lru_us * fade + under_lru_us;
      squares = squares * fade + difference * difference;
    }
    [[nodiscard]] bool Behind(double share) const { return behind_us > share * lru_us; }
  };

  int64_t last_us_ = 0;
  Balance recent_;
  Balance long_;
  bool use_lru_ = false;
  double waited_s_ = 0;
  double wait_s_ = 0;
  int64_t hand_overs_ = 0;
};

}  // namespace kvik::kv
