// SPDX-License-Identifier: Apache-2.0
#include "app/profile_folder.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "app/text_file.h"
#include "base/mapped_file.h"

namespace kvik::app {

namespace fs = std::filesystem;

Result<codec::ProfileLibrary> LoadProfileLibrary(const std::string& path) {
  std::error_code error;
  const fs::path json_path =
      fs::is_directory(path, error) ? fs::path(path) / kProfileLibraryName : fs::path(path);
  KVIK_ASSIGN(const std::string json, ReadTextFile(json_path.string()));
  const Result<std::string> side_name = codec::ProfileLibrarySideFile(json);
  if (!side_name) {
    return Error{side_name.error().code, json_path.string() + " " + side_name.error().message};
  }
  const std::string side_path = (json_path.parent_path() / *side_name).string();
  Result<codec::ProfileLibrary> library = [&]() -> Result<codec::ProfileLibrary> {
    if (fs::file_size(side_path, error) == 0 && !error) {
      return codec::ParseProfileLibrary(json, {});
    }
    KVIK_ASSIGN(const MappedFile side, MappedFile::Open(side_path));
    return codec::ParseProfileLibrary(json, side.bytes());
  }();
  if (!library) {
    return Error{library.error().code, json_path.string() + " " + library.error().message};
  }
  return library;
}

Result<void> SaveProfileLibrary(const codec::ProfileLibrary& library, const std::string& folder) {
  KVIK_ASSIGN(const codec::ProfileLibraryFiles files,
              codec::PrintProfileLibrary(library, kProfileSideName));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return Err(ErrorCode::kUnavailable, "%s: cannot make the folder: %s", folder.c_str(),
               error.message().c_str());
  }
  const std::string_view side(reinterpret_cast<const char*>(files.side.data()), files.side.size());
  KVIK_TRY(ReplaceTextFile(folder + "/" + kProfileSideName, std::string(side)));
  return ReplaceTextFile(folder + "/" + kProfileLibraryName, files.json);
}

}  // namespace kvik::app
