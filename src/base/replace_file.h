// SPDX-License-Identifier: Apache-2.0
// base/replace_file.h: a file that is replaced as a whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace kvik {

// Whoever reads meanwhile, or after a crash or a loss of power, finds the old bytes or the new
// ones. Goes through `path`.PID.part, so several processes may replace the same file. kUnavailable
// (kExhausted when the disk is full) names the path, and the old file is still there.
Result<void> ReplaceFile(const std::string& path, std::span<const std::byte> bytes);

// Whether ReplaceFile would succeed now, as far as permissions go. Changes nothing.
Result<void> CheckReplaceable(const std::string& path);

}  // namespace kvik
