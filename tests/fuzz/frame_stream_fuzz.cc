// SPDX-License-Identifier: Apache-2.0
// Any bytes, in pieces of any size, are a stream of frames or an error, the same whatever the
// pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "codec/frame_stream.h"

namespace {

// Sizes of the frames, then how it ended: 0 cut, 1 complete, 2 an error.
std::vector<size_t> Read(std::span<const std::byte> bytes, size_t piece) {
  kvik::codec::StreamReader reader(size_t{1} << 16);
  std::vector<size_t> sizes;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Feed(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    for (;;) {
      const auto frame = reader.Next();
      if (!frame) {
        sizes.push_back(2);
        return sizes;
      }
      if (!*frame) {
        break;
      }
      sizes.push_back((*frame)->size());
    }
  }
  sizes.push_back(reader.complete() ? 1 : 0);
  return sizes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  if (size_bytes == 0) {
    return 0;
  }
  const auto bytes = std::as_bytes(std::span(data + 1, size_bytes - 1));
  const std::vector<size_t> whole = Read(bytes, std::max<size_t>(bytes.size(), 1));
  KVIK_CHECK(Read(bytes, 1 + size_t{data[0]}) == whole);
  return 0;
}
