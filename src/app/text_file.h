// SPDX-License-Identifier: Apache-2.0
// app/text_file.h: small files that are read and replaced as a whole.
#pragma once

#include <string>

#include "base/result.h"

namespace kvik::app {

// As MappedFile::Open.
Result<std::string> ReadTextFile(const std::string& path);

// As ReplaceFile (base/replace_file.h).
Result<void> ReplaceTextFile(const std::string& path, const std::string& text);

}  // namespace kvik::app
