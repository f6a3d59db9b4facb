// SPDX-License-Identifier: Apache-2.0
#include "codec/stage.h"

#include "codec/side_info.h"

namespace kvik::codec {

const SideTensor* StageSite::Find(std::string_view name) const {
  const SideTensor* const found = side_info == nullptr ? nullptr : side_info->Find(name);
  if (found != nullptr && used != nullptr) {
    used->emplace(name);
  }
  return found;
}

Result<const SideTensor*> StageSite::Need(std::string_view name,
                                          std::span<const int32_t> shape) const {
  if (side_info == nullptr) {
    return Err(ErrorCode::kUnsupported,
               "the calibrated tensor \"%s\" is needed, and there is no side information",
               std::string(name).c_str());
  }
  if (used != nullptr) {
    used->emplace(name);
  }
  return side_info->Need(name, shape);
}

}  // namespace kvik::codec
