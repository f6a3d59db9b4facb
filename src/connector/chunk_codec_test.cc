// SPDX-License-Identifier: Apache-2.0
#include "connector/chunk_codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "codec/testing/made_kv.h"
#include "connector/chunk.h"
#include "connector/chunk_load.h"
#include "connector/measure_speeds.h"
#include "connector/profile_set.h"
#include "connector/testing/toy_engine.h"

namespace kvik::connector {
namespace {

using testing::ToyBytes;
using testing::ToyGeometry;
using testing::ToyKeys;

constexpr int32_t kBlocks = 5;
constexpr int32_t kFirst = 10;

class ChunkCodec : public ::testing::Test {
 protected:
  ChunkCodec() {
    auto profiles = ProfileSet::Create(
        codec::testing::MadeModel(geometry_.num_layers, geometry_.num_kv_heads, geometry_.head_dim),
        nullptr, 256, Isa::kScalar);
    KVIK_CHECK(profiles.has_value(), "%s", profiles.error().message.c_str());
    profiles_ = *profiles;
    arena_.assign(2 * kBlocks * geometry_.bytes_per_block(), std::byte{0xEE});
    const auto keys = ToyKeys({1, 2, 3, 4, 5});
    for (int32_t i = 0; i < kBlocks; ++i) {
      // Neither in order nor next to each other.
      from_.push_back((2 * i + 4) % (2 * kBlocks));
      to_.push_back((2 * i + 7) % (2 * kBlocks));
      const auto bytes = ToyBytes(keys[static_cast<size_t>(i)], geometry_);
      std::memcpy(Block(from_.back()).data(), bytes.data(), bytes.size());
    }
  }

  std::span<std::byte> Block(BlockId block) {
    return std::span(arena_).subspan(static_cast<size_t>(block) * geometry_.bytes_per_block(),
                                     geometry_.bytes_per_block());
  }
  [[nodiscard]] ChunkPages Source() { return {&geometry_, arena_, kFirst, from_}; }
  [[nodiscard]] ChunkPages Target() { return {&geometry_, arena_, kFirst, to_}; }
  [[nodiscard]] bool Equal(int32_t i) {
    return std::memcmp(Block(from_[static_cast<size_t>(i)]).data(),
                       Block(to_[static_cast<size_t>(i)]).data(), geometry_.bytes_per_block()) == 0;
  }

