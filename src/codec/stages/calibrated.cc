// SPDX-License-Identifier: Apache-2.0
#include "codec/stages/calibrated.h"

#include <string>

namespace kvik::codec {

Result<const SideTensor*> Calibrated(const StageSite& site, std::string_view suffix,
                                     const std::vector<int32_t>& inner) {
  const std::string name = site.side_key + std::string(suffix);
  std::vector<int32_t> shape = {site.model->num_layers, site.model->num_kv_heads};
  shape.insert(shape.end(), inner.begin(), inner.end());
  return site.Need(name, shape);
}

}  // namespace kvik::codec
