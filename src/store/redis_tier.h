// SPDX-License-Identifier: Apache-2.0
// store/redis_tier.h: objects in a Redis server or Redis Cluster that many machines share.
//
// Of a block there are two kinds of keys in one slot: an index (a Redis hash: profile to
// description) and one value for each encoding, under a checksum. The value is written first and
// the index names it then, so a reader never sees half an object. What Redis evicts or loses is a
// miss; an index that names what is gone is corrected by whoever notices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "store/redis_client.h"
#include "store/tier.h"

namespace kvik::store {

struct RedisTierOptions {
  RedisOptions redis;
  uint64_t max_object_bytes = uint64_t{256} << 20;  // Redis takes 512 MiB at most
  int64_t default_ttl_us = 0;  // of objects that have none; 0: Redis's own eviction decides
};

class RedisTier final : public Tier {
 public:
  // kInvalidInput names the option. Nobody has to be there yet. `clock` outlives the tier.
  static Result<std::unique_ptr<RedisTier>> Create(const RedisTierOptions& options,
                                                   const Clock& clock);
  ~RedisTier() override;

  [[nodiscard]] TierKind kind() const override { return TierKind::kRedis; }
  Result<std::vector<FoundObject>> Lookup(const BlockQuery& query, int64_t deadline_us) override;
  Result<std::vector<bool>> Exists(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  std::vector<Result<Object>> Get(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  std::vector<Result<void>> Put(std::span<const Object> objects, int64_t deadline_us) override;
  Result<int64_t> Remove(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  // Looks at every key of the server or cluster.
  Result<int64_t> RemoveMatching(const RemoveFilter& filter, int64_t deadline_us) override;
  // Objects and bytes are not known: others share the server.
  [[nodiscard]] TierStats stats() const override;

 private:
  struct State;
  explicit RedisTier(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvik::store