  const kv::KvGeometry geometry_ = ToyGeometry();
  std::shared_ptr<const ProfileSet> profiles_;
  std::vector<std::byte> arena_;
  std::vector<BlockId> from_;
  std::vector<BlockId> to_;
  CodecScratch scratch_;
};

TEST_F(ChunkCodec, LosslessProfilesGiveTheSamePages) {
  for (const CodecProfile* profile : {&profiles_->raw(), &profiles_->lossless()}) {
    for (const BlockId block : to_) {
      std::memset(Block(block).data(), 0xEE, Block(block).size());
    }
    LayerTally tally(geometry_.num_layers);
    for (int32_t layer = geometry_.num_layers; layer-- > 0;) {  // any order
      std::vector<std::byte> frame;
      ASSERT_TRUE(EncodeLayer(*profile->codec, Source(), layer, scratch_, frame).has_value());
      auto decoded = DecodeLayer(*profile->codec, frame, Target(), scratch_);
      ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
      EXPECT_FALSE(tally.complete());
      ASSERT_TRUE(tally.Add(*decoded).has_value());
      EXPECT_FALSE(tally.Add(*decoded).has_value()) << "a layer counted twice";
    }
    EXPECT_TRUE(tally.complete());
    EXPECT_EQ(tally.fidelity(), codec::Fidelity::kExact);
    for (int32_t i = 0; i < kBlocks; ++i) {
      EXPECT_TRUE(Equal(i)) << i;
    }
  }
}

TEST_F(ChunkCodec, OnlyWantedBlocksAreWritten) {
  const BlockId unwanted = to_[2];
  to_[2] = kNoBlock;
  for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
    std::vector<std::byte> frame;
    ASSERT_TRUE(
        EncodeLayer(*profiles_->lossless().codec, Source(), layer, scratch_, frame).has_value());
    ASSERT_TRUE(DecodeLayer(*profiles_->lossless().codec, frame, Target(), scratch_).has_value());
  }
  for (const std::byte byte : Block(unwanted)) {
    ASSERT_EQ(byte, std::byte{0xEE});
  }
  for (const int32_t i : {0, 1, 3, 4}) {
    EXPECT_TRUE(Equal(i));
  }
}

TEST_F(ChunkCodec, AFrameThatWasNotAskedForIsRefused) {
  const codec::FrameCodec& codec = *profiles_->lossless().codec;
  std::vector<std::byte> frame;
  ASSERT_TRUE(EncodeLayer(codec, Source(), 1, scratch_, frame).has_value());
  ChunkPages elsewhere = Target();
  elsewhere.first_block = kFirst + 1;
  EXPECT_FALSE(DecodeLayer(codec, frame, elsewhere, scratch_).has_value()) << "another position";
  ChunkPages shorter = Target();
  shorter.blocks = shorter.blocks.first(kBlocks - 1);
  EXPECT_FALSE(DecodeLayer(codec, frame, shorter, scratch_).has_value()) << "another length";
  EXPECT_FALSE(DecodeLayer(*profiles_->raw().codec, frame, Target(), scratch_).has_value())
      << "another profile";
  frame.push_back(std::byte{0});
  EXPECT_FALSE(DecodeLayer(codec, frame, Target(), scratch_).has_value()) << "more than a frame";
  frame.pop_back();
  for (size_t at = 0; at < frame.size(); at += 7) {
    frame[at] ^= std::byte{0x10};
    EXPECT_FALSE(DecodeLayer(codec, frame, Target(), scratch_).has_value()) << at;
    frame[at] ^= std::byte{0x10};
  }
  EXPECT_TRUE(DecodeLayer(codec, frame, Target(), scratch_).has_value());
}

TEST_F(ChunkCodec, ASoleLossyLayerMakesTheChunkLossy) {
  const CodecProfile* const profile = profiles_->Find("quarot-4");
  ASSERT_NE(profile, nullptr);
  EXPECT_TRUE(profile->lossy);
  EXPECT_EQ(profile->q, 0.0F) << "it was never measured";
  std::vector<std::byte> frame;
  ASSERT_TRUE(EncodeLayer(*profile->codec, Source(), 0, scratch_, frame).has_value());
  const auto decoded = DecodeLayer(*profile->codec, frame, Target(), scratch_);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->fidelity, codec::Fidelity::kLossy);
}

// Every profile, in pieces of every size, with threads of its own or none.
TEST_F(ChunkCodec, AnObjectThatComesInPiecesIsDecodedWhole) {
  for (const CodecProfile& profile : profiles_->all()) {
    ObjectHead head;
    for (const kv::ContentKey& key : ToyKeys({1, 2, 3, 4, 5})) {
      head.blocks.push_back(key.hash);
      head.key.last_block.content = key;
    }
    head.key.profile_hash = profile.hash;
    auto stream = EncodeChunk(*profile.codec, head, Source(), scratch_);
    ASSERT_TRUE(stream.has_value()) << profile.name << ": " << stream.error().message;
    EXPECT_LE(stream->size(), MaxObjectBytes(Source())) << profile.name;
    for (const size_t piece : {size_t{1}, size_t{100}, size_t{1000}, stream->size()}) {
      ManualClock clock;
      ScratchPool scratch;
      IoPool io(0, clock);
      ChunkLoadSpec spec;
      spec.key = head.key;
      spec.hashes = head.blocks;
      spec.profile = &profile;
      spec.geometry = geometry_;
      spec.arena = arena_;
      spec.first_block = kFirst;
      spec.blocks = to_;
      std::optional<ChunkOutcome> outcome;
      auto load = ChunkLoad::Create(spec, io, scratch, clock,
                                    [&](ChunkOutcome o) { outcome = std::move(o); });
      kv::ObjectInfo info;
      info.key = spec.key;
      info.num_blocks = kBlocks;
      load->OnObject(0, info);
      for (size_t at = 0; at < stream->size(); at += piece) {
        const size_t size = std::min(piece, stream->size() - at);
        load->OnBytes(
            0, transfer::SharedBytes::Own({stream->begin() + static_cast<ptrdiff_t>(at),
                                           stream->begin() + static_cast<ptrdiff_t>(at + size)}));
        if (at % 3 == 0) {
          io.RunDue();
        }
      }
      load->OnObjectEnd(0, {});
      load->OnDone({}, {});
      EXPECT_FALSE(outcome.has_value() && piece == stream->size());
      while (io.RunDue()) {
      }
      ASSERT_TRUE(outcome.has_value()) << profile.name;
      EXPECT_TRUE(outcome->result.has_value()) << outcome->result.error().message;
      EXPECT_EQ(outcome->fidelity != codec::Fidelity::kExact, profile.lossy) << profile.name;
      EXPECT_EQ(outcome->wire_bytes, stream->size());
      if (!profile.lossy) {
        for (int32_t i = 0; i < kBlocks; ++i) {
          EXPECT_TRUE(Equal(i));
        }
      }
    }
  }
}

