// SPDX-License-Identifier: Apache-2.0
// app/memory.h: how much memory this process may still take.
#pragma once

#include <cstdint>
#include <optional>

namespace kvik::app {

// What the kernel says is available without swapping, or what the control group of the process
// leaves if that is less. nullopt where neither can be read.
std::optional<uint64_t> AvailableMemoryBytes();

}  // namespace kvik::app
