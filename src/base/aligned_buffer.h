// SPDX-License-Identifier: Apache-2.0
// base/aligned_buffer.h: owned, 64-byte aligned, zeroed memory for weights and KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace kvik {

// Writes a byte of every page of [begin, begin + size_bytes) back as it is: a page that is only
// read may stay the shared page of zeros.
void TouchPages(std::byte* begin, size_t size_bytes);

// Move-only. The size never changes. Thread-compatible.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Maps `size_bytes` of zeroed memory (at least 64-byte aligned) and asks for huge pages above
  // 2 MiB; pages are touched on first use. kExhausted when the system refuses.
  static Result<AlignedBuffer> Create(size_t size_bytes);

  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  // Has the system hand out all pages now instead of at their first use. Contents stay.
  void Touch() { TouchPages(data_, size_bytes_); }

  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] size_t size_bytes() const { return size_bytes_; }
  // View as T. REQUIRES: size_bytes() is a multiple of sizeof(T).
  template <typename T>
  [[nodiscard]] std::span<T> As() {
    KVIK_CHECK(size_bytes_ % sizeof(T) == 0);
    return {reinterpret_cast<T*>(data_), size_bytes_ / sizeof(T)};
  }
  template <typename T>
  [[nodiscard]] std::span<const T> As() const {
    KVIK_CHECK(size_bytes_ % sizeof(T) == 0);
    return {reinterpret_cast<const T*>(data_), size_bytes_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  size_t mapped_bytes_ = 0;
};

}  // namespace kvik
