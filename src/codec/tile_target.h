// SPDX-License-Identifier: Apache-2.0
// codec/tile_target.h: a tile as the place where decoded rows go. Internal to codec.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/stage.h"
#include "codec/tile.h"

namespace kvik::codec {

class TileTarget final : public RowTarget {
 public:
  explicit TileTarget(Tile& tile) : tile_(tile) {}
  float* Room(int32_t head, int32_t first_row, int32_t /*n*/) override {
    return tile_.Head(head).data() +
           static_cast<size_t>(first_row) * static_cast<size_t>(tile_.channels);
  }
  Result<void> Done(int32_t /*head*/, int32_t /*first_row*/, int32_t /*n*/) override { return {}; }

 private:
  Tile& tile_;
};

}  // namespace kvik::codec
