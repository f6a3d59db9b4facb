// SPDX-License-Identifier: Apache-2.0
#include "eval/frame_coder.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "codec/pipeline.h"

namespace kvik::eval {
namespace {

codec::ModelFacts Facts() {
  codec::ModelFacts facts;
  facts.name = "made";
  facts.fingerprint = 5;
  facts.num_layers = 2;
  facts.num_kv_heads = 3;
  facts.head_dim = 64;
  return facts;
}

std::vector<Bf16> RandomRows(size_t values, uint64_t seed) {
  Rng rng(seed);
  std::vector<Bf16> rows(values);
  for (Bf16& value : rows) {
    value = ToBf16(static_cast<float>(rng.Uniform() * 2 - 1));
  }
  return rows;
}

std::unique_ptr<codec::FrameCodec> Codec(const char* pipeline) {
  return codec::FrameCodec::Create(codec::PipelineSpec::Parse(pipeline).value(), Facts(), nullptr,
                                   Isa::kScalar)
      .value();
}

TEST(FrameCoder, CutsTokensIntoFramesAndCountsEveryByte) {
  constexpr int32_t kTokens = 37;
  const auto codec = Codec("none -> none -> none");
  const std::vector<Bf16> keys = RandomRows(3 * kTokens * 64, 1);
  const std::vector<Bf16> values = RandomRows(3 * kTokens * 64, 2);
  uint64_t one_frame = 0;
  for (const int32_t frame_tokens : {100, 16, 1}) {
    FrameCoder coder(*codec, frame_tokens, 2);
    std::vector<Bf16> k = keys, v = values;
    const auto size = coder.RoundTrip({.layer = 1,
                                       .first_pos = 5,
                                       .num_tokens = kTokens,
                                       .prompt_tokens = 42,
                                       .keys = &k,
                                       .values = &v},
                                      1);
    ASSERT_TRUE(size) << size.error().message;
    EXPECT_EQ(k, keys);
    EXPECT_EQ(v, values);
    EXPECT_GE(size->bytes, 4 * keys.size() + codec::kFrameHeaderBytes);
    if (frame_tokens == 100) {
      one_frame = size->bytes;
    } else {
      const uint64_t frames =
          (kTokens + static_cast<uint32_t>(frame_tokens) - 1) / static_cast<uint32_t>(frame_tokens);
      EXPECT_GE(size->bytes, one_frame + (frames - 1) * codec::kFrameHeaderBytes);
    }
  }
}

TEST(FrameCoder, ItsIdentityIsWhatDecidesTheResult) {
  const auto a = Codec("none -> uniform(levels=16,per=token,group=32) -> pack");
  const auto b = Codec("none -> uniform(levels=15,per=token,group=32) -> pack");
  EXPECT_EQ(FrameCoder(*a, 16, 1).identity(), FrameCoder(*a, 16, 8).identity());
  EXPECT_NE(FrameCoder(*a, 16, 1).identity(), FrameCoder(*a, 32, 1).identity());
  EXPECT_NE(FrameCoder(*a, 16, 1).identity(), FrameCoder(*b, 16, 1).identity());
  EXPECT_EQ(FrameCoder(*a, 16, 1).name(), a->pipeline().ToString());
}

}  // namespace
}  // namespace kvik::eval
