// SPDX-License-Identifier: Apache-2.0
// kv/slru_policy.h: "slru", segmented lru: blocks used once stand in line before blocks used again.
//
// A block that a second request used is protected. At most four fifths of the cache are: beyond
// that the protected block longest unused goes back to the end of the common line.
#pragma once

#include <deque>
#include <vector>

#include "kv/score_policy.h"

namespace kvik::kv {

class SlruPolicy final : public ScorePolicy {
 public:
  explicit SlruPolicy(const PolicyOptions& options);
  [[nodiscard]] std::string_view name() const override { return "slru"; }
  [[nodiscard]] HitScope hits() const override { return HitScope::kPrefix; }

 private:
  struct Place {
    bool is_protected = false;
    uint64_t order = 0;  // in its line
  };
  double Score(const Block& block, BlockId id, int64_t now_us) override;
  void OnTrack(BlockId id) override { Unprotect(id); }
  void OnRelease(BlockId id, const Access& access) override;
  void OnEvict(BlockId id, double /*score*/) override { Unprotect(id); }
  void Unprotect(BlockId id);
  void DemoteOldest();
  struct Waiting {
    BlockId id;
    uint64_t order;
  };
  [[nodiscard]] bool IsStale(const Waiting& waiting) const;

  std::vector<Place> places_;      // [num_blocks]
  std::deque<Waiting> protected_;  // ascending by order; stale where places_ says otherwise
  int64_t num_protected_ = 0;
  int64_t max_protected_;
  uint64_t next_order_ = 0;
};

}  // namespace kvik::kv
