// SPDX-License-Identifier: Apache-2.0
#include "base/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

namespace kvik {
namespace {

TEST(TemporaryFolder, EachIsItsOwnAndGoesWithItsFiles) {
  std::optional<TemporaryFolder> a = TemporaryFolder::Create("kvik-folder").value();
  const TemporaryFolder b = TemporaryFolder::Create("kvik-folder").value();
  EXPECT_NE(a->path(), b.path());
  std::ofstream(a->path() + "/file") << "x";
  TemporaryFolder moved = std::move(*a);
  const std::string path = moved.path();
  a.reset();
  EXPECT_TRUE(std::filesystem::exists(path + "/file"));
  moved = TemporaryFolder::Create("kvik-folder").value();
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace kvik
