// SPDX-License-Identifier: Apache-2.0
// workload/reference.h: results of somebody else's replay, to stand beside ours.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "base/result.h"

namespace kvik::workload {

class Reference {
 public:
  // CSV with a line of names that has trace, cache_blocks, policy and miss_cost_pct, in any order.
  // kInvalidInput: "name:line: ...".
  static Result<Reference> Parse(std::string_view text, const std::string& name);

  [[nodiscard]] std::optional<double> MissCostPct(const std::string& trace, int32_t cache_blocks,
                                                  const std::string& policy) const;

 private:
  std::map<std::tuple<std::string, int32_t, std::string>, double> cells_;
};

}  // namespace kvik::workload
