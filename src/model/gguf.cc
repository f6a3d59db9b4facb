// SPDX-License-Identifier: Apache-2.0
// The parser reads through a cursor that knows the end of the file. Two rules make it safe on any
// input: nothing is read without asking how many bytes are left, and no memory is reserved for a
// count before the count is known to fit the bytes left (each element has a least size).
#include "model/gguf.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "model/printable.h"

namespace kvik::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr GgmlTypeInfo kTypes[] = {
    {GgmlType::kF32, "F32", 1, 4},       {GgmlType::kF16, "F16", 1, 2},
    {GgmlType::kQ4_0, "Q4_0", 32, 18},   {GgmlType::kQ4_1, "Q4_1", 32, 20},
    {GgmlType::kQ5_0, "Q5_0", 32, 22},   {GgmlType::kQ5_1, "Q5_1", 32, 24},
    {GgmlType::kQ8_0, "Q8_0", 32, 34},   {GgmlType::kQ4_K, "Q4_K", 256, 144},
    {GgmlType::kQ5_K, "Q5_K", 256, 176}, {GgmlType::kQ6_K, "Q6_K", 256, 210},
    {GgmlType::kBf16, "BF16", 1, 2},
};

constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 256;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxValues = uint64_t{1}
                                << 40;  // of one tensor: far above any, far below overflow
constexpr uint64_t kMaxAlignment = 65536;
constexpr int kMaxArrayDepth = 4;
// Least bytes of a metadata pair (key length, type, one byte) and of a directory entry (name
// length, dimension count, one dimension, type, offset).
constexpr uint64_t kMinPairBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// 0 for types without a fixed size and for unknown ones.
uint64_t ScalarBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  return 0;
}

const char* ValueTypeName(GgufValueType type) {
  constexpr const char* kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                    "int32",  "float32", "bool",   "string", "array",
                                    "uint64", "int64",   "float64"};
  const auto i = static_cast<size_t>(type);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

bool IsInteger(GgufValueType type) {
  return ScalarBytes(type) != 0 && type != GgufValueType::kBool &&
         type != GgufValueType::kFloat32 && type != GgufValueType::kFloat64;
}

template <typename T>
T LoadAs(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// nullopt: a uint64 beyond int64. REQUIRES: IsInteger(type).
std::optional<int64_t> LoadInt(GgufValueType type, const std::byte* bytes) {
  switch (type) {
    case GgufValueType::kUint8:
      return LoadAs<uint8_t>(bytes);
    case GgufValueType::kInt8:
      return LoadAs<int8_t>(bytes);
    case GgufValueType::kUint16:
      return LoadAs<uint16_t>(bytes);
    case GgufValueType::kInt16:
      return LoadAs<int16_t>(bytes);
    case GgufValueType::kUint32:
      return LoadAs<uint32_t>(bytes);
    case GgufValueType::kInt32:
      return LoadAs<int32_t>(bytes);
    case GgufValueType::kInt64:
      return LoadAs<int64_t>(bytes);
    default: {
      const auto value = LoadAs<uint64_t>(bytes);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return std::nullopt;
      }
      return static_cast<int64_t>(value);
    }
  }
}

}  // namespace

const GgmlTypeInfo* FindGgmlType(uint32_t id) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == id) {
      return &info;
    }
  }
  return nullptr;
}

const GgmlTypeInfo& InfoOf(GgmlType type) {
  const GgmlTypeInfo* info = FindGgmlType(static_cast<uint32_t>(type));
  KVIK_CHECK(info != nullptr);
  return *info;
}

uint64_t GgufTensor::rows() const {
  uint64_t product = 1;
  for (size_t i = 1; i < dims.size(); ++i) {
    product *= dims[i];
  }
  return product;
}

// One pass over the file, front to back.
class GgufFile::Parser {
 public:
  Parser(GgufFile& file, std::span<const std::byte> bytes) : file_(file), bytes_(bytes) {}

  Result<void> Run() {
    KVIK_TRY(ReadHeader());
    KVIK_TRY(ReadMetadata());
    KVIK_TRY(ReadDirectory());
    return PlaceTensors();
  }

 private:
  [[nodiscard]] uint64_t left() const { return bytes_.size() - pos_; }

