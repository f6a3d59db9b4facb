// SPDX-License-Identifier: Apache-2.0
// Batches of KV events as a router gets them: any bytes are refused or read.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "events/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto batch = kvik::events::DecodeBatch(std::as_bytes(std::span(data, size)));
  if (batch) {
    size_t blocks = 0;
    for (const kvik::events::ReceivedEvent& event : batch->events) {
      blocks += event.blocks.size();
    }
    KVIK_CHECK(blocks + batch->events.size() <= size);
  }
  return 0;
}
