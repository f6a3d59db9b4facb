// SPDX-License-Identifier: Apache-2.0
// base/byte_size.h: sizes as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvik {

// "1048576", "512MiB", "1.5 GiB", "2G". KiB MiB GiB TiB and K M G T count by 1024, KB MB GB TB by
// 1000, B and no unit are bytes; case does not matter. A fraction is rounded down to a byte.
// kInvalidInput for anything else: signs, overflow, unknown units.
Result<uint64_t> ParseByteSize(std::string_view text);

// Rounded to one decimal of the largest binary unit that keeps the number at least 1: "0 B",
// "512 MiB", "1.5 GiB".
std::string FormatByteSize(uint64_t size_bytes);

}  // namespace kvik
