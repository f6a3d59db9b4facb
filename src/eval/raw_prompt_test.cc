// SPDX-License-Identifier: Apache-2.0
#include "eval/raw_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include "base/rng.h"
#include "base/testing/temp_path.h"

namespace kvik::eval {
namespace {

using ::testing::HasSubstr;

constexpr RawShape kShape{.item = 7,
                          .num_layers = 2,
                          .num_kv_heads = 1,
                          .num_q_heads = 3,
                          .head_dim = 16,
                          .num_tokens = 5,
                          .num_continuation = 4,
                          .num_reference = 2,
                          .num_queries = 2};

RawPrompt Made() {
  RawPrompt prompt = RawPrompt::Create(kShape).value();
  std::iota(prompt.mutable_tokens().begin(), prompt.mutable_tokens().end(), 10);
  std::iota(prompt.mutable_continuation().begin(), prompt.mutable_continuation().end(), 20);
  std::iota(prompt.mutable_reference().begin(), prompt.mutable_reference().end(), 30);
  prompt.mutable_query_positions()[0] = 0;
  prompt.mutable_query_positions()[1] = 2;
  for (int32_t layer = 0; layer < 2; ++layer) {
    std::iota(prompt.mutable_queries(layer).begin(), prompt.mutable_queries(layer).end(),
              100.0F * static_cast<float>(layer));
    for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
      uint16_t next = static_cast<uint16_t>(1000 * layer + 500 * static_cast<int>(part));
      for (Bf16& value : prompt.mutable_rows(layer, part)) {
        value.bits = next++;
      }
    }
  }
  return prompt;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST(RawPrompt, IsReadAsItWasSaved) {
  const std::string folder = kvik::testing::TempPath("saved");
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/prompt.kvraw";
  RawPrompt made = Made();
  EXPECT_EQ(made.size_bytes(), RawPrompt::SizeBytes(kShape).value());
  ASSERT_TRUE(made.Save(path, 99));
  const auto loaded = RawPrompt::Load(path, 99);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->shape(), kShape);
  EXPECT_TRUE(std::ranges::equal(loaded->tokens(), made.tokens()));
  EXPECT_TRUE(std::ranges::equal(loaded->continuation(), made.continuation()));
  EXPECT_TRUE(std::ranges::equal(loaded->reference(), made.reference()));
  EXPECT_TRUE(std::ranges::equal(loaded->query_positions(), made.query_positions()));
  EXPECT_EQ(loaded->queries(1)[0], 100.0F);
  EXPECT_EQ(loaded->rows(1, kv::KvPart::kValue)[3].bits, 1503);
  EXPECT_EQ(loaded->rows(0, kv::KvPart::kKey).size(), 80U);
  EXPECT_THAT(RawPrompt::Load(path, 98).error().message, HasSubstr("something else"));
  EXPECT_EQ(RawPrompt::Load(path + "x", 99).error().code, ErrorCode::kNotFound);
  // Nothing is left of the way it was written.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(RawPrompt, NoDamageGoesUnnoticed) {
  const std::string path = kvik::testing::TempPath("damaged.kvraw");
  RawPrompt made = Made();
  ASSERT_TRUE(made.Save(path, 99));
  const std::string good = ReadAll(path);
  for (size_t at = 0; at < good.size(); ++at) {
    // All of the header, and a byte in seven of the rest: padding is covered, too.
    if (at < 128 || at % 7 == 0) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      WriteAll(path, bad);
      const auto loaded = RawPrompt::Load(path, 99);
      ASSERT_FALSE(loaded) << "byte " << at;
      ASSERT_EQ(loaded.error().code, ErrorCode::kCorrupt);
    }
  }
  for (const size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, good.size() - 1}) {
    WriteAll(path, good.substr(0, size));
    ASSERT_EQ(RawPrompt::Load(path, 99).error().code, ErrorCode::kCorrupt) << size;
  }
  WriteAll(path, good + "x");
  EXPECT_EQ(RawPrompt::Load(path, 99).error().code, ErrorCode::kCorrupt);
}

TEST(RawPrompt, RefusesShapesThatCannotBe) {
  for (auto edit : std::vector<void (*)(RawShape&)>{
           [](RawShape& s) { s.num_layers = 0; }, [](RawShape& s) { s.head_dim = -1; },
           [](RawShape& s) { s.num_tokens = 1 << 30; }, [](RawShape& s) { s.num_queries = 9; },
           [](RawShape& s) { s.num_continuation = 0; }}) {
    RawShape shape = kShape;
    edit(shape);
    EXPECT_EQ(RawPrompt::Create(shape).error().code, ErrorCode::kInvalidInput);
  }
}

}  // namespace
}  // namespace kvik::eval
