// SPDX-License-Identifier: Apache-2.0
#include "codec/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/rng.h"
#include "codec/testing/made_kv.h"

namespace kvik::codec {
namespace {

using testing::DecodedRows;
using testing::MadeModel;
using testing::MadeRows;

std::unique_ptr<FrameCodec> MakeCodec(const ModelFacts& model, const std::string& text) {
  const auto pipeline = PipelineSpec::Parse(text);
  KVIK_CHECK(pipeline.has_value(), "%s", pipeline.error().message.c_str());
  auto codec = FrameCodec::Create(*pipeline, model, nullptr, Isa::kScalar);
  KVIK_CHECK(codec.has_value(), "%s", codec.error().message.c_str());
  return std::move(codec).value();
}

constexpr const char* kExact = "none -> none -> none";

std::vector<std::byte> EncodeAll(const FrameCodec& codec, const KvRows& rows,
                                 FrameParts parts = FrameParts::kBoth) {
  Workspace workspace;
  std::vector<std::byte> bytes;
  const auto size = codec.Encode(rows, parts, workspace, bytes);
  KVIK_CHECK(size.has_value(), "%s", size.error().message.c_str());
  KVIK_CHECK(*size == bytes.size());
  return bytes;
}

// Sets the CRC to what it should be: for damage that the CRC would hide.
void Reseal(std::vector<std::byte>& frame) {
  const uint32_t crc = Crc32c(std::span(frame).subspan(8));
  std::memcpy(frame.data() + 4, &crc, sizeof(crc));
}

TEST(Frame, OddShapesComeBackBitForBit) {
  for (const int32_t head_dim : {64, 80, 96, 100, 112, 128, 192, 256}) {
    for (const int32_t heads : {1, 2, 5}) {
      for (const int32_t tokens : {1, 2, 3, 16, 37}) {
        const ModelFacts model = MadeModel(12, heads, head_dim);
        const auto codec = MakeCodec(model, kExact);
        const MadeRows made(model, 11, 48, tokens, 5);
        const auto bytes = EncodeAll(*codec, made.rows);
        DecodedRows decoded(model, made.rows);
        Workspace workspace;
        const auto frame = codec->Decode(bytes, workspace, decoded.out);
        ASSERT_TRUE(frame) << frame.error().message;
        EXPECT_EQ(frame->header.layer, 11);
        EXPECT_EQ(frame->header.first_token, 48);
        EXPECT_EQ(frame->header.fidelity, Fidelity::kExact);
        EXPECT_TRUE(frame->dropped.empty());
        EXPECT_EQ(decoded.keys, made.keys);
        EXPECT_EQ(decoded.values, made.values);
      }
    }
  }
}

TEST(Frame, EveryBf16IsKeptByAnExactPipeline) {
  // All 65,536 patterns: zeros of both signs, subnormals, infinities, quiet and signalling NaNs.
  const ModelFacts model = MadeModel(1, 1, 256);
  const auto codec = MakeCodec(model, kExact);
  MadeRows made(model, 0, 0, 256, 1);
  for (size_t i = 0; i < made.keys.size(); ++i) {
    made.keys[i] = Bf16{static_cast<uint16_t>(i)};
    made.values[i] = Bf16{static_cast<uint16_t>(~i)};
  }
  const auto bytes = EncodeAll(*codec, made.rows);
  DecodedRows decoded(model, made.rows);
  Workspace workspace;
  ASSERT_TRUE(codec->Decode(bytes, workspace, decoded.out));
  EXPECT_EQ(decoded.keys, made.keys);
  EXPECT_EQ(decoded.values, made.values);
}

TEST(Frame, PartsMayTravelApartAndMeetAgain) {
  const ModelFacts model = MadeModel(2, 3, 64);
  const auto codec = MakeCodec(model, kExact);
  const MadeRows made(model, 1, 0, 20, 3);
  const auto keys = EncodeAll(*codec, made.rows, FrameParts::kKey);
  const auto values = EncodeAll(*codec, made.rows, FrameParts::kValue);
  DecodedRows decoded(model, made.rows);
  Workspace workspace;
  ASSERT_TRUE(codec->Decode(values, workspace, decoded.out));
  ASSERT_TRUE(codec->Decode(keys, workspace, decoded.out));
  EXPECT_EQ(decoded.keys, made.keys);
  EXPECT_EQ(decoded.values, made.values);
}

TEST(Frame, ARangeOfALongerTensorIsTheSameFrame) {
  const ModelFacts model = MadeModel(2, 3, 64);
  const auto codec = MakeCodec(model, "selfcenter -> uniform(levels=8) -> rans");
  const MadeRows made(model, 0, 0, 100, 3);
  KvRows range = made.rows;
  range.first_token = 32;
  range.num_tokens = 16;
  range.keys += size_t{32} * 64;
  range.values += size_t{32} * 64;
  MadeRows copy(model, 0, 32, 16, 1);  // the same rows on their own
  copy.rows.prompt_tokens = range.prompt_tokens;
  for (size_t head = 0; head < 3; ++head) {
    std::copy_n(range.keys + head * range.head_stride, 16 * 64, copy.keys.data() + head * 16 * 64);
    std::copy_n(range.values + head * range.head_stride, 16 * 64,
                copy.values.data() + head * 16 * 64);
  }
  EXPECT_EQ(EncodeAll(*codec, range), EncodeAll(*codec, copy.rows));
}

TEST(Frame, ConcatenatedFramesAreReadOneByOneInAnyOrder) {
  const ModelFacts model = MadeModel(12, 2, 64);
  const auto codec = MakeCodec(model, kExact);
  std::vector<std::byte> bytes;
  std::vector<size_t> starts;
  Workspace workspace;
  std::vector<std::unique_ptr<MadeRows>> made;
  for (int32_t layer = 0; layer < 12; ++layer) {
    made.push_back(std::make_unique<MadeRows>(model, layer, 16 * layer, 16, 9));
    starts.push_back(bytes.size());
    ASSERT_TRUE(codec->Encode(made.back()->rows, FrameParts::kBoth, workspace, bytes));
  }
  for (size_t i = starts.size(); i-- > 0;) {
    DecodedRows decoded(model, made[i]->rows);
    Workspace fresh;
    const auto frame = codec->Decode(std::span(bytes).subspan(starts[i]), fresh, decoded.out);
    ASSERT_TRUE(frame) << frame.error().message;
    EXPECT_EQ(frame->header.layer, static_cast<int32_t>(i));  // 10 and 11 follow 9
    EXPECT_EQ(decoded.keys, made[i]->keys);
  }
}

TEST(Frame, EveryTruncationAndEveryFlippedBitIsNoticed) {
  const ModelFacts model = MadeModel(2, 1, 64);
  const auto codec = MakeCodec(model, kExact);
  const MadeRows made(model, 0, 0, 2, 3);
  const auto bytes = EncodeAll(*codec, made.rows);
  DecodedRows decoded(model, made.rows);
  Workspace workspace;
  for (size_t n = 0; n < bytes.size(); ++n) {
    ASSERT_FALSE(codec->Decode(std::span(bytes).first(n), workspace, decoded.out)) << n;
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<std::byte> flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const auto frame = codec->Decode(flipped, workspace, decoded.out);
    ASSERT_FALSE(frame) << bit;
    ASSERT_TRUE(frame.error().code == ErrorCode::kCorrupt ||
                frame.error().code == ErrorCode::kUnsupported)
        << bit;
  }
}

TEST(Frame, LiesUnderAValidCrcAreRefused) {
  const ModelFacts model = MadeModel(2, 2, 64);
  const auto codec = MakeCodec(model, kExact);
  const MadeRows made(model, 1, 0, 4, 3);
  const auto bytes = EncodeAll(*codec, made.rows);
  DecodedRows decoded(model, made.rows);
  Workspace workspace;
  const auto with = [&](size_t offset, auto value) {
    std::vector<std::byte> lie = bytes;
    std::memcpy(lie.data() + offset, &value, sizeof(value));
    Reseal(lie);
    const auto frame = codec->Decode(lie, workspace, decoded.out);
    return frame ? std::string("accepted") : frame.error().message;
  };
  EXPECT_NE(with(8, uint64_t{1}).find("a frame of model"), std::string::npos);
  EXPECT_NE(with(16, uint64_t{1}).find("another calibration"), std::string::npos);
  EXPECT_NE(with(28, uint32_t{0xFFFFFFFF}).find("cut short"), std::string::npos);
  EXPECT_NE(with(32, uint32_t{0x7FFFFFFF}).find("a frame of tokens"), std::string::npos);
  EXPECT_NE(with(36, uint32_t{0}).find("a frame of tokens"), std::string::npos);
  EXPECT_NE(with(36, uint32_t{65536}).find("4 and 2 are wanted"), std::string::npos);
  EXPECT_NE(with(36, uint32_t{65537}).find("a frame of tokens"), std::string::npos);
  EXPECT_NE(with(44, uint16_t{2}).find("do not lie in the model"), std::string::npos);
  EXPECT_NE(with(46, uint16_t{1}).find("do not lie in the model"), std::string::npos);
  EXPECT_NE(with(48, uint16_t{3}).find("do not lie in the model"), std::string::npos);
  EXPECT_NE(with(50, uint16_t{63}).find("do not lie in the model"), std::string::npos);
  EXPECT_NE(with(52, uint8_t{0}).find("parts 0"), std::string::npos);
  EXPECT_NE(with(53, uint8_t{9}).find("fidelity 9"), std::string::npos);
  EXPECT_NE(with(53, uint8_t{1}).find("says fidelity 1"), std::string::npos);
  EXPECT_NE(with(53, uint8_t{2}).find("says fidelity 2"), std::string::npos);
  EXPECT_NE(with(54, uint8_t{1}).find("layout 1"), std::string::npos);
  EXPECT_NE(with(55, uint8_t{1}).find("reserved 1"), std::string::npos);
  EXPECT_NE(with(56, uint8_t{7}).find("a part of form 7"), std::string::npos);
}

TEST(Frame, LiesAboutWhatIsKeptAreRefused) {
  // Head 0 keeps tokens 0 and 3 of four, head 1 all of them.
  const ModelFacts model = MadeModel(1, 2, 64);
  const auto pipeline =
      PipelineSpec::Parse("keep(sinks=1,recent=1,streaming=0.5) -> uniform(levels=16) -> pack");
  ASSERT_TRUE(pipeline);
  auto side = std::make_shared<SideInfo>();
  ASSERT_TRUE(side->Add("scores/attention", {1, 2}, std::vector<float>{0, 1}));
  const auto codec = FrameCodec::Create(*pipeline, model, side, Isa::kScalar);
  ASSERT_TRUE(codec) << codec.error().message;
  MadeRows made(model, 0, 0, 4, 3);
  made.keys[3 * 64 + 5] = Bf16{0x7FC0};  // an exception at a kept slot of head 0
  const auto bytes = EncodeAll(**codec, made.rows);
  Workspace workspace;
  DecodedRows decoded(model, made.rows);
  const auto frame = (*codec)->Decode(bytes, workspace, decoded.out);
  ASSERT_TRUE(frame) << frame.error().message;
  EXPECT_EQ(frame->header.fidelity, Fidelity::kMasked);
  EXPECT_EQ(frame->dropped, (std::vector<DroppedRange>{{0, 1, 3}}));
  EXPECT_EQ(decoded.keys[3 * 64 + 5].bits, 0x7FC0);
  // 2 ranges (0 + 1, 2 + 1), 1 range (0 + 4), form, one exception, its gap of 197 in two bytes.
  ASSERT_EQ(bytes[56 + 8], std::byte{0});
  ASSERT_EQ(bytes[56 + 9], std::byte{1});
  const auto with = [&](std::initializer_list<std::pair<size_t, uint8_t>> changes) {
    std::vector<std::byte> lie = bytes;
    for (const auto& [offset, value] : changes) {
      lie[offset] = static_cast<std::byte>(value);
    }
    Reseal(lie);
    const auto result = (*codec)->Decode(lie, workspace, decoded.out);
    return result ? std::string("accepted") : result.error().message;
  };
  EXPECT_NE(with({{53, 1}}).find("says fidelity 1"), std::string::npos);
  EXPECT_NE(with({{57, 3}}).find("a kept range leaves"), std::string::npos);  // gap
  EXPECT_NE(with({{58, 4}}).find("a kept range leaves"), std::string::npos);  // length
  EXPECT_NE(with({{59, 0}}).find("a kept range leaves"), std::string::npos);  // ranges touch
  EXPECT_NE(with({{56, 5}}).find("keeps 5 ranges"), std::string::npos);
  // The exception moves to token 1 or 2 of head 0, which are dropped.
  EXPECT_NE(with({{66, 0x80 | 69}, {67, 0}}).find("shortest form"), std::string::npos);
  EXPECT_NE(with({{66, 0x80 | 5}, {67, 1}}).find("what the frame keeps"), std::string::npos);
}

TEST(Frame, AProfileIsKnownByTheTensorsItUsesAndNoOthers) {
  const ModelFacts model = MadeModel(1, 2, 64);
  const auto hash = [&](const char* pipeline, const std::map<std::string, float>& scores) {
    auto side = std::make_shared<SideInfo>();
    for (const auto& [name, score] : scores) {
      EXPECT_TRUE(side->Add(name, {1, 2}, std::vector<float>{0, score}));
    }
    const auto codec =
        FrameCodec::Create(PipelineSpec::Parse(pipeline).value(), model, side, Isa::kScalar);
    return codec ? (*codec)->profile_hash() : 0;
  };
  const char* const keep = "keep(sinks=1,recent=1,streaming=0.5) -> none -> none";
  const uint64_t alone = hash(keep, {{"scores/attention", 1.0F}});
  EXPECT_NE(alone, 0U);
  EXPECT_EQ(hash(keep, {{"scores/attention", 1.0F}, {"scores/output", 1.0F}}), alone);
  EXPECT_NE(hash(keep, {{"scores/attention", 2.0F}}), alone);
  const char* const plain = "hadamard -> uniform(levels=16) -> pack";
  EXPECT_EQ(hash(plain, {{"scores/attention", 1.0F}}), hash(plain, {}));
}

TEST(Frame, RandomBytesUnderAValidHeaderNeverHarm) {
  const ModelFacts model = MadeModel(2, 2, 64);
  const auto codec = MakeCodec(model, kExact);
  const MadeRows made(model, 1, 0, 4, 3);
  const auto bytes = EncodeAll(*codec, made.rows);
  Workspace workspace;
  Rng rng(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> frame(bytes.begin(), bytes.begin() + 56);
    const auto payload = static_cast<uint32_t>(rng.Below(1200));
    for (uint32_t i = 0; i < payload; ++i) {
      frame.push_back(static_cast<std::byte>(i == 0 ? rng.Below(3) : rng.Below(256)));
    }
    std::memcpy(frame.data() + 28, &payload, sizeof(payload));
    Reseal(frame);
    DecodedRows decoded(model, made.rows);
    const auto result = codec->Decode(frame, workspace, decoded.out);
    EXPECT_TRUE(result || result.error().code == ErrorCode::kCorrupt);
  }
}

TEST(Frame, WhatCannotBeEncodedIsRefusedAndLeavesTheBufferAlone) {
  const ModelFacts model = MadeModel(2, 2, 64);
  const auto codec = MakeCodec(model, kExact);
  const MadeRows made(model, 0, 0, 4, 3);
  Workspace workspace;
  std::vector<std::byte> out(3);
  const auto refused = [&](auto change) {
    KvRows rows = made.rows;
    change(rows);
    const auto size = codec->Encode(rows, FrameParts::kBoth, workspace, out);
    EXPECT_EQ(out.size(), 3U);
    return !size && size.error().code == ErrorCode::kInvalidInput;
  };
  EXPECT_TRUE(refused([](KvRows& rows) { rows.layer = 2; }));
  EXPECT_TRUE(refused([](KvRows& rows) { rows.layer = -1; }));
  EXPECT_TRUE(refused([](KvRows& rows) { rows.num_tokens = 0; }));
  EXPECT_TRUE(refused([](KvRows& rows) { rows.num_tokens = kMaxFrameTokens + 1; }));
  EXPECT_TRUE(refused([](KvRows& rows) { rows.first_token = INT32_MAX - 3; }));
  EXPECT_TRUE(refused([](KvRows& rows) { rows.keys = nullptr; }));
  EXPECT_TRUE(refused([](KvRows& rows) { rows.values = nullptr; }));
}

}  // namespace
}  // namespace kvik::codec
