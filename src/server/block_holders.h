// SPDX-License-Identifier: Apache-2.0
// server/block_holders.h: which node holds which blocks of KV, as its events tell.
//
// Thread-safe. Blocks go by events::HashNumber; nodes by numbers of the caller's choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/mutex.h"
#include "events/follower.h"
#include "events/wire.h"

namespace kvik::server {

class BlockHolders final : public events::EventListener {
 public:
  // `max_blocks`: that are remembered, all nodes together. What comes when there are so many is not
  // known to be held, until others have gone.
  explicit BlockHolders(size_t max_blocks) : max_blocks_(max_blocks) {}

  void OnForget(uint64_t node) override;
  void OnEvents(uint64_t node, std::span<const events::ReceivedEvent> events) override;

  // How many of the blocks, from the first on, the node holds; none: nothing was heard of it.
  [[nodiscard]] std::optional<int64_t> PrefixAt(uint64_t node,
                                                std::span<const uint64_t> blocks) const
      KVIK_EXCLUDES(mutex_);
  // How many it holds in all; none: likewise.
  [[nodiscard]] std::optional<int64_t> HeldBy(uint64_t node) const KVIK_EXCLUDES(mutex_);

 private:
  // The media that a node holds a block in, one bit each.
  using Held = std::unordered_map<uint64_t, uint8_t>;

  void Store(Held& held, uint64_t block, uint8_t medium) KVIK_REQUIRES(mutex_);
  void Remove(Held& held, uint64_t block, uint8_t medium) KVIK_REQUIRES(mutex_);

  const size_t max_blocks_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Held> nodes_ KVIK_GUARDED_BY(mutex_);
  size_t num_blocks_ KVIK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvik::server
