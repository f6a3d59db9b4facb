// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "base/testing/temp_path.h"

namespace kvik {
namespace {

TEST(MappedFile, SeesTheBytesAndKeepsThemWhenMoved) {
  const std::string path = testing::TempPath("mapped_file_test.bin");
  std::ofstream(path) << "hello";
  Result<MappedFile> file = MappedFile::Open(path);
  ASSERT_TRUE(file);
  const std::byte* data = file->bytes().data();
  MappedFile moved = std::move(*file);
  EXPECT_EQ(moved.bytes().data(), data);
  ASSERT_EQ(moved.bytes().size(), 5U);
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "hello", 5), 0);
  EXPECT_EQ(moved.path(), path);
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const std::string path = testing::TempPath("mapped_file_empty.bin");
  std::ofstream(path).close();
  Result<MappedFile> file = MappedFile::Open(path);
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFile, SaysWhatIsWrong) {
  const Result<MappedFile> missing = MappedFile::Open("/nonexistent/model.gguf");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("/nonexistent/model.gguf"), std::string::npos);

  const Result<MappedFile> folder = MappedFile::Open(::testing::TempDir());
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, ErrorCode::kInvalidInput);

  const std::string fifo = testing::TempPath("mapped_file_fifo");
  mkfifo(fifo.c_str(), 0600);
  const Result<MappedFile> pipe = MappedFile::Open(fifo);  // must not block
  ASSERT_FALSE(pipe);
  EXPECT_EQ(pipe.error().code, ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace kvik
