// SPDX-License-Identifier: Apache-2.0
// transfer/objects.h: what is said about objects (kv/object.h) and how it looks on a stream:
// docs/transfer.md has the tables. Every decoder is strict: kCorrupt unless all bytes are one
// value, and no count is believed before its bytes are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kv/object.h"

namespace kvik::transfer {

// Methods of streams; those from kFirstCall on are the application's own calls.
enum class Method : uint16_t {
  kLookup = 1,
  kGet = 2,
  kPut = 3,
  kRemove = 5,
  kFirstCall = 256,
};

inline constexpr size_t kMaxLookupHashes = 4096;
inline constexpr size_t kMaxGetObjects = 1024;
inline constexpr size_t kMaxTenantBytes = 128;
// The most bytes of one object that a reader believes in.
inline constexpr uint64_t kMaxObjectBytes = uint64_t{1} << 34;

// Which of these block hashes end an object that you have or will soon have?
struct LookupRequest {
  kv::CacheDomain domain;
  std::vector<kv::BlockHash> hashes;
  kv::MinQuality quality;
  // Exact objects of other numerics are of no use to this reader, lossy ones may be.
  kv::NumericsTag numerics;
  bool include_live = true;  // also what is still being made
  std::string tenant;
};

struct FoundObject {
  uint32_t hash_index = 0;  // of the request's hashes: the object's last block
  kv::ObjectInfo info;
};

struct GetRequest {
  // In the order in which they are wanted. A peer may send one that is ready before one that is
  // not.
  std::vector<kv::ObjectKey> keys;
  std::string tenant;
  // Of how many blocks each is to be made, the last one the key's: what the reader lacks. 0, or
  // nothing given: as the node has it or would cut it. What is made already is sent whole.
  std::vector<uint32_t> num_blocks = {};
  [[nodiscard]] uint32_t NumBlocks(size_t index) const {
    return index < num_blocks.size() ? num_blocks[index] : 0;
  }
};

struct PutRequest {
  kv::ObjectInfo info;  // size_bytes: exact, or an upper bound with size_is_bound
  bool size_is_bound = false;
  std::string tenant;
  int64_t ttl_us = 0;  // 0: until evicted
  bool pin = false;
};

// What an object took where it was made for the call that gets it; zeros for what was stored.
struct ObjectTimes {
  int64_t waited_us = 0;  // from the call on, until all of its KV had been computed
  int64_t encode_us = 0;  // busy, of all threads
};

enum class PutAnswer : uint8_t {
  kGo = 1,    // send the bytes
  kHave = 2,  // it is here already: send nothing
};

struct RemoveRequest {
  std::vector<kv::ObjectKey> keys;
  std::string tenant;
};

using Payload = std::vector<std::byte>;

[[nodiscard]] Result<Payload> Encode(const LookupRequest& request);
[[nodiscard]] Result<Payload> Encode(const GetRequest& request);
[[nodiscard]] Result<Payload> Encode(const PutRequest& request);
[[nodiscard]] Result<Payload> Encode(const RemoveRequest& request);
[[nodiscard]] Payload Encode(const kv::ObjectInfo& info);
[[nodiscard]] Payload Encode(std::span<const FoundObject> found);
[[nodiscard]] Payload EncodeObjectEnd(uint64_t size_bytes, const ObjectTimes& times);

[[nodiscard]] Result<LookupRequest> DecodeLookupRequest(std::span<const std::byte> bytes);
[[nodiscard]] Result<GetRequest> DecodeGetRequest(std::span<const std::byte> bytes);
[[nodiscard]] Result<PutRequest> DecodePutRequest(std::span<const std::byte> bytes);
[[nodiscard]] Result<RemoveRequest> DecodeRemoveRequest(std::span<const std::byte> bytes);
[[nodiscard]] Result<kv::ObjectInfo> DecodeObjectInfo(std::span<const std::byte> bytes);
// The size and what it took; times that are no times of this world are kCorrupt.
[[nodiscard]] Result<std::pair<uint64_t, ObjectTimes>> DecodeObjectEnd(
    std::span<const std::byte> bytes);
// What `request` asked for gives the keys; only indices are sent.
[[nodiscard]] Result<std::vector<FoundObject>> DecodeFoundObjects(std::span<const std::byte> bytes,
                                                                  const LookupRequest& request);

}  // namespace kvik::transfer
