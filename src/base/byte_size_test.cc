// SPDX-License-Identifier: Apache-2.0
#include "base/byte_size.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace kvik {
namespace {

TEST(ByteSize, ParsesWhatPeopleWrite) {
  const struct {
    const char* text;
    uint64_t size_bytes;
  } cases[] = {
      {"0", 0},
      {"1048576", 1048576},
      {"1b", 1},
      {"512MiB", 512ULL << 20},
      {"512 mib", 512ULL << 20},
      {"2G", 2ULL << 30},
      {"2GB", 2'000'000'000},
      {"1.5GiB", 3ULL << 29},
      {"0.1K", 102},
      {"1.999999999999999999999999999999B", 1},
      {"16777215TiB", 16777215ULL << 40},
      {"18446744073709551615", std::numeric_limits<uint64_t>::max()},
  };
  for (const auto& c : cases) {
    const Result<uint64_t> parsed = ParseByteSize(c.text);
    ASSERT_TRUE(parsed) << c.text;
    EXPECT_EQ(*parsed, c.size_bytes) << c.text;
  }
}

TEST(ByteSize, RefusesTheRest) {
  for (const char* text :
       {"", " ", "-1", "+1", "MiB", ".5G", "1.", "1.G", "1e9", "1 PiB", "1MiBs", "0x10", "1 2",
        "18446744073709551616", "16777216TiB", "99999999999999999999999999999999999999999999"}) {
    const Result<uint64_t> parsed = ParseByteSize(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidInput);
  }
}

TEST(ByteSize, FormatsInTheLargestUnit) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1024), "1 KiB");
  EXPECT_EQ(FormatByteSize((1ULL << 20) - 1), "1 MiB");
  EXPECT_EQ(FormatByteSize(3ULL << 29), "1.5 GiB");
  EXPECT_EQ(FormatByteSize(512ULL << 20), "512 MiB");
  EXPECT_EQ(FormatByteSize(5000ULL << 40), "5000 TiB");
}

}  // namespace
}  // namespace kvik
