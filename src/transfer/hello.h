// SPDX-License-Identifier: Apache-2.0
// transfer/hello.h: what two processes tell each other before anything else, and when they refuse
// each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/block_key.h"

namespace kvik::transfer {

inline constexpr uint8_t kProtocolVersion = 1;

enum class Role : uint8_t {
  kServer = 1,  // prefill and decode in one
  kPrefill = 2,
  kDecode = 3,
  kRouter = 4,
  kPool = 5,
  kTool = 6,
};
// "server", "prefill", ...
[[nodiscard]] const char* RoleName(Role role);

// How fast this process encodes and decodes one profile, in raw KV bytes a second; 0: it cannot, or
// does not know.
struct ProfileSpeed {
  uint64_t profile_hash = 0;
  float encode_bytes_per_second = 0;
  float decode_bytes_per_second = 0;
  friend bool operator==(const ProfileSpeed&, const ProfileSpeed&) = default;
};

inline constexpr size_t kMaxHelloProfiles = 4096;
inline constexpr size_t kMaxHelloText = 256;
inline constexpr size_t kMaxHelloExtra = size_t{64} << 10;

// Zero and empty mean "anything": a pool node has no model.
struct Hello {
  Role role = Role::kTool;
  std::string node_name;           // for logs
  uint64_t model_fingerprint = 0;  // of the weights
  kv::CacheDomain domain;          // of requests without adapter and salt
  kv::NumericsTag numerics;
  // Everything about the bytes of a block besides its tokens, e.g. "bf16 layers=30 heads=3 dim=64".
  std::string kv_layout;
  uint16_t block_size_tokens = 0;
  std::vector<ProfileSpeed> profiles;
  std::vector<std::byte> extra;  // for the layer above: speeds by length, costs
  friend bool operator==(const Hello&, const Hello&) = default;
};

struct HandshakePolicy {
  // Keys carry the tag, so a peer with other numerics yields no exact hit; lossy KV of it can still
  // be used. With this it is refused at once.
  bool require_same_numerics = false;
};

// Whether `mine` can work with `theirs`; kUnsupported with both values of what differs. Symmetric.
[[nodiscard]] Result<void> CheckPeer(const Hello& mine, const Hello& theirs,
                                     const HandshakePolicy& policy);

// Appends the payload of a hello frame. kInvalidInput: something is above its limit.
[[nodiscard]] Result<void> EncodeHello(const Hello& hello, std::vector<std::byte>& out);
// Strict: kCorrupt unless all of `payload` is one hello.
[[nodiscard]] Result<Hello> DecodeHello(std::span<const std::byte> payload);

}  // namespace kvik::transfer
