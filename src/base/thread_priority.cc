// SPDX-License-Identifier: Apache-2.0
#include "base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace kvik {
namespace {

constexpr int kLowest = 19;

}  // namespace

void YieldToOtherThreads() {
  // Of a thread, on Linux. Anybody may lower their own.
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowest));
}

}  // namespace kvik
