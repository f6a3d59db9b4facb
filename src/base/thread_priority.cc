// SPDX-License-Identifier: Apache-2.0
#include "base/thread_priority.h"

#include <sched.h>

namespace kvik {

void YieldToOtherThreads() {
  // Of the calling thread, on Linux. Anybody may. A merely nice thread keeps a core that it was
  // given for a whole slice, whoever wakes up; this one is interrupted at once.
  const sched_param parameters = {};
  static_cast<void>(::sched_setscheduler(0, SCHED_IDLE, &parameters));
}

}  // namespace kvik
