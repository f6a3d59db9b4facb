// SPDX-License-Identifier: Apache-2.0
// Any bytes in front of an object are a head, a part of one or an error; a head that is read is
// written to the same bytes again. The first byte says whether the CRC is made right, so that what
// is tried is what the head says.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "connector/object_head.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  if (size_bytes == 0) {
    return 0;
  }
  const auto* const begin = reinterpret_cast<const std::byte*>(data + 1);
  std::vector<std::byte> bytes(begin, begin + size_bytes - 1);
  if ((data[0] & 1) != 0 && bytes.size() >= 12) {
    uint32_t num_blocks = 0;
    std::memcpy(&num_blocks, bytes.data() + 8, sizeof num_blocks);
    const size_t size =
        std::min(bytes.size(),
                 kvik::connector::HeadBytes(num_blocks % (kvik::connector::kMaxHeadBlocks + 1)));
    const uint32_t crc = kvik::Crc32c(std::span<const std::byte>(bytes).subspan(8, size - 8));
    std::memcpy(bytes.data() + 4, &crc, sizeof crc);
  }
  const auto read = kvik::connector::ReadObjectHead(bytes);
  if (!read.has_value() || !read->has_value()) {
    return 0;
  }
  const kvik::connector::ObjectHead& head = (*read)->head;
  KVIK_CHECK((*read)->size_bytes <= bytes.size());
  KVIK_CHECK(head.CheckIs(head.key, head.blocks).has_value());
  std::vector<std::byte> again;
  AppendHead(head, again);
  KVIK_CHECK(again.size() == (*read)->size_bytes &&
             std::equal(again.begin(), again.end(), bytes.begin()));
  return 0;
}
