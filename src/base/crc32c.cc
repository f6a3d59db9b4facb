// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace kvik {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78U;  // reversed

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
// One instruction takes 8 bytes in 3 cycles, and three independent ones overlap: long inputs are
// cut into three equal lanes whose CRCs are joined by shifting the first ones over what follows.
// Shifting over a fixed number of zero bytes is linear, hence four table lookups.
constexpr size_t kLane = 1024;

constexpr uint32_t ShiftOverLane(uint32_t crc) {
  for (size_t i = 0; i < kLane; ++i) {
    crc = (crc >> 8) ^ kTable[crc & 0xFF];
  }
  return crc;
}
using LaneTable = std::array<std::array<uint32_t, 256>, 4>;
LaneTable MakeLaneTable() {
  LaneTable table = {};
  for (uint32_t byte = 0; byte < 4; ++byte) {
    std::array<uint32_t, 8> bits = {};
    for (uint32_t bit = 0; bit < 8; ++bit) {
      bits[bit] = ShiftOverLane(1U << (8 * byte + bit));
    }
    for (uint32_t i = 0; i < 256; ++i) {
      for (uint32_t bit = 0; bit < 8; ++bit) {
        table[byte][i] ^= ((i >> bit) & 1U) != 0 ? bits[bit] : 0;
      }
    }
  }
  return table;
}

uint64_t Load8(const std::byte* p) {
  uint64_t v = 0;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

__attribute__((target("sse4.2"))) uint32_t WithInstruction(std::span<const std::byte> bytes,
                                                           uint32_t before) {
  static const LaneTable kLaneTable = MakeLaneTable();
  const auto shift = [](uint32_t crc) {
    return kLaneTable[0][crc & 0xFF] ^ kLaneTable[1][(crc >> 8) & 0xFF] ^
           kLaneTable[2][(crc >> 16) & 0xFF] ^ kLaneTable[3][crc >> 24];
  };
  uint64_t crc = ~before;
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 3 * kLane; n -= 3 * kLane, p += 3 * kLane) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      crc = _mm_crc32_u64(crc, Load8(p + i));
      second = _mm_crc32_u64(second, Load8(p + kLane + i));
      third = _mm_crc32_u64(third, Load8(p + 2 * kLane + i));
    }
    crc = shift(shift(static_cast<uint32_t>(crc)) ^ static_cast<uint32_t>(second)) ^
          static_cast<uint32_t>(third);
  }
  for (; n >= 8; n -= 8, p += 8) {
    crc = _mm_crc32_u64(crc, Load8(p));
  }
  for (; n > 0; --n, ++p) {
    crc = _mm_crc32_u8(static_cast<uint32_t>(crc), static_cast<uint8_t>(*p));
  }
  return ~static_cast<uint32_t>(crc);
}
#endif

}  // namespace

uint32_t Crc32cReference(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFF];
  }
  return ~crc;
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) {
    return WithInstruction(bytes, before);
  }
#endif
  return Crc32cReference(bytes, before);
}

}  // namespace kvik
