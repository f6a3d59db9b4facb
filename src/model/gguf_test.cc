// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/rng.h"
#include "model/gguf_writer.h"
#include "model/testing/tiny_model.h"

namespace kvik::model {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// Builds a file field by field, so that a test can lie in any of them.
class RawFile {
 public:
  RawFile() { Text4("GGUF").U32(3); }
  RawFile& Text4(const char* text) { return Raw(text, 4); }
  RawFile& U8(uint8_t v) { return Raw(&v, sizeof(v)); }
  RawFile& U32(uint32_t v) { return Raw(&v, sizeof(v)); }
  RawFile& U64(uint64_t v) { return Raw(&v, sizeof(v)); }
  RawFile& Str(std::string_view text) { return U64(text.size()).Raw(text.data(), text.size()); }
  RawFile& Counts(uint64_t tensors, uint64_t pairs) { return U64(tensors).U64(pairs); }
  RawFile& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                  uint64_t offset) {
    Str(name).U32(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) {
      U64(dim);
    }
    return U32(type).U64(offset);
  }
  RawFile& Zeros(size_t n) {
    bytes_.resize(bytes_.size() + n);
    return *this;
  }
  RawFile& Pad() { return Zeros((32 - bytes_.size() % 32) % 32); }
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  RawFile& Raw(const void* data, size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
    return *this;
  }
  Bytes bytes_;
};

std::string ErrorOf(const RawFile& file) {
  const Result<GgufFile> parsed = GgufFile::Parse("m.gguf", file.bytes());
  if (parsed) {
    return "parsed";
  }
  EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
  EXPECT_THAT(parsed.error().message, HasSubstr("m.gguf: "));
  return parsed.error().message;
}

TEST(Gguf, ReadsBackEveryTypeTheWriterWrites) {
  GgufWriter writer;
  writer.AddUint32("a.u32", 7);
  writer.AddInt32("a.i32", -7);
  writer.AddFloat32("a.f32", 1.5F);
  writer.AddBool("a.bool", true);
  writer.AddString("a.string", "h\xC3\xA9llo");
  writer.AddStrings("a.strings", std::vector<std::string>{"x", "", "zz"});
  writer.AddFloats("a.floats", std::vector<float>{1.0F, -2.0F});
  writer.AddInts("a.ints", std::vector<int32_t>{3, -4});
  const Bytes f32(4 * 6);
  const Bytes q8(34 * 2);
  writer.AddTensor("w", GgmlType::kF32, {3, 2}, f32);
  writer.AddTensor("q", GgmlType::kQ8_0, {32, 2}, q8);
  const Bytes bytes = writer.Serialize();
  const Result<GgufFile> file = GgufFile::Parse("m.gguf", bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(**file->Int("a.u32", 0, 10), 7);
  EXPECT_EQ(**file->Int("a.i32", -10, 10), -7);
  EXPECT_EQ(**file->Float("a.f32"), 1.5);
  EXPECT_EQ(**file->Bool("a.bool"), true);
  EXPECT_EQ(**file->String("a.string"), "h\xC3\xA9llo");
  EXPECT_EQ(*file->Strings("a.strings"), (std::vector<std::string_view>{"x", "", "zz"}));
  EXPECT_EQ(*file->Floats("a.floats"), (std::vector<float>{1.0F, -2.0F}));
  EXPECT_EQ(*file->Ints("a.ints"), (std::vector<int64_t>{3, -4}));
  EXPECT_EQ(*file->Int("absent", 0, 1), std::nullopt);
  EXPECT_TRUE(file->Strings("absent")->empty());
  ASSERT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->tensors()[0].name, "w");
  EXPECT_EQ(file->tensors()[0].rows(), 2U);
  EXPECT_EQ(file->tensors()[0].cols(), 3U);
  EXPECT_EQ(file->tensors()[1].type, GgmlType::kQ8_0);
  EXPECT_EQ(file->tensors()[1].data.size(), 68U);
  EXPECT_EQ(file->Describe("a.strings"), "[string x 3]");
  EXPECT_EQ(file->Describe("a.string"), "h??llo");
  EXPECT_EQ(file->Describe("a.i32"), "-7");
}

