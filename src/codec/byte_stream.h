// SPDX-License-Identifier: Apache-2.0
// codec/byte_stream.h: little-endian bytes, written to a growing buffer and read with every length
// checked. Thread-compatible.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/float16.h"
#include "base/result.h"

namespace kvik::codec {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

// The number at `offset`, of any alignment. REQUIRES: it lies within `bytes`.
template <typename T>
T LoadAt(std::span<const std::byte> bytes, size_t offset) {
  T v;
  std::memcpy(&v, bytes.data() + offset, sizeof(T));
  return v;
}

// Appends to a buffer that it borrows.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  void U8(uint8_t v) { Put(v); }
  void U16(uint16_t v) { Put(v); }
  void U32(uint32_t v) { Put(v); }
  void U64(uint64_t v) { Put(v); }
  void Half(F16 v) { Put(v.bits); }
  void Bytes(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  // Appends n bytes to be filled in by the caller; valid until the next call.
  [[nodiscard]] std::span<std::byte> Room(size_t n) {
    out_.resize(out_.size() + n);
    return {out_.data() + out_.size() - n, n};
  }
  // Seven bits a byte, least significant first, the high bit set on all but the last.
  void Varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) {
      U8(static_cast<uint8_t>(v | 0x80));
    }
    U8(static_cast<uint8_t>(v));
  }
  [[nodiscard]] size_t size() const { return out_.size(); }  // of the whole buffer

 private:
  template <typename T>
  void Put(T v) {
    const size_t at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &v, sizeof(T));
  }
  std::vector<std::byte>& out_;
};

// Reads from bytes that it borrows. Every call fails with kCorrupt when too few bytes are left, and
// then nothing has been consumed.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  Result<uint8_t> U8() { return Get<uint8_t>(); }
  Result<uint16_t> U16() { return Get<uint16_t>(); }
  Result<uint32_t> U32() { return Get<uint32_t>(); }
  Result<uint64_t> U64() { return Get<uint64_t>(); }
  Result<F16> Half() {
    KVIK_ASSIGN(const uint16_t bits, Get<uint16_t>());
    return F16{bits};
  }
  // The next n bytes, in place.
  Result<std::span<const std::byte>> Bytes(size_t n) {
    if (n > rest_.size()) {
      return Short(n);
    }
    const auto taken = rest_.first(n);
    rest_ = rest_.subspan(n);
    return taken;
  }
  // kCorrupt also for more than 64 bits and for forms that are longer than needed.
  Result<uint64_t> Varint() {
    uint64_t v = 0;
    for (size_t i = 0; i < rest_.size() && i < 10; ++i) {
      const auto byte = static_cast<uint64_t>(rest_[i]);
      if ((i == 9 && byte > 1) || (i > 0 && byte == 0)) {
        return Err(ErrorCode::kCorrupt, "a number is not in its shortest form");
      }
      v |= (byte & 0x7F) << (7 * i);
      if (byte < 0x80) {
        rest_ = rest_.subspan(i + 1);
        return v;
      }
    }
    return Short(rest_.size() + 1);
  }
  [[nodiscard]] size_t left() const { return rest_.size(); }

 private:
  template <typename T>
  Result<T> Get() {
    if (sizeof(T) > rest_.size()) {
      return Short(sizeof(T));
    }
    T v;
    std::memcpy(&v, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return v;
  }
  [[nodiscard]] Error Short(size_t wanted) const {
    return Err(ErrorCode::kCorrupt, "%zu bytes wanted, %zu are left", wanted, rest_.size());
  }
  std::span<const std::byte> rest_;
};

}  // namespace kvik::codec
