// SPDX-License-Identifier: Apache-2.0
// app/kv_store.h: the store of this process as flags describe it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "store/store.h"

namespace kvik::app {

struct KvStoreOptions {
  // Nobody named a store: what follows is to be filled in by OpenDefaultKvStore.
  bool by_default = false;
  uint64_t memory_bytes = 0;  // 0: no memory tier was asked for
  std::string disk_folder;    // empty: no disk tier
  uint64_t disk_bytes = uint64_t{16} << 30;
  int max_encodings = 3;  // of a chunk in each tier of this process; a further one replaces one
  std::vector<std::string> redis;  // URLs as store::RedisOptions takes them, asked in this order

  [[nodiscard]] bool any() const {
    return by_default || memory_bytes > 0 || !disk_folder.empty() || !redis.empty();
  }
};

// "PATH" or "PATH:BYTES" of --kv-store-disk. kInvalidInput.
Result<void> ParseDiskFlag(std::string_view text, KvStoreOptions& options);

// `clock` outlives the store. `events` may be null. Says how it advances if the disk takes longer
// than a second. What it found there is logged.
Result<std::unique_ptr<store::Store>> OpenKvStore(const KvStoreOptions& options, const Clock& clock,
                                                  std::shared_ptr<store::EventSink> events);

}  // namespace kvik::app
