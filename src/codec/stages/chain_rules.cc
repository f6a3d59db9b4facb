// SPDX-License-Identifier: Apache-2.0
#include "codec/stages/chain_rules.h"

#include <algorithm>

namespace kvik::codec {

std::string FirstBefore(const PipelineSpec& pipeline, kv::KvPart part, size_t index,
                        std::initializer_list<std::string_view> names) {
  const std::vector<StageSpec>& transforms = pipeline.part(part).transforms;
  for (size_t i = 0; i < std::min(index, transforms.size()); ++i) {
    if (std::find(names.begin(), names.end(), transforms[i].module->name) != names.end()) {
      return transforms[i].ToString();
    }
  }
  return {};
}

}  // namespace kvik::codec
