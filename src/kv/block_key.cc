// SPDX-License-Identifier: Apache-2.0
#include "kv/block_key.h"

#include <xxhash.h>

namespace kvik::kv {

NumericsTag NumericsTag::FromDescription(std::string_view description) {
  return NumericsTag{XXH3_64bits(description.data(), description.size())};
}

}  // namespace kvik::kv