  [[nodiscard]] Error Truncated(const std::string& field) const {
    char text[160];
    std::snprintf(text, sizeof(text),
                  ": the file ends inside it (%zu bytes in all); it is truncated or damaged, "
                  "fetch it again",
                  bytes_.size());
    return file_.Complain(ErrorCode::kCorrupt, field + text);
  }

  template <typename T>
  Result<T> Read(const std::string& field) {
    if (left() < sizeof(T)) {
      return Truncated(field);
    }
    const T value = LoadAs<T>(bytes_.data() + pos_);
    pos_ += sizeof(T);
    return value;
  }

  Result<std::string_view> ReadText(const std::string& field, uint64_t max_bytes) {
    KVIK_ASSIGN(const auto length, Read<uint64_t>(field));
    if (length > left()) {
      return Truncated(field);
    }
    if (length > max_bytes) {
      return file_.Complain(ErrorCode::kCorrupt,
                            field + ": " + std::to_string(length) + " bytes long, more than " +
                                std::to_string(max_bytes) + "; the file is damaged");
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + pos_), length);
    pos_ += length;
    return text;
  }

  Result<void> ReadHeader() {
    if (left() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      return file_.Complain(ErrorCode::kInvalidInput,
                            "magic: not a GGUF file (its first bytes are not \"GGUF\")");
    }
    pos_ = 4;
    KVIK_ASSIGN(file_.version_, Read<uint32_t>("version"));
    if (file_.version_ != 2 && file_.version_ != 3) {
      const bool swapped = (file_.version_ & 0xFFFFU) == 0 && file_.version_ != 0;
      return file_.Complain(ErrorCode::kUnsupported,
                            swapped ? std::string("version: the file is big-endian; convert it to "
                                                  "little-endian")
                                    : "version: " + std::to_string(file_.version_) +
                                          "; kvik reads 2 and 3, convert the file");
    }
    KVIK_ASSIGN(num_tensors_, Read<uint64_t>("tensor count"));
    KVIK_ASSIGN(num_pairs_, Read<uint64_t>("metadata count"));
    KVIK_TRY(CheckCount("tensor count", num_tensors_, kMinTensorBytes));
    return CheckCount("metadata count", num_pairs_, kMinPairBytes);
  }

  Result<void> CheckCount(const std::string& field, uint64_t count, uint64_t min_bytes) const {
    if (count > left() / min_bytes) {
      return file_.Complain(ErrorCode::kCorrupt,
                            field + ": " + std::to_string(count) + " do not fit the " +
                                std::to_string(left()) +
                                " bytes that follow; the file is truncated or damaged");
    }
    return {};
  }

  Result<void> ReadMetadata() {
    for (uint64_t i = 0; i < num_pairs_; ++i) {
      const uint64_t begin = pos_;
      Value value;
      KVIK_ASSIGN(value.key, ReadText("metadata key " + std::to_string(i), kMaxKeyBytes));
      const std::string field = "metadata '" + Printable(value.key) + "'";
      KVIK_ASSIGN(const auto type, Read<uint32_t>(field));
      value.type = static_cast<GgufValueType>(type);
      KVIK_TRY(ReadValue(field, value));
      value.pair = bytes_.subspan(begin, pos_ - begin);
      if (!file_.index_.emplace(value.key, file_.values_.size()).second) {
        return file_.Complain(ErrorCode::kCorrupt, field + ": appears twice; the file is damaged");
      }
      file_.values_.push_back(value);
    }
    return {};
  }

  // Sets value.bytes (and element, count) and moves past the payload.
  Result<void> ReadValue(const std::string& field, Value& value) {
    if (value.type == GgufValueType::kString) {
      KVIK_ASSIGN(const auto text, ReadText(field, bytes_.size()));
      value.bytes = std::as_bytes(std::span(text.data(), text.size()));
      return {};
    }
    if (value.type == GgufValueType::kArray) {
      KVIK_ASSIGN(const auto element, Read<uint32_t>(field));
      KVIK_ASSIGN(value.count, Read<uint64_t>(field));
      value.element = static_cast<GgufValueType>(element);
      const uint64_t begin = pos_;
      KVIK_TRY(SkipElements(field, value.element, value.count, 1));
      value.bytes = bytes_.subspan(begin, pos_ - begin);
      return {};
    }
    const uint64_t size = ScalarBytes(value.type);
    if (size == 0) {
      return UnknownType(field, value.type);
    }
    if (left() < size) {
      return Truncated(field);
    }
    value.bytes = bytes_.subspan(pos_, size);
    pos_ += size;
    return {};
  }

  [[nodiscard]] Error UnknownType(const std::string& field, GgufValueType type) const {
    return file_.Complain(ErrorCode::kCorrupt,
                          field + ": unknown value type " +
                              std::to_string(static_cast<uint32_t>(type)) +
                              "; the file is damaged or newer than GGUF version 3");
  }

  Result<void> SkipElements(const std::string& field, GgufValueType type, uint64_t count,
                            int depth) {
    if (type == GgufValueType::kString) {
      KVIK_TRY(CheckCount(field, count, 8));
      for (uint64_t i = 0; i < count; ++i) {
        KVIK_ASSIGN(const auto length, Read<uint64_t>(field));
        if (length > left()) {
          return Truncated(field);
        }
        pos_ += length;
      }
      return {};
    }
    if (type == GgufValueType::kArray) {
      if (depth >= kMaxArrayDepth) {
        return file_.Complain(ErrorCode::kCorrupt, field + ": arrays nested deeper than " +
                                                       std::to_string(kMaxArrayDepth) +
                                                       "; the file is damaged");
      }
      KVIK_TRY(CheckCount(field, count, 4 + 8));
      for (uint64_t i = 0; i < count; ++i) {
        KVIK_ASSIGN(const auto inner, Read<uint32_t>(field));
        KVIK_ASSIGN(const auto inner_count, Read<uint64_t>(field));
        KVIK_TRY(SkipElements(field, static_cast<GgufValueType>(inner), inner_count, depth + 1));
      }
      return {};
    }
    const uint64_t size = ScalarBytes(type);
    if (size == 0) {
      return UnknownType(field, type);
    }
    KVIK_TRY(CheckCount(field, count, size));
    pos_ += count * size;
    return {};
  }

  Result<void> ReadDirectory() {
    std::unordered_set<std::string_view> names;
    for (uint64_t i = 0; i < num_tensors_; ++i) {
      GgufTensor tensor;
      KVIK_ASSIGN(tensor.name,
                  ReadText("name of tensor " + std::to_string(i), kMaxTensorNameBytes));
      const std::string field = "tensor '" + Printable(tensor.name) + "'";
      KVIK_ASSIGN(const auto num_dims, Read<uint32_t>(field));
      if (num_dims == 0 || num_dims > kMaxDims) {
        return file_.Complain(ErrorCode::kCorrupt,
                              field + ": " + std::to_string(num_dims) +
                                  " dimensions, not 1 to 4; the file is damaged");
      }
      uint64_t values = 1;
      for (uint32_t d = 0; d < num_dims; ++d) {
        KVIK_ASSIGN(const auto dim, Read<uint64_t>(field));
        if (dim == 0 || dim > kMaxValues / values) {
          return file_.Complain(ErrorCode::kCorrupt, field + ": dimension " + std::to_string(d) +
                                                         " = " + std::to_string(dim) +
                                                         " is impossible; the file is damaged");
        }
        values *= dim;
        tensor.dims.push_back(dim);
      }
      KVIK_ASSIGN(const auto type, Read<uint32_t>(field));
      const GgmlTypeInfo* info = FindGgmlType(type);
      if (info == nullptr) {
        return file_.Complain(
            ErrorCode::kUnsupported,
            field + ": tensor type " + std::to_string(type) +
                " is not supported; use a file with F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                "Q4_K, Q5_K or Q6_K");
      }
      tensor.type = info->type;
      if (tensor.cols() % info->block_values != 0) {
        return file_.Complain(ErrorCode::kCorrupt,
                              field + ": row length " + std::to_string(tensor.cols()) +
                                  " is not a multiple of " + info->name + "'s block of " +
                                  std::to_string(info->block_values) + "; the file is damaged");
      }
      KVIK_ASSIGN(const auto offset, Read<uint64_t>(field));
      if (!names.insert(tensor.name).second) {
        return file_.Complain(ErrorCode::kCorrupt, field + ": appears twice; the file is damaged");
      }
      offsets_.push_back(offset);
      file_.tensors_.push_back(std::move(tensor));
    }
    return {};
  }

  // Gives every tensor its bytes: inside the data section, aligned, none over another.
  Result<void> PlaceTensors() {
    KVIK_ASSIGN(const auto alignment_or, file_.Int("general.alignment", 1, kMaxAlignment));
    const auto alignment = static_cast<uint64_t>(alignment_or.value_or(32));
    if (!std::has_single_bit(alignment)) {
      return file_.Complain(ErrorCode::kCorrupt,
                            "metadata 'general.alignment': " + std::to_string(alignment) +
                                " is not a power of two; the file is damaged");
    }
    const uint64_t data_begin =
        std::min<uint64_t>((pos_ + alignment - 1) / alignment * alignment, bytes_.size());
    const uint64_t data_bytes = bytes_.size() - data_begin;
    std::vector<size_t> order(file_.tensors_.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
      GgufTensor& tensor = file_.tensors_[i];
      const std::string field = "tensor '" + Printable(tensor.name) + "'";
      const GgmlTypeInfo& info = InfoOf(tensor.type);
      const uint64_t size = tensor.rows() * (tensor.cols() / info.block_values) * info.block_bytes;
      if (offsets_[i] % alignment != 0) {
        return file_.Complain(ErrorCode::kCorrupt,
                              field + ": offset " + std::to_string(offsets_[i]) +
                                  " is not a multiple of " + std::to_string(alignment) +
                                  "; the file is damaged");
      }
      if (size > data_bytes || offsets_[i] > data_bytes - size) {
        return file_.Complain(ErrorCode::kCorrupt,
                              field + ": needs " + std::to_string(size) + " bytes at offset " +
                                  std::to_string(offsets_[i]) + ", but the data section has " +
                                  std::to_string(data_bytes) +
                                  "; the file is truncated, fetch it again");
      }
      tensor.data = bytes_.subspan(data_begin + offsets_[i], size);
    }
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
    for (size_t i = 1; i < order.size(); ++i) {
      const GgufTensor& before = file_.tensors_[order[i - 1]];
      const GgufTensor& after = file_.tensors_[order[i]];
      if (before.data.data() + before.data.size() > after.data.data()) {
        return file_.Complain(ErrorCode::kCorrupt, "tensor '" + Printable(after.name) +
                                                       "': overlaps '" + Printable(before.name) +
                                                       "'; the file is damaged");
      }
    }
    return {};
  }

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  uint64_t pos_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t num_pairs_ = 0;
  std::vector<uint64_t> offsets_;  // [tensors], from the start of the data section
};

