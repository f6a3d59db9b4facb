// SPDX-License-Identifier: Apache-2.0
// base/huge_page_arena.h: many allocations that live and die together, packed into few large
// mappings: a model has hundreds of matrices below the size from which a buffer of its own gets
// huge pages, and reading them all for every token misses the TLB all the time otherwise.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"

namespace kvik {

// Move-only; what it gave out stays where it is. Thread-compatible.
class HugePageArena {
 public:
  // Zeroed, 64-byte aligned, valid until the arena is destroyed. kExhausted when the system
  // refuses.
  Result<std::span<std::byte>> Allocate(size_t size_bytes);

 private:
  std::vector<AlignedBuffer> chunks_;
  size_t used_bytes_ = 0;  // of the last chunk
};

}  // namespace kvik
