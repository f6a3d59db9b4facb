// SPDX-License-Identifier: Apache-2.0
#include "events/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace kvik::events {
namespace {

using kv::BlockEvent;
using kv::BlockEventKind;
using kv::BlockHash;
using kv::BlockMedium;
using testing::ElementsAre;
using testing::IsEmpty;

// Bytes first, first + 1, ...
BlockHash Hash(uint8_t first, size_t size) {
  BlockHash hash;
  for (size_t i = 0; i < size; ++i) {
    hash.bytes[i] = static_cast<uint8_t>(first + i);
  }
  return hash;
}

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char byte : bytes) {
    const char* digits = "0123456789abcdef";
    hex += digits[static_cast<uint8_t>(byte) >> 4];
    hex += digits[static_cast<uint8_t>(byte) & 15];
  }
  return hex;
}

Result<ReceivedBatch> Decode(const std::string& bytes) {
  return DecodeBatch(std::as_bytes(std::span(bytes)));
}

std::vector<BlockEvent> Everything() {
  BlockEvent stored;
  stored.blocks = {Hash(0x10, 16), Hash(0x20, 16)};
  stored.parent = Hash(0x30, 16);
  stored.tokens = {1, 200, 70000, 3};
  BlockEvent removed;
  removed.kind = BlockEventKind::kRemoved;
  removed.medium = BlockMedium::kMemory;
  removed.blocks = {Hash(0x10, 16)};
  BlockEvent cleared;
  cleared.kind = BlockEventKind::kCleared;
  return {stored, removed, cleared};
}

// Made by Python's msgspec from structs with vLLM's fields and options.
TEST(EventWire, IsWhatVllmWritesWithNumbersForHashes) {
  EXPECT_EQ(Hex(EncodeBatch(1.5, Everything(), {.block_size_tokens = 2})),
            "83a27473cb3ff8000000000000a66576656e7473938aa474797065ab426c6f636b53746f726564ac626c"
            "6f636b5f68617368657392cf18191a1b1c1d1e1fcf28292a2b2c2d2e2fb1706172656e745f626c6f636b"
            "5f68617368cf38393a3b3c3d3e3fa9746f6b656e5f6964739401ccc8ce0001117003aa626c6f636b5f73"
            "697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f"
            "69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a47479"
            "7065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf18191a1b1c1d1e1fa66d6564"
            "69756da3435055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c6561726564b2"
            "646174615f706172616c6c656c5f72616e6b00");
}

TEST(EventWire, IsWhatVllmWritesWithBytesForHashes) {
  BlockEvent stored;
  stored.medium = BlockMedium::kDisk;
  stored.blocks = {Hash(0x10, 16), Hash(0x40, 32)};
  stored.extra = {"ad", "salt"};
  EXPECT_EQ(
      Hex(EncodeBatch(1.7e9, {&stored, 1}, {.block_size_tokens = 16, .int_block_hashes = false})),
      "83a27473cb41d954fc40000000a66576656e7473918ba474797065ab426c6f636b53746f726564ac626c"
      "6f636b5f68617368657392c410101112131415161718191a1b1c1d1e1fc420404142434445464748494a"
      "4b4c4d4e4f505152535455565758595a5b5c5d5e5fb1706172656e745f626c6f636b5f68617368c0a974"
      "6f6b656e5f69647390aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da753544f52"
      "414745a96c6f72615f6e616d65a26164aa65787472615f6b6579739292a26164a473616c7491a26164a9"
      "67726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e7469"
      "6f6eb2646174615f706172616c6c656c5f72616e6b00");
}

TEST(EventWire, BothFormsOfAHashAreTheSameNumberToAReader) {
  for (const bool numbers : {true, false}) {
    const Result<ReceivedBatch> batch =
        Decode(EncodeBatch(1.5, Everything(), {.int_block_hashes = numbers}));
    ASSERT_TRUE(batch) << batch.error().message;
    EXPECT_EQ(batch->unix_seconds, 1.5);
    ASSERT_EQ(batch->events.size(), 3U);
    EXPECT_EQ(batch->events[0].kind, BlockEventKind::kStored);
    EXPECT_EQ(batch->events[0].medium, BlockMedium::kCache);
    EXPECT_THAT(batch->events[0].blocks,
                ElementsAre(HashNumber(Hash(0x10, 16)), HashNumber(Hash(0x20, 16))));
    EXPECT_EQ(batch->events[1].kind, BlockEventKind::kRemoved);
    EXPECT_EQ(batch->events[1].medium, BlockMedium::kMemory);
    EXPECT_EQ(batch->events[2].kind, BlockEventKind::kCleared);
    EXPECT_THAT(batch->events[2].blocks, IsEmpty());
  }
  EXPECT_EQ(HashNumber(Hash(0x10, 16)), 0x18191a1b1c1d1e1fU);
  EXPECT_EQ(HashNumber(Hash(0x40, 32)), 0x58595a5b5c5d5e5fU);
}

TEST(EventWire, WhatIsNotKnownIsPassedOver) {
  // {"more": [{}, [1, {"a": nil}]], "events": [{"type": "New", "block_hashes": [1]},
  //  {"block_hashes": [2], "more": [[7]], "type": "BlockRemoved", "medium": "TAPE"}]}
  const std::string bytes = std::string("\x82\xa4more\x92\x80\x92\x01\x81\xa1") + "a\xc0\xa6" +
                            "events\x92" + "\x82\xa4type\xa3New\xac" + "block_hashes\x91\x01" +
                            "\x84\xac" + "block_hashes\x91\x02" +
                            "\xa4more\x91\x91\x07\xa4type\xac" + "BlockRemoved\xa6medium\xa4TAPE";
  const Result<ReceivedBatch> batch = Decode(bytes);
  ASSERT_TRUE(batch) << batch.error().message;
  ASSERT_EQ(batch->events.size(), 1U);
  EXPECT_EQ(batch->events[0].kind, BlockEventKind::kRemoved);
  EXPECT_EQ(batch->events[0].medium, BlockMedium::kCache);
  EXPECT_THAT(batch->events[0].blocks, ElementsAre(2));
}

TEST(EventWire, WhatIsNoBatchIsRefused) {
  const std::string events = "\x81\xa6" + std::string("events");
  for (const std::string& bytes :
       {std::string(), std::string("\x80"), std::string("\x91\x01"), events + "\x01",
        events + "\xc0", events + "\x80", events + "\x91\x01", events + "\x91\x90",
        events + "\x91\x81\xac" + "block_hashes\x91\xa1x",
        events + "\x91\x81\xac" + "block_hashes\x91\xc4\x02xx",
        events + "\x90\x90",  // more than a batch
        events + "\xdd\xff\xff\xff\xff", std::string("\x81\x90\x01"), std::string(100'000, '\x91'),
        "\x81\xa1x" + std::string(100'000, '\x91')}) {
    const Result<ReceivedBatch> batch = Decode(bytes);
    ASSERT_FALSE(batch) << Hex(bytes.substr(0, 40));
    EXPECT_EQ(batch.error().code, ErrorCode::kCorrupt);
  }
}

TEST(EventWireProperty, EveryCutAndFlipIsRefusedOrRead) {
  const std::string whole = EncodeBatch(1.5, Everything(), {});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Decode(whole.substr(0, size))) << size;
  }
  Rng rng(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (uint64_t flips = 1 + rng.Below(3); flips > 0; --flips) {
      bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Below(256));
    }
    const Result<ReceivedBatch> batch = Decode(bytes);
    EXPECT_TRUE(!batch || batch->events.size() <= 3);
  }
}

}  // namespace
}  // namespace kvik::events
