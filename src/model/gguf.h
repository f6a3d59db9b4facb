// SPDX-License-Identifier: Apache-2.0
// model/gguf.h: one GGUF file (version 2 or 3), parsed and checked.
//
// A GGUF file is: magic "GGUF", version, tensor count, metadata count; the metadata (typed
// key/value pairs); the tensor directory (name, dimensions, type, offset); padding; tensor data.
// All little-endian. Parse() walks everything once and refuses any file in which a count, a
// length, an offset or a shape does not fit the bytes that are there, so the accessors below need
// no further checks. Views point into the file's bytes. Immutable after parsing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace kvik::model {

// Tensor types that kvik computes with; the values are ggml's.
// NOLINTBEGIN(readability-identifier-naming): the names of the formats have underscores
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBf16 = 30,
};
// NOLINTEND(readability-identifier-naming)

struct GgmlTypeInfo {
  GgmlType type;
  const char* name;       // "Q4_K"
  uint32_t block_values;  // values that share a block; a row is a whole number of blocks
  uint32_t block_bytes;
};

// Null when `id` is a type kvik does not compute with.
const GgmlTypeInfo* FindGgmlType(uint32_t id);
const GgmlTypeInfo& InfoOf(GgmlType type);

// Types of metadata values; the values are the file's.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::kF32;
  std::vector<uint64_t> dims;  // 1 to 4, the innermost (contiguous) first, as in the file
  std::span<const std::byte> data;

  [[nodiscard]] uint64_t cols() const { return dims[0]; }
  [[nodiscard]] uint64_t rows() const;  // product of all but the innermost
};

class GgufFile {
 public:
  // Parses `bytes`, which must stay valid as long as the object. `path` is for messages only.
  static Result<GgufFile> Parse(std::string path, std::span<const std::byte> bytes);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  [[nodiscard]] std::vector<std::string_view> Keys() const;  // in file order
  [[nodiscard]] bool Has(std::string_view key) const { return index_.contains(key); }

  // Scalars: nullopt when the key is absent; kCorrupt when it holds another type (integers of
  // every width are one type here, so are both floats) or a number outside [min, max].
  [[nodiscard]] Result<std::optional<int64_t>> Int(std::string_view key, int64_t min,
                                                   int64_t max) const;
  [[nodiscard]] Result<std::optional<double>> Float(std::string_view key) const;
  [[nodiscard]] Result<std::optional<bool>> Bool(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::string_view>> String(std::string_view key) const;

  // Arrays: empty when the key is absent; kCorrupt when it is not an array of that type.
  [[nodiscard]] Result<std::vector<std::string_view>> Strings(std::string_view key) const;
  [[nodiscard]] Result<std::vector<int64_t>> Ints(std::string_view key) const;
  [[nodiscard]] Result<std::vector<float>> Floats(std::string_view key) const;

  // The bytes of a whole metadata pair (key, type, value) as they are in the file.
  // REQUIRES: Has(key).
  [[nodiscard]] std::span<const std::byte> RawPair(std::string_view key) const;

  // A value for people: numbers and strings spelled out (cut at 80 characters), arrays as
  // "[type x count]". REQUIRES: Has(key).
  [[nodiscard]] std::string Describe(std::string_view key) const;

  // "<path>: <what>" as an error with the given code.
  [[nodiscard]] Error Complain(ErrorCode code, const std::string& what) const;

 private:
  struct Value {
    std::string_view key;
    GgufValueType type = GgufValueType::kUint8;
    GgufValueType element = GgufValueType::kUint8;  // of an array
    uint64_t count = 0;                             // of an array
    std::span<const std::byte> bytes;  // payload; of a string or array without its header
    std::span<const std::byte> pair;   // the whole of it, key included
  };
  class Parser;

  GgufFile() = default;
  [[nodiscard]] const Value* Find(std::string_view key) const;
  [[nodiscard]] Error WrongType(const Value& value, const char* wanted) const;

  std::string path_;
  uint32_t version_ = 0;
  std::vector<Value> values_;
  std::unordered_map<std::string_view, size_t> index_;  // key -> values_
  std::vector<GgufTensor> tensors_;
};

}  // namespace kvik::model
