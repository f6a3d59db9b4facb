// SPDX-License-Identifier: Apache-2.0
// base/crc32c.h: the CRC with Castagnoli's polynomial (RFC 3720), which detects damage, not
// forgery. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvik {

// Of `bytes`, or of everything before them and `bytes` when `before` is the CRC of the former. Uses
// the CPU's instruction where there is one (SSE4.2); the result is the same.
[[nodiscard]] uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The table-driven twin, for tests.
[[nodiscard]] uint32_t Crc32cReference(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace kvik
