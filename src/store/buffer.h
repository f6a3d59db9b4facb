// SPDX-License-Identifier: Apache-2.0
// store/buffer.h: the bytes of an object: written once by one writer, then shared and immutable.
//
// Every buffer is charged to an account until its last reference is gone, so that "how much memory
// do objects take" is one number that cannot drift: what is resident, what is being written and
// what a reader still holds after its eviction all count, and nothing else does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/result.h"

namespace kvik::store {

// Bytes of live buffers. Thread-safe. Outlived by no buffer: buffers share it.
class MemoryAccount {
 public:
  [[nodiscard]] uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  void Add(uint64_t size_bytes) { used_bytes_.fetch_add(size_bytes, std::memory_order_relaxed); }
  void Subtract(uint64_t size_bytes) {
    used_bytes_.fetch_sub(size_bytes, std::memory_order_relaxed);
  }
  // Adds and returns true unless the sum would pass `limit_bytes`.
  [[nodiscard]] bool TryAdd(uint64_t size_bytes, uint64_t limit_bytes);

 private:
  std::atomic<uint64_t> used_bytes_ = 0;
};

// Immutable bytes with shared ownership; copying is one atomic increment. Thread-safe.
class Buffer {
 public:
  Buffer() = default;
  // A copy of `bytes`, charged to nobody. kExhausted when there is no memory.
  static Result<Buffer> CopyOf(std::span<const std::byte> bytes);

  // Bytes of somebody else, without a copy: `owner` keeps them alive and unchanged.
  static Buffer Share(const std::shared_ptr<const void>& owner, std::span<const std::byte> bytes) {
    return {std::shared_ptr<const std::byte>(owner, bytes.data()), bytes.size()};
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_bytes_}; }
  // Keeps the bytes alive: how they go on to somebody who knows no Buffer.
  [[nodiscard]] std::shared_ptr<const void> owner() const { return data_; }
  // Whether nobody else holds a copy of this Buffer.
  [[nodiscard]] bool unique() const { return data_.use_count() <= 1; }
  [[nodiscard]] size_t size_bytes() const { return size_bytes_; }
  // The same bytes without a copy, charged to `account` too until the result and its copies are
  // gone. The caller has added size_bytes() to the account (MemoryAccount::TryAdd).
  [[nodiscard]] Buffer ChargedTo(std::shared_ptr<MemoryAccount> account) const;

 private:
  friend class WritableBuffer;
  Buffer(std::shared_ptr<const std::byte> data, size_t size_bytes)
      : data_(std::move(data)), size_bytes_(size_bytes) {}
  std::shared_ptr<const std::byte> data_;  // null when empty
  size_t size_bytes_ = 0;
};

// Bytes that one writer fills in, at least 64-byte aligned and not initialised. Move-only.
class WritableBuffer {
 public:
  WritableBuffer() = default;
  // kExhausted when there is no memory. Charged to nobody.
  static Result<WritableBuffer> Allocate(size_t size_bytes);
  // Charged to `account`, to which the caller has added `size_bytes` (taken back on failure).
  static Result<WritableBuffer> Allocate(size_t size_bytes, std::shared_ptr<MemoryAccount> account);

  WritableBuffer(WritableBuffer&& other) noexcept = default;
  WritableBuffer& operator=(WritableBuffer&& other) noexcept = default;
  WritableBuffer(const WritableBuffer&) = delete;
  WritableBuffer& operator=(const WritableBuffer&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), size_bytes_}; }
  // Ends the writing. The span of bytes() must not be written through any more.
  [[nodiscard]] Buffer Freeze() && { return {std::move(data_), std::exchange(size_bytes_, 0)}; }

 private:
  WritableBuffer(std::shared_ptr<std::byte> data, size_t size_bytes)
      : data_(std::move(data)), size_bytes_(size_bytes) {}
  std::shared_ptr<std::byte> data_;
  size_t size_bytes_ = 0;
};

}  // namespace kvik::store
