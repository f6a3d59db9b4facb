// SPDX-License-Identifier: Apache-2.0
#include "codec/stages/mean_rules.h"

#include "codec/stages/chain_rules.h"

namespace kvik::codec {

std::optional<std::string> RefuseMeanRemoval(const StageArgs& /*args*/,
                                             const PipelineSpec& pipeline, kv::KvPart part,
                                             size_t index) {
  if (const std::string before = FirstBefore(pipeline, part, index, {"center", "selfcenter"});
      !before.empty()) {
    return before + " has removed the mean already";
  }
  if (const std::string before =
          FirstBefore(pipeline, part, index, {"affine", "hadamard", "klt", "qklt"});
      !before.empty()) {
    return before + " is linear: removing the mean before it gives the same, and is more exact";
  }
  if (!FirstBefore(pipeline, part, index, {"delta"}).empty()) {
    return "differences to an anchor have no mean worth removing";
  }
  return std::nullopt;
}

}  // namespace kvik::codec
