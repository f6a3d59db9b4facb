// SPDX-License-Identifier: Apache-2.0
// engine/sealed_block_guard.h: checks that the bytes of sealed blocks never change.
//
// Remembers a checksum of every block when it is sealed and compares all of them after each step:
// a chunk that spans a cached segment must not touch it. Costs a read of the whole cache per step,
// so it is on in debug builds and tests. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/types.h"
#include "engine/executor.h"
#include "kv/block_pool.h"

namespace kvik::engine {

class SealedBlockGuard {
 public:
  explicit SealedBlockGuard(bool enabled) : enabled_(enabled) {}

  // After allocation: forgets blocks that were evicted and may be written now.
  void BeforeExecute(const kv::BlockPool& pool);
  // A block that may be written and sealed before the next step.
  void Forget(BlockId block) { checksums_.erase(block); }
  // After the step's blocks were sealed: aborts if an older sealed block changed, remembers the new
  // ones.
  void AfterCommit(const kv::BlockPool& pool, const Executor& executor);

 private:
  static bool IsSealed(const kv::BlockPool& pool, BlockId block);

  bool enabled_;
  std::unordered_map<BlockId, uint64_t> checksums_;
};

}  // namespace kvik::engine
