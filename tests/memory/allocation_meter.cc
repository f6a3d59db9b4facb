// SPDX-License-Identifier: Apache-2.0
#include "allocation_meter.h"

#include <malloc.h>

#include <atomic>
#include <cerrno>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVIK_HEAP_IS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVIK_HEAP_IS_SANITIZED 1
#endif

namespace kvik::testing {
namespace {

std::atomic<size_t> held{0};
std::atomic<size_t> base{0};  // held when the peak was started
std::atomic<size_t> peak{0};

// Allocations happen before constructors and after destructors: nothing here has any.
void Saw(size_t bytes) {
  size_t seen = peak.load(std::memory_order_relaxed);
  while (bytes > seen && !peak.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
  }
}
void Took(size_t bytes) { Saw(held.fetch_add(bytes, std::memory_order_relaxed) + bytes); }
void Gave(size_t bytes) { held.fetch_sub(bytes, std::memory_order_relaxed); }

}  // namespace

size_t HeldBytes() { return held; }
void StartPeak() {
  base = held.load();
  peak = held.load();
}
size_t PeakBytes() { return peak - base; }

}  // namespace kvik::testing

#ifdef KVIK_HEAP_IS_SANITIZED

extern "C" {
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                              void (*on_free)(const volatile void*));
size_t __sanitizer_get_allocated_size(const volatile void* at);
}

namespace {
[[maybe_unused]] const int kInstalled = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void* /*at*/, size_t bytes) { kvik::testing::Took(bytes); },
    [](const volatile void* at) {
      if (at != nullptr) {
        kvik::testing::Gave(__sanitizer_get_allocated_size(at));
      }
    });
}  // namespace

#else

extern "C" {

// glibc's own, under the names it gives them.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t n, size_t bytes);
void* __libc_realloc(void* at, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* at);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

static void* Taken(void* at, size_t wanted) {
  if (at == nullptr) {
    kvik::testing::Saw(kvik::testing::HeldBytes() + wanted);
  } else {
    kvik::testing::Took(malloc_usable_size(at));
  }
  return at;
}

void* malloc(size_t bytes) { return Taken(__libc_malloc(bytes), bytes); }
void* calloc(size_t n, size_t bytes) { return Taken(__libc_calloc(n, bytes), n * bytes); }
void* realloc(void* at, size_t bytes) {
  const size_t before = malloc_usable_size(at);
  void* const moved = __libc_realloc(at, bytes);
  if (moved != nullptr || bytes == 0) {
    // Both may be held while bytes are copied.
    Taken(moved, bytes);
    kvik::testing::Gave(before);
  } else {
    Taken(nullptr, bytes);
  }
  return moved;
}
void* memalign(size_t alignment, size_t bytes) {
  return Taken(__libc_memalign(alignment, bytes), bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** at, size_t alignment, size_t bytes) {
  void* const taken = memalign(alignment, bytes);
  if (taken == nullptr) {
    return ENOMEM;
  }
  *at = taken;
  return 0;
}
void free(void* at) {
  kvik::testing::Gave(malloc_usable_size(at));
  __libc_free(at);
}

}  // extern "C"

#endif
