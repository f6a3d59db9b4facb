// SPDX-License-Identifier: Apache-2.0
// app/profile_folder.h: profile libraries as folders: library.json and the tensors beside it.
#pragma once

#include <string>

#include "base/result.h"
#include "codec/profile_library.h"

namespace kvik::app {

constexpr const char* kProfileLibraryName = "library.json";
constexpr const char* kProfileSideName = "side.f16";

// `path` names the folder or its JSON file. kNotFound, kUnavailable, or as ParseProfileLibrary; one
// line with the path.
Result<codec::ProfileLibrary> LoadProfileLibrary(const std::string& path);

// Makes the folder and replaces both files, the tensors first. kInvalidInput as
// PrintProfileLibrary; kUnavailable names the path.
Result<void> SaveProfileLibrary(const codec::ProfileLibrary& library, const std::string& folder);

}  // namespace kvik::app
