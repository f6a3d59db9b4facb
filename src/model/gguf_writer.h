// SPDX-License-Identifier: Apache-2.0
// model/gguf_writer.h: writes GGUF version 3 files. For tests and for re-writing a model in
// another tensor format; not a quantiser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/gguf.h"

namespace kvik::model {

// Collects metadata and tensors, then writes them in one go. Tensor data given as a span is
// borrowed until WriteTo or Serialize returns.
class GgufWriter {
 public:
  void AddUint32(std::string_view key, uint32_t value);
  void AddInt32(std::string_view key, int32_t value);
  void AddFloat32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddStrings(std::string_view key, std::span<const std::string> values);
  void AddFloats(std::string_view key, std::span<const float> values);
  void AddInts(std::string_view key, std::span<const int32_t> values);
  // One pair of another file, byte for byte. REQUIRES: file.Has(key).
  void CopyPair(const GgufFile& file, std::string_view key);

  // `dims` innermost first; `data` is as long as dims and type say.
  void AddTensor(std::string_view name, GgmlType type, std::vector<uint64_t> dims,
                 std::span<const std::byte> data);
  // The same with bytes that are made when they are written, one tensor at a time.
  using MakeBytes = std::function<std::vector<std::byte>()>;
  void AddTensor(std::string_view name, GgmlType type, std::vector<uint64_t> dims, MakeBytes make);

  [[nodiscard]] std::vector<std::byte> Serialize() const;
  // kUnavailable or kExhausted when the file cannot be written completely.
  [[nodiscard]] Result<void> WriteTo(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    GgmlType type;
    std::vector<uint64_t> dims;
    uint64_t size_bytes;
    std::span<const std::byte> data;
    MakeBytes make;  // instead of data
  };
  void AppendHeader(std::string_view key, GgufValueType type);
  [[nodiscard]] std::vector<std::byte> SerializeHeader() const;

  uint64_t num_pairs_ = 0;
  std::vector<std::byte> metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace kvik::model
