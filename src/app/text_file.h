// SPDX-License-Identifier: Apache-2.0
// app/text_file.h: small files that are read and replaced as a whole.
#pragma once

#include <string>

#include "base/result.h"

namespace kvik::app {

// As MappedFile::Open.
Result<std::string> ReadTextFile(const std::string& path);

// Whoever reads meanwhile, or after a crash or a loss of power, finds the old text or the new one.
// Goes through `path`.part. kUnavailable names the path.
Result<void> ReplaceTextFile(const std::string& path, const std::string& text);

// Whether ReplaceTextFile would succeed now, as far as permissions go. Changes nothing.
Result<void> CheckReplaceable(const std::string& path);

}  // namespace kvik::app
