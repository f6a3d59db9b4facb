// SPDX-License-Identifier: Apache-2.0
// kv/object.h: the name and the facts of KV outside the pool: what is stored in tiers and moved
// between processes.
//
// An object is one encoding of one *chunk*: all layers of consecutive full blocks of a prefix. Its
// bytes are a codec frame stream, one frame a layer, and opaque to whoever stores or moves them.
// Several encodings of a chunk are several objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kv/block_key.h"

namespace kvik::kv {

// The chained hash of the chunk's last block implies every block before it.
struct ObjectKey {
  BlockKey last_block;
  uint64_t profile_hash = 0;  // of the codec's profile: which encoding
  friend bool operator==(const ObjectKey&, const ObjectKey&) = default;
};

struct ObjectKeyHash {
  size_t operator()(const ObjectKey& key) const {
    return key.last_block.content.Digest() ^ key.last_block.numerics.value ^
           (key.profile_hash * 0x9E3779B97F4A7C15ULL);
  }
};

// Where the bytes are, for whoever is asked: the nearer, the cheaper.
enum class ObjectTier : uint8_t {
  kLive = 0,    // encoded from a pool when asked for
  kMemory = 1,  // bytes in memory
  kDisk = 2,
  kRemote = 3,  // another process
};

// What a reader needs to choose among encodings and to price a load.
struct ObjectInfo {
  ObjectKey key;
  int32_t num_blocks = 0;  // the chunk ends with the key's block
  BlockQuality quality;
  uint64_t size_bytes = 0;  // of the frame stream; an estimate while it is being made
  ObjectTier tier = ObjectTier::kMemory;
  // Microseconds until its last byte can be read where it is; 0: all of it now.
  int64_t ready_in_us = 0;
};

}  // namespace kvik::kv