Result<GgufFile> GgufFile::Parse(std::string path, std::span<const std::byte> bytes) {
  GgufFile file;
  file.path_ = std::move(path);
  KVIK_TRY(Parser(file, bytes).Run());
  return file;
}

std::vector<std::string_view> GgufFile::Keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(values_.size());
  for (const Value& value : values_) {
    keys.push_back(value.key);
  }
  return keys;
}

const GgufFile::Value* GgufFile::Find(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &values_[it->second];
}

Error GgufFile::Complain(ErrorCode code, const std::string& what) const {
  return Error{code, path_ + ": " + what};
}

Error GgufFile::WrongType(const Value& value, const char* wanted) const {
  std::string is = ValueTypeName(value.type);
  if (value.type == GgufValueType::kArray) {
    is += std::string(" of ") + ValueTypeName(value.element);
  }
  return Complain(ErrorCode::kCorrupt, "metadata '" + Printable(value.key) + "': is " + is +
                                           ", not " + wanted + "; the file is damaged");
}

Result<std::optional<int64_t>> GgufFile::Int(std::string_view key, int64_t min, int64_t max) const {
  const Value* value = Find(key);
  if (value == nullptr) {
    return std::optional<int64_t>();
  }
  if (!IsInteger(value->type)) {
    return WrongType(*value, "an integer");
  }
  const std::optional<int64_t> number = LoadInt(value->type, value->bytes.data());
  if (!number || *number < min || *number > max) {
    return Complain(ErrorCode::kCorrupt, "metadata '" + Printable(key) + "': " +
                                             (number ? std::to_string(*number) : "above 2^63") +
                                             " is outside [" + std::to_string(min) + ", " +
                                             std::to_string(max) + "]; the file is damaged");
  }
  return number;
}

