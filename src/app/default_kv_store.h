// SPDX-License-Identifier: Apache-2.0
// app/default_kv_store.h: the store that a server has when nobody named one: some of the memory
// that is left, and a folder for its model in the cache folder. What of it cannot be had is left
// out with a warning; it never keeps a server from starting.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "app/kv_store.h"
#include "base/clock.h"
#include "store/store.h"

namespace kvik::app {

struct DefaultKvStoreOptions {
  // Holds a folder for each model; it is made. Empty: there is none, memory only.
  std::string root;
  std::string model_path;
  std::string weights;       // fingerprint of the model's weights
  uint64_t chunk_bytes = 0;  // of an object, uncompressed
  // Of memory, beside the weights and the cache; none: unknown.
  std::optional<uint64_t> spare_bytes;
  int max_encodings = KvStoreOptions().max_encodings;
};

// "kv-store" in CacheFolder(); empty where the environment names no folder for caches.
std::string DefaultKvStoreRoot();

// An eighth of what is spare, at most 1 GiB and at least what eight objects take; 0: even those
// would take more than half of it.
uint64_t DefaultStoreMemoryBytes(const std::optional<uint64_t>& spare_bytes, uint64_t chunk_bytes);

// What the stores of all models may take together: a tenth of what the disk would have without
// them, at most 16 GiB.
uint64_t DefaultStoreDiskLimit(uint64_t free_bytes, uint64_t stored_bytes);

// "SmolLM2-135M-Instruct.Q4_1-0123456789abcdef": of one model's weights, whatever its path.
std::string DefaultStoreFolderName(const std::string& model_path, const std::string& weights);

// With memory and, if its folder can be used by this process alone, with the disk; the stores of
// models that were written to longest ago are emptied if they leave less than half of the limit.
// Null: there is not even memory. What it has is logged. `clock` outlives the store, `events` may
// be null.
std::unique_ptr<store::Store> OpenDefaultKvStore(const DefaultKvStoreOptions& options,
                                                 const Clock& clock,
                                                 std::shared_ptr<store::EventSink> events);

}  // namespace kvik::app
