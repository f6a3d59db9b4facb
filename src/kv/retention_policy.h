// SPDX-License-Identifier: Apache-2.0
// kv/retention_policy.h: an overlay that obeys RequestFacts::retention: blocks whose priority is
// below the default go first, those above it go last, for as long as the request said.
#pragma once

#include <memory>
#include <vector>

#include "kv/withholding_policy.h"

namespace kvik::kv {

class RetentionPolicy final : public WithholdingPolicy {
 public:
  RetentionPolicy(std::unique_ptr<EvictionPolicy> inner, const PolicyOptions& options);

 private:
  void Judge(std::span<const BlockId> blocks, const Access& access,
             std::vector<Verdict>& verdicts) override;
  [[nodiscard]] Verdict VerdictOf(int32_t first_token, const Access& access) const;

  int32_t block_size_tokens_;
};

}  // namespace kvik::kv
