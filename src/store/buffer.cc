// SPDX-License-Identifier: Apache-2.0
#include "store/buffer.h"

#include <cstring>

#include "store/block_recycler.h"

namespace kvik::store {
bool MemoryAccount::TryAdd(uint64_t size_bytes, uint64_t limit_bytes) {
  uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (size_bytes > limit_bytes || used > limit_bytes - size_bytes) {
      return false;
    }
  } while (!used_bytes_.compare_exchange_weak(used, used + size_bytes, std::memory_order_relaxed));
  return true;
}

Result<Buffer> Buffer::CopyOf(std::span<const std::byte> bytes) {
  KVIK_ASSIGN(WritableBuffer copy, WritableBuffer::Allocate(bytes.size()));
  if (!bytes.empty()) {
    std::memcpy(copy.bytes().data(), bytes.data(), bytes.size());
  }
  return std::move(copy).Freeze();
}

Buffer Buffer::ChargedTo(std::shared_ptr<MemoryAccount> account) const {
  // The deleter owns a reference to the bytes; the pointer itself is theirs.
  std::shared_ptr<const std::byte> charged(
      data_.get(), [owner = data_, account = std::move(account),
                    size_bytes = size_bytes_](const std::byte* /*data*/) mutable {
        owner.reset();
        account->Subtract(size_bytes);
      });
  return {std::move(charged), size_bytes_};
}

Result<WritableBuffer> WritableBuffer::Allocate(size_t size_bytes) {
  return Allocate(size_bytes, nullptr);
}

Result<WritableBuffer> WritableBuffer::Allocate(size_t size_bytes,
                                                std::shared_ptr<MemoryAccount> account) {
  const BlockRecycler::Block block = BlockRecycler::OfProcess().Take(size_bytes);
  if (block.data == nullptr) {
    if (account != nullptr) {
      account->Subtract(size_bytes);
    }
    return Err(ErrorCode::kExhausted, "no memory for an object of %zu bytes", size_bytes);
  }
  std::shared_ptr<std::byte> owned(
      block.data, [account = std::move(account), size_bytes, block](std::byte* /*data*/) {
        BlockRecycler::OfProcess().Give(block);
        if (account != nullptr) {
          account->Subtract(size_bytes);
        }
      });
  return WritableBuffer(std::move(owned), size_bytes);
}

}  // namespace kvik::store
