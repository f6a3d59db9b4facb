// SPDX-License-Identifier: Apache-2.0
// Any bytes are a safetensors file with views inside the bytes, or an error; never a crash and
// never memory out of proportion to the file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const auto bytes = std::as_bytes(std::span(data, size_bytes));
  const auto tensors = kvik::model::ParseSafetensors("fuzz.safetensors", bytes);
  if (!tensors) {
    KVIK_CHECK(tensors.error().message.find('\n') == std::string::npos);
    return 0;
  }
  size_t covered = 0;
  for (const kvik::model::SafetensorsTensor& tensor : *tensors) {
    KVIK_CHECK(tensor.data.data() >= bytes.data());
    KVIK_CHECK(tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
    covered += tensor.data.size();
  }
  KVIK_CHECK(covered <= bytes.size());
  return 0;
}
