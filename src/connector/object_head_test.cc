// SPDX-License-Identifier: Apache-2.0
#include "connector/object_head.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/crc32c.h"
#include "connector/testing/toy_engine.h"

namespace kvik::connector {
namespace {

ObjectHead MadeHead(const std::vector<uint64_t>& choices, const kv::BlockQuality& source = {}) {
  const auto keys = testing::ToyKeys(choices);
  ObjectHead head;
  head.key = {{keys.back(), testing::kToyNumerics}, 5};
  head.parent.bytes.fill(0x11);
  head.source = source;
  for (const kv::ContentKey& key : keys) {
    head.blocks.push_back(key.hash);
  }
  return head;
}

TEST(ObjectHeadTest, IsReadAsItWasWritten) {
  for (const kv::BlockQuality source : {kv::BlockQuality{}, {kv::Fidelity::kLossy, 0.97F}}) {
    const ObjectHead head = MadeHead({1, 2, 3}, source);
    std::vector<std::byte> bytes(7, std::byte{0xAA});  // it is appended
    AppendHead(head, bytes);
    const size_t size = HeadBytes(3);
    ASSERT_EQ(bytes.size(), 7 + size);
    bytes.resize(bytes.size() + 100);  // frames follow
    const auto whole = std::span<const std::byte>(bytes).subspan(7);
    for (size_t n = 0; n < size; ++n) {
      const auto part = ReadObjectHead(whole.first(n));
      ASSERT_TRUE(part.has_value()) << n;
      EXPECT_FALSE(part->has_value()) << n;
    }
    const auto read = ReadObjectHead(whole);
    ASSERT_TRUE(read.has_value() && read->has_value());
    EXPECT_EQ((*read)->size_bytes, size);
    const ObjectHead& got = (*read)->head;
    EXPECT_TRUE(got.key == head.key);
    EXPECT_TRUE(got.parent == head.parent);
    EXPECT_EQ(got.blocks, head.blocks);
    EXPECT_EQ(got.source.fidelity, source.fidelity);
    EXPECT_EQ(got.source.q, source.q);
  }
}

TEST(ObjectHeadTest, DamageIsRefused) {
  std::vector<std::byte> bytes;
  AppendHead(MadeHead({1, 2, 3}), bytes);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int bit : {0, 7}) {
      bytes[at] ^= std::byte{static_cast<uint8_t>(1 << bit)};
      const auto read = ReadObjectHead(bytes);
      EXPECT_FALSE(read.has_value() && read->has_value()) << at;
      bytes[at] ^= std::byte{static_cast<uint8_t>(1 << bit)};
    }
  }
}

// Under a CRC that is right: what it says must make sense, too, and no size is believed.
TEST(ObjectHeadTest, ClaimsAreChecked) {
  const auto claim = [](size_t at, auto value) {
    std::vector<std::byte> bytes;
    AppendHead(MadeHead({1, 2, 3}), bytes);
    std::memcpy(bytes.data() + at, &value, sizeof value);
    const uint32_t crc = Crc32c(std::span<const std::byte>(bytes).subspan(8));
    std::memcpy(bytes.data() + 4, &crc, sizeof crc);
    return ReadObjectHead(bytes);
  };
  const auto other = claim(3, uint8_t{2});
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::kUnsupported) << "another version";
  EXPECT_FALSE(claim(8, uint32_t{0}).has_value()) << "no blocks";
  EXPECT_FALSE(claim(8, uint32_t{0xFFFFFFFF}).has_value()) << "more blocks than there can be";
  EXPECT_FALSE(claim(12, 1.5F).has_value());
  EXPECT_FALSE(claim(12, std::numeric_limits<float>::quiet_NaN()).has_value());
  EXPECT_FALSE(claim(16, uint8_t{2}).has_value());
  EXPECT_FALSE(claim(20, uint8_t{1}).has_value()) << "reserved";
  const auto fewer = claim(8, uint32_t{2});
  EXPECT_FALSE(fewer.has_value()) << "its CRC is of three hashes";
}

TEST(ObjectHeadTest, SaysWhetherItIsWhatWasAskedFor) {
  const ObjectHead head = MadeHead({1, 2, 3});
  EXPECT_TRUE(head.CheckIs(head.key, head.blocks).has_value());
  kv::ObjectKey key = head.key;
  key.last_block.content.hash.bytes[31] ^= 1;
  EXPECT_FALSE(head.CheckIs(key, head.blocks).has_value());
  key = head.key;
  key.last_block.content.domain.bytes[0] ^= 1;
  EXPECT_FALSE(head.CheckIs(key, head.blocks).has_value());
  key = head.key;
  key.last_block.numerics.value ^= 1;
  EXPECT_FALSE(head.CheckIs(key, head.blocks).has_value());
  key = head.key;
  key.profile_hash ^= 1;
  EXPECT_FALSE(head.CheckIs(key, head.blocks).has_value());
  EXPECT_FALSE(head.CheckIs(head.key, std::span(head.blocks).last(2)).has_value());
  auto blocks = head.blocks;
  blocks[0].bytes[0] ^= 1;
  EXPECT_FALSE(head.CheckIs(head.key, blocks).has_value());
}

}  // namespace
}  // namespace kvik::connector