Result<std::optional<double>> GgufFile::Float(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) {
    return std::optional<double>();
  }
  double number = 0;
  if (value->type == GgufValueType::kFloat32) {
    number = LoadAs<float>(value->bytes.data());
  } else if (value->type == GgufValueType::kFloat64) {
    number = LoadAs<double>(value->bytes.data());
  } else {
    return WrongType(*value, "a float");
  }
  if (!std::isfinite(number)) {
    return Complain(ErrorCode::kCorrupt,
                    "metadata '" + Printable(key) + "': is not finite; the file is damaged");
  }
  return std::optional<double>(number);
}

Result<std::optional<bool>> GgufFile::Bool(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) {
    return std::optional<bool>();
  }
  if (value->type != GgufValueType::kBool) {
    return WrongType(*value, "a bool");
  }
  return std::optional<bool>(value->bytes[0] != std::byte{0});
}

Result<std::optional<std::string_view>> GgufFile::String(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) {
    return std::optional<std::string_view>();
  }
  if (value->type != GgufValueType::kString) {
    return WrongType(*value, "a string");
  }
  return std::optional<std::string_view>(
      std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size()));
}

Result<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  std::vector<std::string_view> out;
  const Value* value = Find(key);
  if (value == nullptr) {
    return out;
  }
  if (value->type != GgufValueType::kArray || value->element != GgufValueType::kString) {
    return WrongType(*value, "an array of strings");
  }
  out.reserve(value->count);
  const std::byte* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = LoadAs<uint64_t>(at);
    out.emplace_back(reinterpret_cast<const char*>(at + 8), length);
    at += 8 + length;
  }
  return out;
}

