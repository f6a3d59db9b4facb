// SPDX-License-Identifier: Apache-2.0
#include "transfer/hello.h"

#include <cinttypes>
#include <cmath>

#include "transfer/payload.h"

namespace kvik::transfer {
namespace {

constexpr size_t kProfileBytes = 16;

std::string Who(const Hello& hello) {
  return std::string(RoleName(hello.role)) +
         (hello.node_name.empty() ? std::string() : " " + hello.node_name);
}

std::string Hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// A speed that somebody can reckon with.
bool IsSpeed(float value) { return std::isfinite(value) && value >= 0; }

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kServer:
      return "server";
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
    case Role::kRouter:
      return "router";
    case Role::kPool:
      return "pool";
    case Role::kTool:
      return "tool";
  }
  return "unknown";
}

Result<void> CheckPeer(const Hello& mine, const Hello& theirs, const HandshakePolicy& policy) {
  const std::string peer = Who(theirs) + " and " + Who(mine) + " do not fit: ";
  if (mine.model_fingerprint != 0 && theirs.model_fingerprint != 0 &&
      mine.model_fingerprint != theirs.model_fingerprint) {
    return Err(ErrorCode::kUnsupported,
               "%sthe model's fingerprint is %016" PRIx64 " there and %016" PRIx64 " here",
               peer.c_str(), theirs.model_fingerprint, mine.model_fingerprint);
  }
  const kv::CacheDomain any;
  if (mine.domain != any && theirs.domain != any && mine.domain != theirs.domain) {
    return Err(ErrorCode::kUnsupported, "%sthe cache domain is %s there and %s here", peer.c_str(),
               Hex(theirs.domain.bytes).c_str(), Hex(mine.domain.bytes).c_str());
  }
  if (!mine.kv_layout.empty() && !theirs.kv_layout.empty() && mine.kv_layout != theirs.kv_layout) {
    return Err(ErrorCode::kUnsupported, "%sthe KV layout is \"%s\" there and \"%s\" here",
               peer.c_str(), theirs.kv_layout.c_str(), mine.kv_layout.c_str());
  }
  if (mine.block_size_tokens != 0 && theirs.block_size_tokens != 0 &&
      mine.block_size_tokens != theirs.block_size_tokens) {
    return Err(ErrorCode::kUnsupported, "%sa block has %d tokens there and %d here", peer.c_str(),
               theirs.block_size_tokens, mine.block_size_tokens);
  }
  if (policy.require_same_numerics && mine.numerics.value != 0 && theirs.numerics.value != 0 &&
      mine.numerics != theirs.numerics) {
    return Err(ErrorCode::kUnsupported,
               "%sthe numerics tag is %016" PRIx64 " there and %016" PRIx64 " here", peer.c_str(),
               theirs.numerics.value, mine.numerics.value);
  }
  return {};
}

Result<void> EncodeHello(const Hello& hello, std::vector<std::byte>& out) {
  if (hello.node_name.size() > kMaxHelloText || hello.kv_layout.size() > kMaxHelloText) {
    return Err(ErrorCode::kInvalidInput, "a name or layout for peers has more than %zu bytes",
               kMaxHelloText);
  }
  if (hello.profiles.size() > kMaxHelloProfiles || hello.extra.size() > kMaxHelloExtra) {
    return Err(ErrorCode::kInvalidInput, "more than %zu profiles or %zu bytes for peers",
               kMaxHelloProfiles, kMaxHelloExtra);
  }
  PayloadWriter writer(out);
  writer.Put(static_cast<uint8_t>(hello.role));
  writer.PutText(hello.node_name);
  writer.Put(hello.model_fingerprint);
  writer.PutBytes(std::as_bytes(std::span(hello.domain.bytes)));
  writer.Put(hello.numerics.value);
  writer.PutText(hello.kv_layout);
  writer.Put(hello.block_size_tokens);
  writer.Put(static_cast<uint32_t>(hello.profiles.size()));
  for (const ProfileSpeed& profile : hello.profiles) {
    writer.Put(profile.profile_hash);
    writer.Put(IsSpeed(profile.encode_bytes_per_second) ? profile.encode_bytes_per_second : 0.0F);
    writer.Put(IsSpeed(profile.decode_bytes_per_second) ? profile.decode_bytes_per_second : 0.0F);
  }
  writer.Put(static_cast<uint32_t>(hello.extra.size()));
  writer.PutBytes(hello.extra);
  return {};
}

Result<Hello> DecodeHello(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  Hello hello;
  const auto role = reader.Get<uint8_t>();
  hello.role = static_cast<Role>(role);
  hello.node_name = reader.GetText(kMaxHelloText);
  hello.model_fingerprint = reader.Get<uint64_t>();
  const auto domain = reader.GetBytes(hello.domain.bytes.size());
  if (!domain.empty()) {
    std::memcpy(hello.domain.bytes.data(), domain.data(), domain.size());
  }
  hello.numerics.value = reader.Get<uint64_t>();
  hello.kv_layout = reader.GetText(kMaxHelloText);
  hello.block_size_tokens = reader.Get<uint16_t>();
  hello.profiles.resize(reader.GetCount(kMaxHelloProfiles, kProfileBytes));
  for (ProfileSpeed& profile : hello.profiles) {
    profile.profile_hash = reader.Get<uint64_t>();
    profile.encode_bytes_per_second = reader.Get<float>();
    profile.decode_bytes_per_second = reader.Get<float>();
    if (!IsSpeed(profile.encode_bytes_per_second) || !IsSpeed(profile.decode_bytes_per_second)) {
      reader.Fail();
    }
  }
  const auto extra = reader.GetBytes(reader.GetCount(kMaxHelloExtra, 1));
  hello.extra.assign(extra.begin(), extra.end());
  KVIK_TRY(reader.Done("a hello"));
  if (role < static_cast<uint8_t>(Role::kServer) || role > static_cast<uint8_t>(Role::kTool)) {
    return Err(ErrorCode::kUnsupported, "a hello of an unknown role %d", role);
  }
  return hello;
}

}  // namespace kvik::transfer
