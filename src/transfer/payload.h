// SPDX-License-Identifier: Apache-2.0
// transfer/payload.h: numbers and texts in the payload of a frame. All little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace kvik::transfer {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

// Appends to a buffer that it borrows.
class PayloadWriter {
 public:
  explicit PayloadWriter(std::vector<std::byte>& out) : out_(out) {}

  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    const size_t at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &value, sizeof(T));
  }
  void PutBytes(std::span<const std::byte> bytes) {
    const size_t at = out_.size();
    out_.resize(at + bytes.size());
    if (!bytes.empty()) {
      std::memcpy(out_.data() + at, bytes.data(), bytes.size());
    }
  }
  // u16 size and bytes; cut at 65,535.
  void PutText(std::string_view text) {
    text = text.substr(0, UINT16_MAX);
    Put(static_cast<uint16_t>(text.size()));
    PutBytes(std::as_bytes(std::span(text)));
  }

 private:
  std::vector<std::byte>& out_;
};

// Reads what is there and remembers if it was not: after a failure everything reads as zero, so
// decoders check once, at the end. Counts have to be checked against `rest` before they are used.
class PayloadReader {
 public:
  explicit PayloadReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value{};
    const auto bytes = GetBytes(sizeof(T));
    if (bytes.size() == sizeof(T)) {
      std::memcpy(&value, bytes.data(), sizeof(T));
    }
    return value;
  }
  // A byte that is 0 or 1.
  bool GetBool() {
    const auto value = Get<uint8_t>();
    failed_ = failed_ || value > 1;
    return value == 1;
  }
  // Empty when there are not so many.
  std::span<const std::byte> GetBytes(size_t size_bytes) {
    if (failed_ || size_bytes > bytes_.size()) {
      failed_ = true;
      return {};
    }
    const auto bytes = bytes_.first(size_bytes);
    bytes_ = bytes_.subspan(size_bytes);
    return bytes;
  }
  std::string GetText(size_t max_bytes) {
    const auto size_bytes = Get<uint16_t>();
    failed_ = failed_ || size_bytes > max_bytes;
    const auto bytes = GetBytes(failed_ ? 0 : size_bytes);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // A u32 count of items that take at least `item_bytes` each, all of which are there; else 0.
  size_t GetCount(size_t max_count, size_t item_bytes) {
    const auto count = Get<uint32_t>();
    failed_ = failed_ || count > max_count || count > bytes_.size() / item_bytes;
    return failed_ ? 0 : count;
  }
  void Fail() { failed_ = true; }

  [[nodiscard]] size_t rest() const { return bytes_.size(); }
  [[nodiscard]] bool failed() const { return failed_; }
  // kCorrupt "<what>: ..." unless everything was read and nothing was missing.
  [[nodiscard]] Result<void> Done(const char* what) const {
    if (failed_) {
      return Err(ErrorCode::kCorrupt, "%s: cut short or out of range", what);
    }
    if (!bytes_.empty()) {
      return Err(ErrorCode::kCorrupt, "%s: %zu bytes too many", what, bytes_.size());
    }
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
  bool failed_ = false;
};

}  // namespace kvik::transfer
