// SPDX-License-Identifier: Apache-2.0
// events/wire.h: events about blocks as they are published: vLLM's, in msgpack maps.
//
//   batch            {"ts": seconds, "events": [event...], "data_parallel_rank": 0}
//   BlockStored      {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size",
//                    "lora_id", "medium", "lora_name", "extra_keys"?, "group_idx",
//                    "kv_cache_spec_kind"}
//   BlockRemoved     {"type", "block_hashes", "medium", "group_idx"}
//   AllBlocksCleared {"type"}
//
// A hash is a number (the low 64 bits of the digest read as one big-endian number) or the digest's
// bytes. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/block_events.h"
#include "kv/block_key.h"

namespace kvik::events {

// "GPU" (what a cache of an engine is called, wherever it is), "CPU", "STORAGE".
const char* MediumName(kv::BlockMedium medium);

// A block's hash as a number. Both forms of a hash on the wire give it.
[[nodiscard]] uint64_t HashNumber(const kv::BlockHash& hash);

struct WireForm {
  int32_t block_size_tokens = 0;  // of events without tokens; 0: not known
  bool int_block_hashes = true;   // numbers, else bytes
};

// A kCleared event says that nothing is held any more, in any medium.
[[nodiscard]] std::string EncodeBatch(double unix_seconds, std::span<const kv::BlockEvent> events,
                                      const WireForm& form);

// What a follower wants to know of an event.
struct ReceivedEvent {
  kv::BlockEventKind kind = kv::BlockEventKind::kStored;
  kv::BlockMedium medium = kv::BlockMedium::kCache;  // also when it says nothing, or another name
  std::vector<uint64_t> blocks;                      // HashNumber of each
};
struct ReceivedBatch {
  double unix_seconds = 0;
  std::vector<ReceivedEvent> events;
};

// Fields and kinds of events that are not known are passed over. kCorrupt: it is no batch. Memory
// is bounded by the size of `payload`.
[[nodiscard]] Result<ReceivedBatch> DecodeBatch(std::span<const std::byte> payload);

}  // namespace kvik::events
