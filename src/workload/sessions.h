// SPDX-License-Identifier: Apache-2.0
// workload/sessions.h: which requests of a trace belong to one conversation.
#pragma once

#include <cstdint>

#include "workload/trace.h"

namespace kvik::workload {

// Fills in session and turn of every request. Sessions that the trace names are kept, their turns
// counted; the others are found as kv::SessionTracker does, and numbered from 0 in order of
// arrival.
void AnnotateSessions(Trace& trace);

// Keeps a `1/one_in` of the sessions, chosen by their numbers, and annotates again. REQUIRES:
// one_in >= 1, annotated.
void SampleSessions(Trace& trace, uint32_t one_in);

}  // namespace kvik::workload
