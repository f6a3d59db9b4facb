// SPDX-License-Identifier: Apache-2.0
// base/sha256.h: SHA-256 of a stream of bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvik {

using Sha256Digest = std::array<uint8_t, 32>;

// Thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::span<const std::byte> bytes);
  // The digest of everything since construction or the last Finish; starts over.
  [[nodiscard]] Sha256Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] Sha256Digest Sha256Of(std::span<const std::byte> bytes);
// The first 8 bytes as a little-endian number: an identity where 64 bits are enough.
[[nodiscard]] uint64_t ShortHash(const Sha256Digest& digest);
// Lower-case hexadecimal, 64 characters.
[[nodiscard]] std::string ToHex(const Sha256Digest& digest);

}  // namespace kvik
