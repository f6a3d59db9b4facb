// SPDX-License-Identifier: Apache-2.0
#include "app/kv_store.h"

#include <optional>
#include <utility>

#include "base/byte_size.h"
#include "base/log.h"
#include "base/progress.h"
#include "store/file_system.h"
#include "store/redis_tier.h"

namespace kvik::app {
namespace {

// What passes through on its way to other tiers, when nobody asked for memory.
constexpr uint64_t kTransitBytes = uint64_t{64} << 20;
constexpr int64_t kShownAfterUs = 1'000'000;

}  // namespace

Result<void> ParseDiskFlag(std::string_view text, KvStoreOptions& options) {
  std::string_view folder = text;
  if (const size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    KVIK_ASSIGN(options.disk_bytes, ParseByteSize(text.substr(colon + 1)));
    folder = text.substr(0, colon);
  }
  if (folder.empty()) {
    return Err(ErrorCode::kInvalidInput, "'%s' names no folder: give PATH or PATH:BYTES",
               std::string(text).c_str());
  }
  options.disk_folder = folder;
  return {};
}

Result<std::unique_ptr<store::Store>> OpenKvStore(const KvStoreOptions& options, const Clock& clock,
                                                  std::shared_ptr<store::EventSink> events) {
  store::StoreOptions store_options;
  store_options.memory.budget_bytes =
      options.memory_bytes > 0 ? options.memory_bytes : kTransitBytes;
  store_options.memory.catalog.max_encodings = options.max_encodings;
  std::optional<Progress> progress;
  if (!options.disk_folder.empty()) {
    store_options.disk.emplace();
    store_options.disk->catalog.max_encodings = options.max_encodings;
    store_options.disk->folder = options.disk_folder;
    store_options.disk->budget_bytes = options.disk_bytes;
    store_options.disk->on_progress = [&progress, &clock, &options, start_us = clock.NowMicros()](
                                          uint64_t done, uint64_t total) {
      if (!progress && clock.NowMicros() - start_us > kShownAfterUs) {
        progress.emplace(clock,
                         Progress::Options{.label = "looking at KV in " + options.disk_folder,
                                           .total = total,
                                           .unit = Progress::Unit::kBytes});
      }
      if (progress) {
        progress->Update(done);
      }
    };
  }
  std::vector<std::unique_ptr<store::Tier>> remote;
  for (const std::string& url : options.redis) {
    store::RedisTierOptions redis;
    redis.redis.url = url;
    KVIK_ASSIGN(std::unique_ptr<store::RedisTier> tier, store::RedisTier::Create(redis, clock));
    remote.push_back(std::move(tier));
  }
  KVIK_ASSIGN(std::unique_ptr<store::Store> store,
              store::Store::Open(store_options, clock, store::PosixFileSystem(), std::move(remote),
                                 std::move(events)));
  progress.reset();
  std::string tiers;
  for (const store::TierStats& tier : store->stats().tiers) {
    tiers += std::string(tiers.empty() ? "" : ", ") + store::TierKindName(tier.kind);
    if (tier.budget_bytes > 0) {
      tiers += " ";
      tiers += FormatByteSize(tier.budget_bytes);
    }
    if (tier.kind == store::TierKind::kDisk) {
      tiers += " in " + options.disk_folder;
    }
    if (tier.objects > 0) {
      tiers += " (" + std::to_string(tier.objects) + " objects found)";
    }
  }
  LogInfo("KV store: %s%s", tiers.c_str(), options.by_default ? "; --no-kv-store keeps none" : "");
  return store;
}

}  // namespace kvik::app
