// SPDX-License-Identifier: Apache-2.0
// connector/store_source.h: the store of this process (memory, disk, Redis) as a source and target.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "connector/io_pool.h"
#include "connector/source.h"
#include "store/store.h"

namespace kvik::connector {

class StoreSource final : public ObjectSource, public ObjectTarget {
 public:
  // `io` runs the store's blocking calls, `put_io` those of Put. All outlive the source, which
  // outlives its tasks: stop the pools first.
  StoreSource(store::Store& store, const std::string& tenant, IoPool& io, IoPool& put_io,
              const Clock& clock)
      : store_(store),
        tenant_(store::TenantId::FromName(tenant)),
        io_(io),
        put_io_(put_io),
        clock_(clock) {}

  [[nodiscard]] std::string name() const override { return "store"; }
  void Lookup(const transfer::LookupRequest& request, int64_t deadline_us, Found done) override;
  std::shared_ptr<transfer::CallHandle> Get(const kv::ObjectKey& key, int32_t num_blocks,
                                            int64_t deadline_us,
                                            std::shared_ptr<transfer::GetSink> sink,
                                            uint8_t priority) override;
  void Discard(const kv::ObjectKey& key) override;
  // Reads these from the disk to memory in the background, in this order; false: too many wait.
  bool Prefetch(std::span<const kv::ObjectKey> keys);
  [[nodiscard]] std::optional<control::MachineSpeeds> sender_speeds() const override {
    return std::nullopt;
  }
  void Put(NewObject object, int64_t deadline_us, Stored done) override;

 private:
  store::Store& store_;
  const store::TenantId tenant_;
  IoPool& io_;
  IoPool& put_io_;
  const Clock& clock_;
};

// Between the two vocabularies.
[[nodiscard]] store::ObjectKey ToStoreKey(const kv::ObjectKey& key, store::TenantId tenant);
[[nodiscard]] kv::ObjectInfo FromStoreInfo(const store::ObjectInfo& info);

}  // namespace kvik::connector
