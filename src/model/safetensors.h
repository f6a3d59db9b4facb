// SPDX-License-Identifier: Apache-2.0
// model/safetensors.h: one safetensors file, parsed and checked, and a writer.
//
// A safetensors file is: 8 bytes of header length, a JSON header {name: {dtype, shape,
// data_offsets}}, tensor data without holes. As with GGUF, a file is refused unless every number
// in its header fits its bytes; views point into the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvik::model {

// The element types kvik computes with. Others may be present (buffers of integers) and are
// listed with no dtype.
enum class SafetensorsDtype { kF32, kF16, kBf16 };

constexpr size_t SafetensorsDtypeBytes(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF32 ? 4 : 2;
}

struct SafetensorsTensor {
  std::string name;
  std::string dtype_name;                 // as in the file: "BF16"
  std::optional<SafetensorsDtype> dtype;  // none = not one of the above
  std::vector<uint64_t> shape;            // outermost first; empty = a scalar
  std::span<const std::byte> data;        // not necessarily aligned
};

// Tensors in the order of their data. `path` is for messages; `bytes` must outlive the result.
// kCorrupt or kInvalidInput, in one line with file and field.
Result<std::vector<SafetensorsTensor>> ParseSafetensors(const std::string& path,
                                                        std::span<const std::byte> bytes);

struct SafetensorsOutput {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<uint64_t> shape;      // outermost first
  std::span<const std::byte> data;  // as long as shape and dtype say
  // Instead of `data`: makes the bytes when they are written, one tensor at a time.
  std::function<std::vector<std::byte>()> make;
};

// Writes the tensors in the given order. kUnavailable or kExhausted when the file cannot be
// written completely.
Result<void> WriteSafetensors(const std::string& path, std::span<const SafetensorsOutput> tensors);

}  // namespace kvik::model
