// SPDX-License-Identifier: Apache-2.0
// Any text is a pipeline whose canonical string means the same, or an error of one line.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "codec/pipeline.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), size_bytes);
  const auto pipeline = kvik::codec::PipelineSpec::Parse(text);
  if (!pipeline) {
    KVIK_CHECK(pipeline.error().code == kvik::ErrorCode::kInvalidInput);
    KVIK_CHECK(!pipeline.error().message.empty());
    return 0;
  }
  const auto again = kvik::codec::PipelineSpec::Parse(pipeline->ToString());
  KVIK_CHECK(again.has_value() && *again == *pipeline);
  return 0;
}
