// SPDX-License-Identifier: Apache-2.0
// store/eviction_order.h: which object goes next when a tier needs room. Pure.
//
//   kLru     the one that was used longest ago. One scan of many new objects flushes it.
//   kS3Fifo  three queues (Yang et al., SOSP 2023): new objects pass through a small queue of a
//            tenth of the bytes and only those used there again, or known from a list of the last
//            to leave it, enter the main queue, which gives used ones further rounds. Prompts that
//            never come back push out only each other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

namespace kvik::store {

using Slot = uint32_t;

enum class EvictionKind { kLru, kS3Fifo };
const char* EvictionKindName(EvictionKind kind);  // "lru", "s3fifo"
std::optional<EvictionKind> ParseEvictionKind(std::string_view name);

// Thread-compatible. Amortised O(1), plus the objects that `may_go` refuses.
class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;
  // `digest`: of the content, to know it when it comes back. REQUIRES: slot is not in the order.
  virtual void Insert(Slot slot, uint64_t digest, uint64_t charge_bytes) = 0;
  // The object was used. REQUIRES: slot is in the order.
  virtual void Touch(Slot slot) = 0;
  // REQUIRES: slot is in the order.
  virtual void Remove(Slot slot) = 0;
  // Takes the next one to go out of the order; nullopt when `may_go` refuses all.
  virtual std::optional<Slot> PopVictim(const std::function<bool(Slot)>& may_go) = 0;
};

std::unique_ptr<EvictionOrder> MakeEvictionOrder(EvictionKind kind);

}  // namespace kvik::store