TEST(Gguf, ReadsEveryScalarWidthAndNestedArrays) {
  RawFile raw;
  raw.Counts(0, 7);
  raw.Str("u8").U32(0).U8(200);
  raw.Str("i8").U32(1).U8(0xFF);
  raw.Str("u16").U32(2).U8(0x34).U8(0x12);
  raw.Str("u64").U32(10).U64(1ULL << 40);
  raw.Str("big").U32(10).U64(~0ULL);
  raw.Str("f64").U32(12).U64(0x3FF8000000000000ULL);
  raw.Str("nested").U32(9).U32(9).U64(2).U32(0).U64(1).U8(1).U32(8).U64(1).Str("x");
  const Result<GgufFile> file = GgufFile::Parse("m.gguf", raw.bytes());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(**file->Int("u8", 0, 255), 200);
  EXPECT_EQ(**file->Int("i8", -1, 1), -1);
  EXPECT_EQ(**file->Int("u16", 0, 65535), 0x1234);
  EXPECT_EQ(**file->Int("u64", 0, INT64_MAX), int64_t{1} << 40);
  EXPECT_EQ(**file->Float("f64"), 1.5);
  EXPECT_FALSE(file->Int("big", 0, INT64_MAX));
  EXPECT_FALSE(file->Int("f64", 0, 10));
  EXPECT_FALSE(file->String("u8"));
  EXPECT_FALSE(file->Ints("nested"));
  EXPECT_EQ(file->Describe("big"), "18446744073709551615");
}

TEST(Gguf, NamesTheFieldOfEveryLie) {
  EXPECT_THAT(ErrorOf(RawFile().Counts(1ULL << 60, 0)), HasSubstr("tensor count"));
  EXPECT_THAT(ErrorOf(RawFile().Counts(0, 1ULL << 60)), HasSubstr("metadata count"));
  EXPECT_THAT(ErrorOf(RawFile().Counts(0, 1).U64(~0ULL).Zeros(64)), HasSubstr("metadata key 0"));
  EXPECT_THAT(ErrorOf(RawFile().Counts(0, 1).Str("k").U32(77).Zeros(64)),
              HasSubstr("metadata 'k': unknown value type 77"));
  EXPECT_THAT(ErrorOf(RawFile().Counts(0, 1).Str("k").U32(8).U64(1ULL << 62).Zeros(64)),
              HasSubstr("metadata 'k'"));
  EXPECT_THAT(ErrorOf(RawFile().Counts(0, 1).Str("k").U32(9).U32(4).U64(1ULL << 62).Zeros(64)),
              HasSubstr("metadata 'k': 4611686018427387904 do not fit"));
  EXPECT_THAT(ErrorOf(RawFile().Counts(0, 2).Str("k").U32(7).U8(1).Str("k").U32(7).U8(1).Zeros(9)),
              HasSubstr("metadata 'k': appears twice"));
  RawFile deep;
  deep.Counts(0, 1).Str("k").U32(9);
  for (int i = 0; i < 100; ++i) {
    deep.U32(9).U64(1);
  }
  EXPECT_THAT(ErrorOf(deep.Zeros(64)), HasSubstr("nested deeper"));

  const auto tensor = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return RawFile().Counts(1, 0).Tensor("w", dims, type, offset).Pad().Zeros(256);
  };
  EXPECT_EQ(ErrorOf(tensor({8, 8}, 0, 0)), "parsed");
  EXPECT_THAT(ErrorOf(tensor({}, 0, 0)), HasSubstr("tensor 'w': 0 dimensions"));
  EXPECT_THAT(ErrorOf(tensor({1, 1, 1, 1, 1}, 0, 0)), HasSubstr("tensor 'w': 5 dimensions"));
  EXPECT_THAT(ErrorOf(tensor({8, 0}, 0, 0)), HasSubstr("tensor 'w': dimension 1 = 0"));
  EXPECT_THAT(ErrorOf(tensor({1ULL << 33, 1ULL << 33}, 0, 0)), HasSubstr("dimension 1"));
  EXPECT_THAT(ErrorOf(tensor({8, 8}, 10, 0)), HasSubstr("tensor 'w': tensor type 10"));
  EXPECT_THAT(ErrorOf(tensor({8, 8}, 8, 0)), HasSubstr("not a multiple of Q8_0's block of 32"));
  EXPECT_THAT(ErrorOf(tensor({8, 8}, 0, 4)), HasSubstr("tensor 'w': offset 4"));
  EXPECT_THAT(ErrorOf(tensor({8, 8}, 0, 32)), HasSubstr("tensor 'w': needs 256 bytes"));
  EXPECT_THAT(ErrorOf(tensor({8, 8}, 0, ~31ULL)), HasSubstr("tensor 'w': needs 256 bytes"));
  EXPECT_THAT(
      ErrorOf(
          RawFile().Counts(2, 0).Tensor("w", {8}, 0, 0).Tensor("w", {8}, 0, 32).Pad().Zeros(64)),
      HasSubstr("tensor 'w': appears twice"));
  EXPECT_THAT(
      ErrorOf(
          RawFile().Counts(2, 0).Tensor("w", {16}, 0, 0).Tensor("v", {8}, 0, 32).Pad().Zeros(64)),
      HasSubstr("tensor 'v': overlaps 'w'"));
  EXPECT_THAT(ErrorOf(RawFile().Counts(0, 1).Str("general.alignment").U32(4).U32(24).Zeros(64)),
              HasSubstr("not a power of two"));
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  const Result<GgufFile> empty = GgufFile::Parse("m.gguf", {});
  ASSERT_FALSE(empty);
  EXPECT_THAT(empty.error().message, HasSubstr("magic"));
  Bytes bytes = RawFile().Counts(0, 0).bytes();
  bytes[0] = std::byte{'X'};
  EXPECT_EQ(GgufFile::Parse("m.gguf", bytes).error().code, ErrorCode::kInvalidInput);
  bytes = RawFile().Counts(0, 0).bytes();
  bytes[4] = std::byte{1};
  EXPECT_EQ(GgufFile::Parse("m.gguf", bytes).error().code, ErrorCode::kUnsupported);
  bytes[4] = std::byte{0};
  bytes[7] = std::byte{3};
  EXPECT_THAT(GgufFile::Parse("m.gguf", bytes).error().message, HasSubstr("big-endian"));
}

