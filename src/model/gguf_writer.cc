// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_writer.h"

#include <algorithm>

#include "model/output_file.h"

namespace kvik::model {
namespace {

constexpr uint64_t kAlignment = 32;  // the default of readers

uint64_t AlignUp(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

void AppendBytes(std::vector<std::byte>& out, const void* data, size_t size) {
  const size_t end = out.size();
  out.resize(end + size);
  std::copy_n(static_cast<const std::byte*>(data), size, out.data() + end);
}

template <typename T>
void Append(std::vector<std::byte>& out, T value) {
  AppendBytes(out, &value, sizeof(value));
}

uint64_t SizeBytes(GgmlType type, const std::vector<uint64_t>& dims) {
  const GgmlTypeInfo& info = InfoOf(type);
  uint64_t values = 1;
  for (const uint64_t dim : dims) {
    values *= dim;
  }
  KVIK_CHECK(!dims.empty() && dims[0] % info.block_values == 0);
  return values / info.block_values * info.block_bytes;
}

void AppendText(std::vector<std::byte>& out, std::string_view text) {
  Append<uint64_t>(out, text.size());
  AppendBytes(out, text.data(), text.size());
}

}  // namespace

void GgufWriter::AppendHeader(std::string_view key, GgufValueType type) {
  ++num_pairs_;
  AppendText(metadata_, key);
  Append(metadata_, static_cast<uint32_t>(type));
}

void GgufWriter::AddUint32(std::string_view key, uint32_t value) {
  AppendHeader(key, GgufValueType::kUint32);
  Append(metadata_, value);
}

void GgufWriter::AddInt32(std::string_view key, int32_t value) {
  AppendHeader(key, GgufValueType::kInt32);
  Append(metadata_, value);
}

void GgufWriter::AddFloat32(std::string_view key, float value) {
  AppendHeader(key, GgufValueType::kFloat32);
  Append(metadata_, value);
}

void GgufWriter::AddBool(std::string_view key, bool value) {
  AppendHeader(key, GgufValueType::kBool);
  Append(metadata_, static_cast<uint8_t>(value ? 1 : 0));
}

void GgufWriter::AddString(std::string_view key, std::string_view value) {
  AppendHeader(key, GgufValueType::kString);
  AppendText(metadata_, value);
}

void GgufWriter::AddStrings(std::string_view key, std::span<const std::string> values) {
  AppendHeader(key, GgufValueType::kArray);
  Append(metadata_, static_cast<uint32_t>(GgufValueType::kString));
  Append<uint64_t>(metadata_, values.size());
  for (const std::string& value : values) {
    AppendText(metadata_, value);
  }
}

void GgufWriter::AddFloats(std::string_view key, std::span<const float> values) {
  AppendHeader(key, GgufValueType::kArray);
  Append(metadata_, static_cast<uint32_t>(GgufValueType::kFloat32));
  Append<uint64_t>(metadata_, values.size());
  AppendBytes(metadata_, values.data(), values.size_bytes());
}

void GgufWriter::AddInts(std::string_view key, std::span<const int32_t> values) {
  AppendHeader(key, GgufValueType::kArray);
  Append(metadata_, static_cast<uint32_t>(GgufValueType::kInt32));
  Append<uint64_t>(metadata_, values.size());
  AppendBytes(metadata_, values.data(), values.size_bytes());
}

void GgufWriter::CopyPair(const GgufFile& file, std::string_view key) {
  ++num_pairs_;
  const std::span<const std::byte> pair = file.RawPair(key);
  AppendBytes(metadata_, pair.data(), pair.size());
}

void GgufWriter::AddTensor(std::string_view name, GgmlType type, std::vector<uint64_t> dims,
                           std::span<const std::byte> data) {
  const uint64_t size = SizeBytes(type, dims);
  KVIK_CHECK(data.size() == size);
  tensors_.push_back(Tensor{std::string(name), type, std::move(dims), size, data, nullptr});
}

void GgufWriter::AddTensor(std::string_view name, GgmlType type, std::vector<uint64_t> dims,
                           MakeBytes make) {
  const uint64_t size = SizeBytes(type, dims);
  tensors_.push_back(Tensor{std::string(name), type, std::move(dims), size, {}, std::move(make)});
}

std::vector<std::byte> GgufWriter::SerializeHeader() const {
  std::vector<std::byte> out;
  AppendBytes(out, "GGUF", 4);
  Append<uint32_t>(out, 3);
  Append<uint64_t>(out, tensors_.size());
  Append<uint64_t>(out, num_pairs_);
  AppendBytes(out, metadata_.data(), metadata_.size());
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    AppendText(out, tensor.name);
    Append(out, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) {
      Append(out, dim);
    }
    Append(out, static_cast<uint32_t>(tensor.type));
    Append(out, offset);
    offset = AlignUp(offset + tensor.size_bytes);
  }
  out.resize(AlignUp(out.size()));
  return out;
}

std::vector<std::byte> GgufWriter::Serialize() const {
  std::vector<std::byte> out = SerializeHeader();
  for (const Tensor& tensor : tensors_) {
    const std::vector<std::byte> made = tensor.make ? tensor.make() : std::vector<std::byte>();
    const std::span<const std::byte> data = tensor.make ? std::span(made) : tensor.data;
    KVIK_CHECK(data.size() == tensor.size_bytes);
    AppendBytes(out, data.data(), data.size());
    out.resize(AlignUp(out.size()));
  }
  return out;
}

Result<void> GgufWriter::WriteTo(const std::string& path) const {
  KVIK_ASSIGN(OutputFile file, OutputFile::Create(path));
  KVIK_TRY(file.Write(SerializeHeader()));
  const std::byte padding[kAlignment] = {};
  for (const Tensor& tensor : tensors_) {
    const std::vector<std::byte> made = tensor.make ? tensor.make() : std::vector<std::byte>();
    const std::span<const std::byte> data = tensor.make ? std::span(made) : tensor.data;
    KVIK_CHECK(data.size() == tensor.size_bytes);
    KVIK_TRY(file.Write(data));
    KVIK_TRY(file.Write(std::span(padding, AlignUp(data.size()) - data.size())));
  }
  return file.Close();
}

}  // namespace kvik::model