Result<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  std::vector<int64_t> out;
  const Value* value = Find(key);
  if (value == nullptr) {
    return out;
  }
  if (value->type != GgufValueType::kArray || !IsInteger(value->element)) {
    return WrongType(*value, "an array of integers");
  }
  out.reserve(value->count);
  const uint64_t size = ScalarBytes(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number = LoadInt(value->element, value->bytes.data() + i * size);
    if (!number) {
      return Complain(ErrorCode::kCorrupt, "metadata '" + Printable(key) + "': entry " +
                                               std::to_string(i) +
                                               " is above 2^63; the file is damaged");
    }
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  std::vector<float> out;
  const Value* value = Find(key);
  if (value == nullptr) {
    return out;
  }
  if (value->type != GgufValueType::kArray ||
      (value->element != GgufValueType::kFloat32 && value->element != GgufValueType::kFloat64)) {
    return WrongType(*value, "an array of floats");
  }
  out.reserve(value->count);
  const bool wide = value->element == GgufValueType::kFloat64;
  for (uint64_t i = 0; i < value->count; ++i) {
    out.push_back(wide ? static_cast<float>(LoadAs<double>(value->bytes.data() + i * 8))
                       : LoadAs<float>(value->bytes.data() + i * 4));
  }
  return out;
}

std::span<const std::byte> GgufFile::RawPair(std::string_view key) const {
  const Value* value = Find(key);
  KVIK_CHECK(value != nullptr);
  return value->pair;
}

std::string GgufFile::Describe(std::string_view key) const {
  const Value* value = Find(key);
  KVIK_CHECK(value != nullptr);
  char number[64];
  switch (value->type) {
    case GgufValueType::kString:
      return Printable({reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size()});
    case GgufValueType::kArray:
      return std::string("[") + ValueTypeName(value->element) + " x " +
             std::to_string(value->count) + "]";
    case GgufValueType::kBool:
      return value->bytes[0] != std::byte{0} ? "true" : "false";
    case GgufValueType::kFloat32:
      std::snprintf(number, sizeof(number), "%.9g", LoadAs<float>(value->bytes.data()));
      return number;
    case GgufValueType::kFloat64:
      std::snprintf(number, sizeof(number), "%.17g", LoadAs<double>(value->bytes.data()));
      return number;
    case GgufValueType::kUint64:
      std::snprintf(number, sizeof(number), "%" PRIu64, LoadAs<uint64_t>(value->bytes.data()));
      return number;
    default:
      return std::to_string(*LoadInt(value->type, value->bytes.data()));
  }
}

}  // namespace kvik::model
