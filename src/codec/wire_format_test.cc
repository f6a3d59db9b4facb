// SPDX-License-Identifier: Apache-2.0
// The example of docs/wire-format.md against the code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "codec/frame.h"

namespace kvik::codec {
namespace {

// The keys of two tokens of a model of one layer with one head of four channels.
constexpr float kKeys[] = {0, 1, 2, 3, -1, 1, 0.5F, -0.5F};

// What is pinned here is also what the page shows.
constexpr const char* kFrame =
    "4b 76 46 01 fd 27 40 b7\n"
    "11 22 33 44 55 66 77 88\n"
    "1f db 57 12 fc 9b e1 51\n"
    "1f db 57 12 0e 00 00 00\n"
    "10 00 00 00 02 00 00 00\n"
    "12 00 00 00 00 00 00 00\n"
    "01 00 04 00 01 01 00 00\n"
    "00 00 08 00 00 00 bc 00\n"
    "42 00 3c 02 22 7d\n";

std::unique_ptr<FrameCodec> MakeCodec() {
  ModelFacts model;
  model.name = "example";
  model.fingerprint = 0x8877665544332211U;
  model.num_layers = 1;
  model.num_kv_heads = 1;
  model.head_dim = 4;
  const auto pipeline = PipelineSpec::Parse("none -> uniform(levels=4,per=token) -> pack");
  KVIK_CHECK(pipeline.has_value());
  return std::move(FrameCodec::Create(*pipeline, model, nullptr, Isa::kScalar)).value();
}

std::vector<std::byte> ExampleFrame(const FrameCodec& codec) {
  std::vector<Bf16> keys;
  for (const float key : kKeys) {
    keys.push_back(ToBf16(key));
  }
  KvRows rows;
  rows.first_token = 16;
  rows.num_tokens = 2;
  rows.prompt_tokens = 18;
  rows.head_stride = keys.size();
  rows.keys = keys.data();
  Workspace workspace;
  std::vector<std::byte> bytes;
  KVIK_CHECK(codec.Encode(rows, FrameParts::kKey, workspace, bytes).has_value());
  return bytes;
}

// Eight bytes a line.
std::string Hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(bytes[i]));
    text += digits;
    text += i % 8 == 7 || i + 1 == bytes.size() ? '\n' : ' ';
  }
  return text;
}

TEST(WireFormat, TheWorkedExampleIsWhatTheCodeWrites) {
  const auto codec = MakeCodec();
  EXPECT_EQ(codec->pipeline().ToString(), "none -> uniform(levels=4) -> pack");
  EXPECT_EQ(Hex(ExampleFrame(*codec)), kFrame);
}

TEST(WireFormat, TheWorkedExampleDecodesToWhatThePageSays) {
  const auto codec = MakeCodec();
  std::vector<Bf16> keys(8);
  KvRowsOut out;
  out.num_tokens = 2;
  out.num_heads = 1;
  out.head_stride = 8;
  out.keys = keys.data();
  Workspace workspace;
  const auto frame = codec->Decode(ExampleFrame(*codec), workspace, out);
  ASSERT_TRUE(frame) << frame.error().message;
  const float third = ToFloat(ToBf16(1.0F / 3));
  const float expected[] = {0, 1, 2, 3, -1, 1, third, -third};
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(ToFloat(keys[i]), expected[i]) << i;
  }
}

TEST(WireFormat, TheWorkedExampleIsTheOneOfThePage) {
  std::ifstream page(KVIK_WIRE_FORMAT_PAGE);
  ASSERT_TRUE(page) << KVIK_WIRE_FORMAT_PAGE;
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  const size_t section = text.find("## A frame in hex");
  ASSERT_NE(section, std::string::npos);
  // The hex of the section's lines, without what they say beside it.
  std::string hex;
  const size_t begin = text.find("```\n", section) + 4;
  const size_t end = text.find("```", begin);
  ASSERT_NE(end, std::string::npos);
  for (size_t at = begin; at < end; at = text.find('\n', at) + 1) {
    const size_t first = text.find_first_not_of("0123456789", at) + 2;  // after the offset
    const size_t stop = std::min(text.find("   ", first), text.find('\n', first));
    hex += text.substr(first, stop - first) + ' ';
  }
  std::string pinned = kFrame;
  std::replace(pinned.begin(), pinned.end(), '\n', ' ');
  EXPECT_EQ(hex, pinned);
}

}  // namespace
}  // namespace kvik::codec
