// SPDX-License-Identifier: Apache-2.0
#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvik {
namespace {
constexpr size_t kHugePageBytes = size_t{2} << 20;
}  // namespace

void TouchPages(std::byte* begin, size_t size_bytes) {
  constexpr size_t kPageBytes = 4096;
  for (size_t at = 0; at < size_bytes; at += kPageBytes) {
    volatile std::byte* byte = begin + at;
    *byte = *byte;
  }
}

Result<AlignedBuffer> AlignedBuffer::Create(size_t size_bytes) {
  AlignedBuffer buffer;
  if (size_bytes == 0) {
    return buffer;
  }
  if (size_bytes > (size_t{1} << 47)) {
    return Err(ErrorCode::kExhausted, "cannot map %zu bytes of memory", size_bytes);
  }
  const size_t granule = size_bytes >= kHugePageBytes ? kHugePageBytes : size_t{4096};
  const size_t mapped = (size_bytes + granule - 1) / granule * granule;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Err(ErrorCode::kExhausted, "cannot map %zu bytes of memory: %s", mapped,
               std::strerror(errno));
  }
  if (size_bytes >= kHugePageBytes) {
    madvise(memory, mapped, MADV_HUGEPAGE);  // a hint; refusal only costs speed
  }
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_bytes_ = size_bytes;
  buffer.mapped_bytes_ = mapped;
  return buffer;
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) {
      munmap(data_, mapped_bytes_);
    }
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  }
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) {
    munmap(data_, mapped_bytes_);
  }
}

}  // namespace kvik
