// SPDX-License-Identifier: Apache-2.0
// base/thread_priority.h: threads that only take what others leave.
#pragma once

namespace kvik {

// From now on the calling thread gets a core only where no thread of usual priority wants it, but
// for a small share that keeps it from standing still while it holds a lock. Nothing happens where
// the system refuses. There is no way back.
void YieldToOtherThreads();

}  // namespace kvik