TEST(Gguf, EveryTruncationIsAnError) {
  testing::TinyModelOptions options;
  options.num_layers = 1;
  options.hidden_size = 32;
  options.intermediate_size = 32;
  options.head_dim = 32;
  const Bytes bytes = testing::MakeTinyGguf(options);
  ASSERT_TRUE(GgufFile::Parse("m.gguf", bytes));
  const size_t payload = 32;  // the last tensor's padding may be cut
  for (size_t size = 0; size + payload < bytes.size(); size += size < 20000 ? 1 : 97) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_FALSE(GgufFile::Parse("m.gguf", cut)) << "with " << size << " bytes";
  }
}

// Whatever bytes change, parsing ends with a file whose views lie inside the bytes, or an error.
TEST(Gguf, AnyDamageIsParsedSafely) {
  testing::TinyModelOptions options;
  options.num_layers = 1;
  options.hidden_size = 32;
  options.intermediate_size = 32;
  options.head_dim = 32;
  const Bytes original = testing::MakeTinyGguf(options);
  const size_t header = original.size() < 16384 ? original.size() : 16384;
  Rng rng(11);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes = original;
    for (uint64_t i = 0; i <= rng.Below(4); ++i) {
      bytes[rng.Below(header)] = static_cast<std::byte>(rng.Below(256));
    }
    const Result<GgufFile> file = GgufFile::Parse("m.gguf", bytes);
    if (!file) {
      ++refused;
      continue;
    }
    for (const GgufTensor& tensor : file->tensors()) {
      ASSERT_GE(tensor.data.data(), bytes.data());
      ASSERT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
    }
    for (const std::string_view key : file->Keys()) {
      ASSERT_FALSE(file->Describe(key).find('\n') != std::string::npos);
    }
  }
  EXPECT_GT(refused, 300);  // and damage is mostly noticed
}

}  // namespace
}  // namespace kvik::model
