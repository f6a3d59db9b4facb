// SPDX-License-Identifier: Apache-2.0
#include "engine/sealed_block_guard.h"

#include "base/check.h"

namespace kvik::engine {

bool SealedBlockGuard::IsSealed(const kv::BlockPool& pool, BlockId block) {
  const kv::BlockState state = pool.state(block);
  return state == kv::BlockState::kReferenced || state == kv::BlockState::kCached;
}

void SealedBlockGuard::BeforeExecute(const kv::BlockPool& pool) {
  std::erase_if(checksums_, [&](const auto& entry) { return !IsSealed(pool, entry.first); });
}

void SealedBlockGuard::AfterCommit(const kv::BlockPool& pool, const Executor& executor) {
  if (!enabled_) {
    return;
  }
  for (BlockId block = 0; block < pool.num_total(); ++block) {
    if (!IsSealed(pool, block)) {
      continue;
    }
    const uint64_t checksum = executor.BlockChecksum(block);
    const auto [it, inserted] = checksums_.emplace(block, checksum);
    KVIK_CHECK(inserted || it->second == checksum, "the bytes of sealed block %d changed", block);
  }
}

}  // namespace kvik::engine
