// SPDX-License-Identifier: Apache-2.0
// The header is read with a streaming JSON parser into exactly the three known fields, so that a
// hostile header can neither nest deeply nor build a large document in memory.
#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "model/output_file.h"
#include "model/printable.h"

namespace kvik::model {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr uint64_t kMaxValues = uint64_t{1} << 40;
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxNameBytes = 1024;

struct DtypeInfo {
  const char* name;
  uint64_t bytes;
  std::optional<SafetensorsDtype> dtype;
};
constexpr DtypeInfo kDtypes[] = {
    {"F32", 4, SafetensorsDtype::kF32},
    {"F16", 2, SafetensorsDtype::kF16},
    {"BF16", 2, SafetensorsDtype::kBf16},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"I32", 4, {}},
    {"I16", 2, {}},
    {"I8", 1, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"U16", 2, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
};

const DtypeInfo* FindDtype(std::string_view name) {
  for (const DtypeInfo& info : kDtypes) {
    if (name == info.name) {
      return &info;
    }
  }
  return nullptr;
}

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
};

// nlohmann's SAX interface: returning false stops the parser. Depth 1 is the header object,
// depth 2 a tensor (or __metadata__), depth 3 one of its arrays.
class HeaderHandler {
 public:
  std::vector<Entry> entries;
  std::string error;  // set when a handler returned false

  bool start_object(size_t /*elements*/) {
    if (depth_ == 0 || (depth_ == 1 && !key_.empty())) {
      ++depth_;
      if (depth_ == 2 && !in_metadata_) {
        entries.emplace_back();
        entries.back().name = key_;
      }
      return true;
    }
    return Fail("an object where none belongs");
  }
  bool end_object() {
    --depth_;
    in_metadata_ = in_metadata_ && depth_ != 1;
    return true;
  }
  bool start_array(size_t /*elements*/) {
    if (depth_ != 2 || in_metadata_ || (key_ != "shape" && key_ != "data_offsets")) {
      return Fail("an array where none belongs");
    }
    if (key_ == "shape") {
      if (entries.back().has_shape) {
        return Fail("'shape' appears twice");
      }
      entries.back().has_shape = true;
    } else if (!entries.back().offsets.empty()) {
      return Fail("'data_offsets' appears twice");
    }
    ++depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool key(std::string& text) {
    if (text.size() > kMaxNameBytes) {
      return Fail("a name longer than 1024 bytes");
    }
    key_ = text;
    if (depth_ == 1) {
      if (key_.empty() || !names_.insert(key_).second) {
        return Fail("appears twice or has no name");
      }
      in_metadata_ = key_ == "__metadata__";
    }
    return true;
  }
  bool string(std::string& text) {
    if (depth_ == 2 && in_metadata_) {
      return true;
    }
    if (depth_ == 2 && key_ == "dtype" && entries.back().dtype.empty()) {
      entries.back().dtype = text.substr(0, 16);
      return true;
    }
    return Fail("a string where none belongs");
  }
  bool number_unsigned(uint64_t value) {
    if (depth_ != 3) {
      return Fail("a number where none belongs");
    }
    std::vector<uint64_t>& list = key_ == "shape" ? entries.back().shape : entries.back().offsets;
    if (list.size() >= kMaxDims) {
      return Fail("'" + key_ + "' has more than 8 numbers");
    }
    list.push_back(value);
    return true;
  }
  bool number_integer(int64_t /*value*/) { return Fail("a negative number"); }
  bool number_float(double /*value*/, const std::string& /*text*/) {
    return Fail("a number that is not an integer");
  }
  bool null() { return Fail("a null"); }
  bool boolean(bool /*value*/) { return Fail("a boolean"); }
  bool binary(std::vector<uint8_t>& /*value*/) { return Fail("binary data"); }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*cause*/) {
    error = "not valid JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  bool Fail(const std::string& what) {
    const bool in_tensor = depth_ >= 2 && !in_metadata_ && !entries.empty();
    error = "'" + Printable(in_tensor ? entries.back().name : key_) + "': " + what;
    return false;
  }

  int depth_ = 0;
  std::string key_;
  bool in_metadata_ = false;
  std::unordered_set<std::string> names_;
};

Error Complain(const std::string& path, const std::string& what) {
  return Error{ErrorCode::kCorrupt, path + ": " + what + "; the file is damaged, fetch it again"};
}

