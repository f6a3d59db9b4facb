// SPDX-License-Identifier: Apache-2.0
// transfer/testing/hello_payload.h: the payload of the first frame of a session, as a peer sends
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "transfer/hello.h"
#include "transfer/payload.h"

namespace kvik::transfer::testing {

inline std::vector<std::byte> HelloPayload(uint32_t max_frame_bytes = 1 << 16,
                                           uint32_t window_bytes = 1 << 20,
                                           uint32_t max_streams = 8, const Hello& hello = {}) {
  std::vector<std::byte> payload;
  PayloadWriter writer(payload);
  writer.Put(max_frame_bytes);
  writer.Put(window_bytes);
  writer.Put(max_streams);
  KVIK_CHECK(EncodeHello(hello, payload).has_value());
  return payload;
}

}  // namespace kvik::transfer::testing
