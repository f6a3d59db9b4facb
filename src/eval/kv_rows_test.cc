// SPDX-License-Identifier: Apache-2.0
#include "eval/kv_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "attention/kv_pages.h"
#include "base/aligned_buffer.h"
#include "base/rng.h"

namespace kvik::eval {
namespace {

// Rows of a range are what attention reads there, and writing them moves these bits and no others.
TEST(KvRows, AgreeWithPagesAndTouchNothingElse) {
  for (const int32_t block_size : {16, 32, 64}) {
    for (const int32_t head_dim : {64, 80, 96}) {
      const kv::KvGeometry geometry{.num_layers = 3,
                                    .num_kv_heads = 2,
                                    .head_dim = head_dim,
                                    .block_size_tokens = block_size,
                                    .dtype = kv::KvDtype::kBf16};
      auto arena = AlignedBuffer::Create(5 * geometry.bytes_per_block()).value();
      Rng rng(static_cast<uint64_t>(block_size * head_dim));
      for (Bf16& value : arena.As<Bf16>()) {
        value.bits = static_cast<uint16_t>(rng.Next() & 0x7F7F);  // finite
      }
      const std::vector<BlockId> table = {4, 0, 2};
      const std::span<std::byte> bytes(arena.data(), arena.size_bytes());
      for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
        const RowRange range{table, 1, part, 5, 2 * block_size + 3};
        std::vector<Bf16> rows(NumRowValues(geometry, range.num_tokens));
        ReadRows(geometry, bytes, range, rows);
        for (int32_t head = 0; head < 2; ++head) {
          for (int32_t t = 0; t < range.num_tokens; ++t) {
            const int32_t pos = range.first_pos + t;
            std::vector<float> expected(static_cast<size_t>(head_dim));
            attention::ReadPage(geometry, bytes,
                                {.block = table[static_cast<size_t>(pos / block_size)],
                                 .layer = 1,
                                 .part = part,
                                 .kv_head = head,
                                 .first_slot = pos % block_size},
                                expected);
            const size_t first =
                static_cast<size_t>(head * range.num_tokens + t) * static_cast<size_t>(head_dim);
            for (size_t d = 0; d < expected.size(); ++d) {
              ASSERT_EQ(ToFloat(rows[first + d]), expected[d]);
            }
          }
        }
        const std::vector<std::byte> before(bytes.begin(), bytes.end());
        std::vector<Bf16> other(rows.size());
        WriteRows(geometry, bytes, range, other);
        std::vector<Bf16> read(rows.size(), Bf16{1});
        ReadRows(geometry, bytes, range, read);
        EXPECT_EQ(read, other);
        WriteRows(geometry, bytes, range, rows);
        EXPECT_TRUE(std::equal(before.begin(), before.end(), bytes.begin()));
      }
    }
  }
}

}  // namespace
}  // namespace kvik::eval
