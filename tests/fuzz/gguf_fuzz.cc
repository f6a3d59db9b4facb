// SPDX-License-Identifier: Apache-2.0
// Any bytes are a GGUF file with views inside the bytes, or an error; never a crash and never
// memory out of proportion to the file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "model/gguf.h"
#include "model/model_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const auto bytes = std::as_bytes(std::span(data, size_bytes));
  const auto file = kvik::model::GgufFile::Parse("fuzz.gguf", bytes);
  if (!file) {
    KVIK_CHECK(file.error().message.find('\n') == std::string::npos);
    return 0;
  }
  unsigned sum = 0;
  for (const kvik::model::GgufTensor& tensor : file->tensors()) {
    if (!tensor.data.empty()) {
      sum += static_cast<unsigned>(tensor.data.front()) + static_cast<unsigned>(tensor.data.back());
    }
  }
  for (const std::string_view key : file->Keys()) {
    sum += static_cast<unsigned>(file->Describe(key).size());
    // Each accessor either has the right type or says so.
    sum += file->Int(key, INT64_MIN, INT64_MAX).has_value() ? 1 : 0;
    sum += file->Float(key).has_value() ? 1 : 0;
    sum += file->Bool(key).has_value() ? 1 : 0;
    sum += file->String(key).has_value() ? 1 : 0;
    sum += file->Strings(key).has_value() ? 1 : 0;
    sum += file->Ints(key).has_value() ? 1 : 0;
    sum += file->Floats(key).has_value() ? 1 : 0;
  }
  const auto source = kvik::model::ParseGguf("fuzz.gguf", bytes);
  if (!source) {
    KVIK_CHECK(source.error().message.find('\n') == std::string::npos);
  }
  asm volatile("" : : "r"(sum));  // keeps the reads above
  return 0;
}
