// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace kvik {

void CheckFailed(const char* file, int line, const char* condition, const char* format, ...) {
  std::fprintf(stderr, "%s:%d: check failed: %s", file, line, condition);
  if (format != nullptr) {
    va_list args;
    va_start(args, format);
    std::fputs(": ", stderr);
    std::vfprintf(stderr, format, args);
    va_end(args);
  }
  std::fputc('\n', stderr);
  std::abort();
}

}  // namespace kvik
