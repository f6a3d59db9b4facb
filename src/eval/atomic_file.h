// SPDX-License-Identifier: Apache-2.0
// eval/atomic_file.h: a file that appears as a whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace kvik::eval {

// Replaces `path` through a file of its own name beside it, so that several processes may write the
// same path. kUnavailable (kExhausted when the disk is full) names the path.
Result<void> WriteFileAtomically(const std::string& path, std::span<const std::byte> bytes);

}  // namespace kvik::eval