TEST(ChunkLayoutTest, ChunksAreAlignedAndTheLastIsShorter) {
  const ChunkLayout layout = ChunkLayout::Of(64, 16);
  EXPECT_EQ(layout.chunk_blocks, 4);
  EXPECT_EQ(layout.ChunkOf(5, 10), (kv::BlockRange{4, 4}));
  EXPECT_EQ(layout.ChunkOf(9, 10), (kv::BlockRange{8, 2}));
  EXPECT_EQ(ChunkLayout::Of(8, 16).chunk_blocks, 1);
}

TEST_F(ChunkCodec, SpeedsAreMeasuredOfEveryProfile) {
  SystemClock clock;
  size_t told = 0;
  const control::MachineSpeeds speeds = MeasureSpeeds(*profiles_, {.budget_us_per_profile = 100},
                                                      clock, [&](size_t done, size_t total) {
                                                        ++told;
                                                        EXPECT_LE(done, total);
                                                      });
  EXPECT_EQ(told, profiles_->all().size());
  EXPECT_EQ(speeds.profiles.size(), profiles_->all().size());
  EXPECT_NE(speeds.Find(control::kRawHash), nullptr);
  const control::ProfileSpeeds* const lossless = speeds.Find(profiles_->lossless().hash);
  ASSERT_NE(lossless, nullptr);
  for (size_t i = 0; i < control::kNumLengths; ++i) {
    EXPECT_GT(lossless->encode[i].raw_bytes_per_s, 0);
    EXPECT_GT(lossless->decode[i].raw_bytes_per_s, 0);
  }
}

TEST_F(ChunkCodec, WhatWasMeasuredIsNotMissedWhenItIsReadBack) {
  SystemClock clock;
  const control::MachineSpeeds measured =
      MeasureSpeeds(*profiles_, {.budget_us_per_profile = 100}, clock);
  const auto kept = control::ParseSpeeds(control::PrintSpeeds(measured));
  ASSERT_TRUE(kept.has_value());
  EXPECT_TRUE(HasSpeedsOf(*profiles_, *kept));
  control::MachineSpeeds fewer = *kept;
  fewer.profiles.pop_back();
  EXPECT_FALSE(HasSpeedsOf(*profiles_, fewer));
}

TEST_F(ChunkCodec, SpeedsAreMeasuredOnTheSampleAndLeaveItAlone) {
  SystemClock clock;
  const std::vector<std::byte> before = arena_;
  const KvSample sample{geometry_, arena_, from_};
  const control::MachineSpeeds speeds =
      MeasureSpeeds(*profiles_,
                    {.block_size_tokens = geometry_.block_size_tokens,
                     .budget_us_per_profile = 100,
                     .sample = &sample},
                    clock);
  EXPECT_EQ(speeds.profiles.size(), profiles_->all().size());
  EXPECT_TRUE(before == arena_);
}

}  // namespace
}  // namespace kvik::connector
