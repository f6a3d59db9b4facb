// SPDX-License-Identifier: Apache-2.0
#include "base/replace_file.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "base/testing/temp_path.h"

namespace kvik {
namespace {

namespace fs = std::filesystem;

class ReplaceFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string Path(const std::string& name) const { return folder_ / name; }
  static Result<void> Replace(const std::string& path, std::string_view text) {
    return ReplaceFile(path, std::as_bytes(std::span(text)));
  }
  static std::string Text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // Names in the folder.
  [[nodiscard]] size_t Files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_ = testing::TempPath("replace");
};

TEST_F(ReplaceFileTest, WhatIsThereIsReplacedAndNothingElseIsLeft) {
  for (const std::string& text :
       {std::string("first"), std::string(3'000'000, 'x'), std::string()}) {
    const auto replaced = Replace(Path("file"), text);
    ASSERT_TRUE(replaced) << replaced.error().message;
    EXPECT_EQ(Text(Path("file")), text);
    EXPECT_EQ(Files(), 1U);
  }
}

TEST_F(ReplaceFileTest, WhoHasTheOldFileOpenKeepsItsBytes) {
  ASSERT_TRUE(Replace(Path("file"), "old"));
  std::ifstream open(Path("file"));
  ASSERT_TRUE(Replace(Path("file"), "newer"));
  std::string read;
  open >> read;
  EXPECT_EQ(read, "old");
}

TEST_F(ReplaceFileTest, AFailureNamesThePathAndLeavesNothing) {
  const std::string nowhere = Path("no/such/folder/file");
  for (const auto& result : {Replace(nowhere, "x"), CheckReplaceable(nowhere)}) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(result.error().message.find(nowhere), std::string::npos) << result.error().message;
  }
  // A folder cannot be replaced by a file: it fails after everything was written.
  fs::create_directories(Path("folder/within"));
  const auto result = Replace(Path("folder"), "x");
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find(Path("folder")), std::string::npos);
  EXPECT_TRUE(fs::is_directory(Path("folder/within")));
  EXPECT_EQ(Files(), 1U);
}

TEST_F(ReplaceFileTest, CheckingChangesNothing) {
  EXPECT_TRUE(CheckReplaceable(Path("file")));
  EXPECT_EQ(Files(), 0U);
  ASSERT_TRUE(Replace(Path("file"), "old"));
  EXPECT_TRUE(CheckReplaceable(Path("file")));
  EXPECT_EQ(Text(Path("file")), "old");
  EXPECT_EQ(Files(), 1U);
}

}  // namespace
}  // namespace kvik
