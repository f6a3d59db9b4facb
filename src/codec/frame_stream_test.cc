// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "codec/testing/made_kv.h"

namespace kvik::codec {
namespace {

using testing::DecodedRows;
using testing::MadeModel;
using testing::MadeRows;

class FrameStream : public ::testing::Test {
 protected:
  FrameStream() : model_(MadeModel(4, 2, 64)) {
    codec_ = std::move(FrameCodec::Create(*PipelineSpec::Parse("none -> none -> none"), model_,
                                          nullptr, Isa::kScalar))
                 .value();
    StreamWriter writer(*codec_, stream_);
    Workspace workspace;
    for (int32_t layer = 0; layer < 4; ++layer) {
      made_.push_back(std::make_unique<MadeRows>(model_, layer, 0, 3 + layer, 7));
      KVIK_CHECK(writer.Add(made_.back()->rows, FrameParts::kBoth, workspace).has_value());
    }
    writer.Finish();
  }

  ModelFacts model_;
  std::unique_ptr<FrameCodec> codec_;
  std::vector<std::unique_ptr<MadeRows>> made_;
  std::vector<std::byte> stream_;
};

TEST_F(FrameStream, PiecesOfAnySizeGiveTheSameFrames) {
  Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    StreamReader reader;
    size_t layer = 0;
    for (size_t at = 0; at < stream_.size();) {
      const size_t n = std::min<size_t>(stream_.size() - at, round == 0 ? 1 : 1 + rng.Below(1500));
      reader.Feed(std::span(stream_).subspan(at, n));
      at += n;
      for (;;) {
        const auto frame = reader.Next();
        ASSERT_TRUE(frame) << frame.error().message;
        if (!*frame) {
          break;
        }
        DecodedRows decoded(model_, made_[layer]->rows);
        Workspace workspace;
        ASSERT_TRUE(codec_->Decode(**frame, workspace, decoded.out));
        ASSERT_EQ(decoded.keys, made_[layer]->keys);
        ++layer;
      }
    }
    EXPECT_EQ(layer, 4U);
    EXPECT_TRUE(reader.complete());
    ASSERT_TRUE(reader.header());
    EXPECT_EQ(reader.header()->pipeline, "none -> none -> none");
    EXPECT_EQ(reader.header()->profile_hash, codec_->profile_hash());
  }
}

TEST_F(FrameStream, ACutStreamIsNotComplete) {
  for (const size_t missing : {size_t{1}, size_t{24}, size_t{30}, size_t{2000}}) {
    StreamReader reader;
    reader.Feed(std::span(stream_).first(stream_.size() - missing));
    for (;;) {
      const auto frame = reader.Next();
      ASSERT_TRUE(frame);
      if (!*frame) {
        break;
      }
    }
    EXPECT_FALSE(reader.complete());
    EXPECT_EQ(reader.frames(), missing < 30 ? 4U : 3U);
  }
}

TEST_F(FrameStream, FramesThatAreMissingOrFollowTheEndAreNoticed) {
  const auto outcome = [](std::span<const std::byte> bytes) {
    StreamReader reader;
    reader.Feed(bytes);
    for (;;) {
      const auto frame = reader.Next();
      if (!frame) {
        return frame.error().message;
      }
      if (!*frame) {
        return std::string(reader.complete() ? "complete" : "cut");
      }
    }
  };
  EXPECT_EQ(outcome(stream_), "complete");
  std::vector<std::byte> longer = stream_;
  longer.push_back(std::byte{0});
  EXPECT_EQ(outcome(longer), "1 bytes follow the stream's end");
  // Without its first frame.
  StreamReader reader;
  reader.Feed(stream_);
  const auto first = reader.Next();
  ASSERT_TRUE(first && *first);
  std::vector<std::byte> shorter = stream_;
  const size_t header_bytes = 26 + std::string("none -> none -> none").size();
  shorter.erase(shorter.begin() + static_cast<ptrdiff_t>(header_bytes),
                shorter.begin() + static_cast<ptrdiff_t>(header_bytes + (*first)->size()));
  EXPECT_NE(outcome(shorter).find("the stream had 4 frames"), std::string::npos);
  EXPECT_NE(outcome(std::span(stream_).subspan(header_bytes)).find("a stream should start here"),
            std::string::npos);
}

TEST_F(FrameStream, DamageWhereFramesMeetIsAnErrorAndClaimsAreNotBelieved) {
  const size_t header_bytes = 26 + std::string("none -> none -> none").size();
  for (size_t byte = 0; byte < header_bytes + 4; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> damaged = stream_;
      damaged[byte] ^= static_cast<std::byte>(1U << bit);
      StreamReader reader;
      reader.Feed(damaged);
      const auto frame = reader.Next();
      // Damage of the pipeline's length may also leave the reader waiting for bytes.
      ASSERT_TRUE(!frame || !*frame) << byte;
    }
  }
  std::vector<std::byte> huge = stream_;
  const uint32_t claim = 0xFFFFFFF0U;
  std::memcpy(huge.data() + header_bytes + 28, &claim, sizeof(claim));
  StreamReader reader;
  reader.Feed(huge);
  const auto frame = reader.Next();
  ASSERT_FALSE(frame);
  EXPECT_NE(frame.error().message.find("at most"), std::string::npos);
}

}  // namespace
}  // namespace kvik::codec
