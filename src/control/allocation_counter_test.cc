// SPDX-License-Identifier: Apache-2.0
// The program's operators new and delete: malloc and free, counted.
#include <cstdlib>
#include <new>

#include "control/testing/counted_allocations.h"

namespace kvik::control::testing {
namespace {
thread_local uint64_t counted = 0;
}  // namespace

uint64_t CountedAllocations() { return counted; }

static void* CountedNew(std::size_t size) {
  ++counted;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) {
    return memory;
  }
  throw std::bad_alloc();
}

}  // namespace kvik::control::testing

// NOLINTBEGIN(misc-new-delete-overloads)
void* operator new(std::size_t size) { return kvik::control::testing::CountedNew(size); }
void* operator new[](std::size_t size) { return kvik::control::testing::CountedNew(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
// NOLINTEND(misc-new-delete-overloads)
