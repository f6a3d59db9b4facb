// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/mapped_file.h"
#include "base/rng.h"
#include "base/testing/temp_path.h"

namespace kvik::model {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes File(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  Bytes bytes(8 + header.size() + data_bytes);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

std::string ErrorOf(std::string_view header, size_t data_bytes) {
  const auto parsed = ParseSafetensors("m.safetensors", File(header, data_bytes));
  if (parsed) {
    return "parsed";
  }
  EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
  EXPECT_THAT(parsed.error().message, HasSubstr("m.safetensors: "));
  return parsed.error().message;
}

TEST(Safetensors, ReadsBackWhatItWrites) {
  const std::string path = kvik::testing::TempPath("x.safetensors");
  const Bytes a(24, std::byte{1});
  const Bytes b(8, std::byte{2});
  const SafetensorsOutput out[] = {{"a \"quoted\"", SafetensorsDtype::kF32, {2, 3}, a, nullptr},
                                   {"b", SafetensorsDtype::kBf16, {4}, b, nullptr}};
  ASSERT_TRUE(WriteSafetensors(path, out));
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file);
  const auto tensors = ParseSafetensors(path, file->bytes());
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 2U);
  EXPECT_EQ((*tensors)[0].name, "a \"quoted\"");
  EXPECT_EQ((*tensors)[0].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ((*tensors)[0].dtype, SafetensorsDtype::kF32);
  EXPECT_EQ((*tensors)[0].data[23], std::byte{1});
  EXPECT_EQ((*tensors)[1].dtype, SafetensorsDtype::kBf16);
  EXPECT_EQ((*tensors)[1].data.size(), 8U);
}

TEST(Safetensors, AWriteThatCannotBeDoneIsAnError) {
  EXPECT_FALSE(WriteSafetensors("/nonexistent/x.safetensors", {}));
  const Bytes a(1 << 20);
  const SafetensorsOutput out[] = {{"a", SafetensorsDtype::kF32, {1 << 18}, a, nullptr}};
  const Result<void> full = WriteSafetensors("/dev/full", out);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kExhausted);
}

TEST(Safetensors, NamesTheFieldOfEveryLie) {
  EXPECT_EQ(ErrorOf(R"({"__metadata__":{"format":"pt"},)"
                    R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                    8),
            "parsed");
  EXPECT_EQ(ErrorOf(R"({"w":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8), "parsed");
  const auto w = [](const std::string& fields, size_t data) {
    return ErrorOf("{\"w\":{" + fields + "}}", data);
  };
  EXPECT_THAT(w(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])", 8),
              HasSubstr("tensor 'w': unknown dtype 'F33'"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[2])", 8), HasSubstr("'w': needs a shape"));
  EXPECT_THAT(w(R"("dtype":"F32","data_offsets":[0,8])", 8), HasSubstr("'w': needs a shape"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])", 8), HasSubstr("'w'"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8), HasSubstr("[8, 0)"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[2],"data_offsets":[0,16])", 8), HasSubstr("leave"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", 8),
              HasSubstr("needs 12 bytes"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 8),
              HasSubstr("dimension 4294967296 is impossible"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[0],"data_offsets":[0,0])", 0), HasSubstr("dimension 0"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[-1],"data_offsets":[0,8])", 8),
              HasSubstr("'w': a negative number"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[1e9],"data_offsets":[0,8])", 8),
              HasSubstr("'w': a number that is not an integer"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])", 4),
              HasSubstr("more than 8"));
  EXPECT_THAT(w(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])", 8), HasSubstr("an array"));
  EXPECT_THAT(w(R"("dtype":{"x":1},"shape":[2],"data_offsets":[0,8])", 8), HasSubstr("an object"));
  EXPECT_THAT(w(R"("dtype":null)", 8), HasSubstr("a null"));
  EXPECT_THAT(ErrorOf(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                      16),
              HasSubstr("'w': appears twice"));
  EXPECT_THAT(ErrorOf(R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                      12),
              HasSubstr("tensor 'w': overlaps"));
  EXPECT_THAT(ErrorOf(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 12),
              HasSubstr("4 bytes behind the last tensor"));
  EXPECT_THAT(ErrorOf("{", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("[1]", 0), HasSubstr("an array where none belongs"));
  EXPECT_THAT(ErrorOf("7", 0), HasSubstr("a number where none belongs"));
  EXPECT_THAT(ErrorOf(std::string(100000, '['), 0), HasSubstr("an array"));
}

TEST(Safetensors, RefusesShortFilesAndLyingLengths) {
  EXPECT_FALSE(ParseSafetensors("m", {}));
  EXPECT_FALSE(ParseSafetensors("m", Bytes(7)));
  for (const uint64_t length : {uint64_t{9}, uint64_t{1} << 40, ~uint64_t{0}}) {
    Bytes bytes(16);
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_THAT(ParseSafetensors("m", bytes).error().message, HasSubstr("header length"));
  }
}

// Whatever bytes change, parsing ends with tensors inside the bytes, or an error.
TEST(Safetensors, AnyDamageIsParsedSafely) {
  const Bytes original = File(R"({"v":{"dtype":"BF16","shape":[2,4],"data_offsets":[0,16]},)"
                              R"("w":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})",
                              24);
  Rng rng(5);
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = original;
    for (uint64_t i = 0; i <= rng.Below(3); ++i) {
      bytes[rng.Below(bytes.size())] = static_cast<std::byte>(rng.Below(256));
    }
    const auto tensors = ParseSafetensors("m", bytes);
    if (tensors) {
      for (const SafetensorsTensor& tensor : *tensors) {
        ASSERT_GE(tensor.data.data(), bytes.data());
        ASSERT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
      }
    }
  }
}

}  // namespace
}  // namespace kvik::model