// Checks one header entry against the data section and gives it its bytes.
Result<SafetensorsTensor> Place(const std::string& path, Entry& entry,
                                std::span<const std::byte> data) {
  const std::string field = "tensor '" + Printable(entry.name) + "': ";
  const DtypeInfo* info = FindDtype(entry.dtype);
  if (info == nullptr) {
    return Complain(path, field + "unknown dtype '" + Printable(entry.dtype) + "'");
  }
  if (!entry.has_shape || entry.offsets.size() != 2) {
    return Complain(path, field + "needs a shape and two data_offsets");
  }
  uint64_t values = 1;
  for (const uint64_t dim : entry.shape) {
    if (dim == 0 || dim > kMaxValues / values) {
      return Complain(path, field + "dimension " + std::to_string(dim) + " is impossible");
    }
    values *= dim;
  }
  const uint64_t begin = entry.offsets[0];
  const uint64_t end = entry.offsets[1];
  if (begin > end || end > data.size()) {
    return Complain(path, field + "data_offsets [" + std::to_string(begin) + ", " +
                              std::to_string(end) + ") leave the " + std::to_string(data.size()) +
                              " bytes of data");
  }
  if (end - begin != values * info->bytes) {
    return Complain(path, field + "its shape needs " + std::to_string(values * info->bytes) +
                              " bytes, data_offsets give it " + std::to_string(end - begin));
  }
  SafetensorsTensor tensor;
  tensor.name = std::move(entry.name);
  tensor.dtype_name = std::move(entry.dtype);
  tensor.dtype = info->dtype;
  tensor.shape = std::move(entry.shape);
  tensor.data = data.subspan(begin, end - begin);
  return tensor;
}

}  // namespace

Result<std::vector<SafetensorsTensor>> ParseSafetensors(const std::string& path,
                                                        std::span<const std::byte> bytes) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return Complain(path,
                    "header length: the file has only " + std::to_string(bytes.size()) + " bytes");
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - sizeof(header_bytes)) {
    return Complain(path, "header length: " + std::to_string(header_bytes) +
                              " does not fit the file of " + std::to_string(bytes.size()) +
                              " bytes (not safetensors, or truncated)");
  }
  const auto* begin = reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes);
  HeaderHandler handler;
  bool parsed = false;
  try {
    parsed = nlohmann::json::sax_parse(begin, begin + header_bytes, &handler);
  } catch (const std::exception& e) {
    handler.error = e.what();
  }
  if (!parsed) {
    return Complain(path, "header: " + handler.error);
  }
  const std::span<const std::byte> data = bytes.subspan(sizeof(header_bytes) + header_bytes);
  std::vector<SafetensorsTensor> tensors;
  for (Entry& entry : handler.entries) {
    KVIK_ASSIGN(SafetensorsTensor tensor, Place(path, entry, data));
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.data.data() < b.data.data(); });
  const std::byte* expected = data.data();
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.data.data() != expected) {
      return Complain(path, "tensor '" + Printable(tensor.name) +
                                "': overlaps another tensor or leaves a hole before it");
    }
    expected += tensor.data.size();
  }
  if (expected != data.data() + data.size()) {
    return Complain(path, "data: " + std::to_string(data.data() + data.size() - expected) +
                              " bytes behind the last tensor belong to none");
  }
  return tensors;
}

Result<void> WriteSafetensors(const std::string& path, std::span<const SafetensorsOutput> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  uint64_t offset = 0;
  std::vector<uint64_t> sizes;
  for (const SafetensorsOutput& tensor : tensors) {
    uint64_t values = 1;
    for (const uint64_t dim : tensor.shape) {
      values *= dim;
    }
    const uint64_t size = values * SafetensorsDtypeBytes(tensor.dtype);
    sizes.push_back(size);
    const char* dtype = tensor.dtype == SafetensorsDtype::kF32   ? "F32"
                        : tensor.dtype == SafetensorsDtype::kF16 ? "F16"
                                                                 : "BF16";
    header[tensor.name] = {
        {"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts aligned
  const uint64_t header_bytes = text.size();
  KVIK_ASSIGN(OutputFile file, OutputFile::Create(path));
  KVIK_TRY(file.Write(std::as_bytes(std::span(&header_bytes, 1))));
  KVIK_TRY(file.Write(std::as_bytes(std::span(text.data(), text.size()))));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const SafetensorsOutput& tensor = tensors[i];
    const std::vector<std::byte> made = tensor.make ? tensor.make() : std::vector<std::byte>();
    const std::span<const std::byte> data = tensor.make ? std::span(made) : tensor.data;
    KVIK_CHECK(data.size() == sizes[i]);
    KVIK_TRY(file.Write(data));
  }
  return file.Close();
}

}  // namespace kvik::model
