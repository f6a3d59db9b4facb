// SPDX-License-Identifier: Apache-2.0
// events/zmq_parts.h: odds and ends of both sides of a socket of ZeroMQ. For the .cc files of this
// module only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kvik::events {

// Whether a socket has to be told that its endpoint is one of IPv6.
inline bool IsIpv6(const std::string& endpoint) { return endpoint.find('[') != std::string::npos; }

inline void PutBigEndian(uint64_t value, std::span<uint8_t, 8> bytes) {
  for (size_t i = 8; i-- > 0; value >>= 8) {
    bytes[i] = static_cast<uint8_t>(value);
  }
}

inline uint64_t GetBigEndian(std::span<const uint8_t, 8> bytes) {
  uint64_t value = 0;
  for (const uint8_t byte : bytes) {
    value = value << 8 | byte;
  }
  return value;
}

}  // namespace kvik::events
