// SPDX-License-Identifier: Apache-2.0
// connector/put_container.h: what the bytes of a Put to a pool node are. A pool keeps more of an
// object than its bytes: which blocks it covers and what stands before them.
//
//   u32 "KvP" version, u32 CRC of what follows up to the object, u32 size of the description,
//   the description (store/object.h EncodeMeta), the object
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/object.h"

namespace kvik::connector {

inline constexpr size_t kMaxDescriptionBytes = size_t{256} << 10;

// The part in front of the object's bytes.
[[nodiscard]] std::vector<std::byte> PutPrefix(const store::ObjectMeta& meta);

struct PutDescription {
  store::ObjectMeta meta;
  size_t prefix_bytes = 0;  // the object follows
};
// Of the first bytes of a Put; nullopt: more are needed. kCorrupt, kUnsupported.
[[nodiscard]] Result<std::optional<PutDescription>> ReadPutPrefix(std::span<const std::byte> bytes);

}  // namespace kvik::connector
