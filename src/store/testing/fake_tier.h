// SPDX-License-Identifier: Apache-2.0
// store/testing/fake_tier.h: a remote tier for tests: memory behind a network that can fail.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/memory_tier.h"
#include "store/tier.h"

namespace kvik::store::testing {

// Thread-safe.
class FakeTier final : public Tier {
 public:
  explicit FakeTier(const Clock& clock, uint64_t budget_bytes = uint64_t{1} << 20) {
    MemoryTierOptions options;
    options.budget_bytes = budget_bytes;
    memory_ = MemoryTier::Create(options, clock).value();
  }

  // Every call fails from now on.
  void SetDown(bool down) { down_ = down; }
  // Runs within every Put, before the object is there.
  void SetDuringPut(std::function<void()> during_put) { during_put_ = std::move(during_put); }
  // Runs within every Get, after the object was read.
  void SetDuringGet(std::function<void()> during_get) { during_get_ = std::move(during_get); }
  [[nodiscard]] int64_t calls() const { return calls_; }

  [[nodiscard]] TierKind kind() const override { return TierKind::kRemote; }
  Result<std::vector<FoundObject>> Lookup(const BlockQuery& query, int64_t deadline_us) override {
    ++calls_;
    if (down_) {
      return Down();
    }
    auto found = memory_->Lookup(query, deadline_us);
    for (FoundObject& object : *found) {
      object.info.tier = TierKind::kRemote;
    }
    return found;
  }
  Result<std::vector<bool>> Exists(std::span<const ObjectKey> keys, int64_t deadline_us) override {
    ++calls_;
    if (down_) {
      return Down();
    }
    return memory_->Exists(keys, deadline_us);
  }
  std::vector<Result<Object>> Get(std::span<const ObjectKey> keys, int64_t deadline_us) override {
    ++calls_;
    if (down_) {
      return std::vector<Result<Object>>(keys.size(), Down());
    }
    auto objects = memory_->Get(keys, deadline_us);
    if (during_get_) {
      during_get_();
    }
    return objects;
  }
  std::vector<Result<void>> Put(std::span<const Object> objects, int64_t deadline_us) override {
    ++calls_;
    if (during_put_) {
      during_put_();
    }
    if (down_) {
      return std::vector<Result<void>>(objects.size(), Down());
    }
    return memory_->Put(objects, deadline_us);
  }
  Result<int64_t> Remove(std::span<const ObjectKey> keys, int64_t deadline_us) override {
    ++calls_;
    if (down_) {
      return Down();
    }
    return memory_->Remove(keys, deadline_us);
  }
  Result<int64_t> RemoveMatching(const RemoveFilter& filter, int64_t deadline_us) override {
    ++calls_;
    if (down_) {
      return Down();
    }
    return memory_->RemoveMatching(filter, deadline_us);
  }
  [[nodiscard]] TierStats stats() const override {
    TierStats stats = memory_->stats();
    stats.kind = TierKind::kRemote;
    return stats;
  }

 private:
  static Error Down() { return Err(ErrorCode::kUnavailable, "the pool is down"); }
  std::unique_ptr<MemoryTier> memory_;
  std::atomic<bool> down_ = false;
  std::atomic<int64_t> calls_ = 0;
  std::function<void()> during_put_;
  std::function<void()> during_get_;
};

}  // namespace kvik::store::testing
