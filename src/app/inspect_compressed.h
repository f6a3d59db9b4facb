// SPDX-License-Identifier: Apache-2.0
// app/inspect_compressed.h: kvik inspect for what is not a model: profile libraries, frames and
// streams of frames.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace kvik::app {

// What `path` is, by its name and its first bytes, without any promise that the rest is sound.
enum class CompressedKind { kLibrary, kFrames, kStream };
std::optional<CompressedKind> RecogniseCompressed(const std::string& path);

// Prints a summary, or JSON. Frames are read one after the other; CRCs of all are checked. The
// exit code is 1, after the summary, when a file of frames is damaged or cut. Fails as
// LoadProfileLibrary.
Result<int> InspectCompressed(const std::string& path, CompressedKind kind, bool json);

}  // namespace kvik::app
