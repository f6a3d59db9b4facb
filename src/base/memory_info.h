// SPDX-License-Identifier: Apache-2.0
// base/memory_info.h: how much memory there is, asked before much of it is taken. The kernel hands
// out more than it has and kills who touches it: a refusal up front is the only clean one.
#pragma once

#include <cstddef>
#include <optional>

namespace kvik {

// Bytes that can be used without swapping: what /proc/meminfo calls available, at most the limit of
// this process's control group. None when neither can be read.
std::optional<size_t> AvailableMemoryBytes();

}  // namespace kvik
