// SPDX-License-Identifier: Apache-2.0
// base/testing/temp_path.h: files of a test. Tests of one program run as processes side by side,
// so a fixed name in a shared folder would let them overwrite each other's files.
#pragma once

#include <string>

#include "base/temporary_folder.h"

namespace kvik::testing {

// `name` within a folder of this process alone, removed at exit.
inline std::string TempPath(const std::string& name) {
  static const TemporaryFolder folder = TemporaryFolder::Create("kvik-test").value();
  return folder.path() + "/" + name;
}

}  // namespace kvik::testing
