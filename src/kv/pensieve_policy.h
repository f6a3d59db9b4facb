// SPDX-License-Identifier: Apache-2.0
// kv/pensieve_policy.h: "pensieve": the block goes whose cost of recomputing, divided by the time
// it lies idle, is least.
//
// Made for one user's conversations, where the end is dear and the beginning cheap; shared prefixes
// get no credit for their many users. 1/x changes the order of blocks as time passes, so no ordered
// structure holds it and a selection looks at every block.
#pragma once

#include "kv/score_policy.h"

namespace kvik::kv {

class PensievePolicy final : public ScorePolicy {
 public:
  explicit PensievePolicy(const PolicyOptions& options) : ScorePolicy(options) {}
  [[nodiscard]] std::string_view name() const override { return "pensieve"; }

 private:
  double Score(const Block& block, BlockId /*id*/, int64_t now_us) override {
    // Released this very moment: as if a microsecond ago.
    const int64_t idle_us = now_us > block.release_us ? now_us - block.release_us : 1;
    return block.recompute_us / static_cast<double>(idle_us);
  }
};

}  // namespace kvik::kv
