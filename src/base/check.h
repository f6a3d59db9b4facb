// SPDX-License-Identifier: Apache-2.0
// base/check.h: assertions for what cannot happen. KVIK_CHECK is always on; KVIK_DCHECK only
// without NDEBUG. Never for input: that is Result<T>.
#pragma once

namespace kvik {
// Prints "file:line: check failed: condition: message" and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const char* format = nullptr, ...)
    __attribute__((format(printf, 4, 5)));
}  // namespace kvik

// KVIK_CHECK(condition) or KVIK_CHECK(condition, "format", args...).
#define KVIK_CHECK(condition, ...)                   \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::kvik::CheckFailed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__))

#ifdef NDEBUG
#define KVIK_DCHECK(condition, ...) static_cast<void>(0)
#else
#define KVIK_DCHECK(condition, ...) KVIK_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
