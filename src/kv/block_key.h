// SPDX-License-Identifier: Apache-2.0
// kv/block_key.h: the identity of a full block of KV.
//
// A block is identified by the whole prefix it ends (chained hash), by the domain it belongs to
// (model and tagged extra keys, so that adapters and salts never mix) and by the numerics that
// produced its bytes. Two blocks with equal keys hold equal bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kvik::kv {

// Digest of a prefix. SHA-256 fills it; XXH3-128 fills the first half and leaves zeroes.
struct BlockHash {
  std::array<uint8_t, 32> bytes{};
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// Hash of the model's name and the tagged extra keys.
struct CacheDomain {
  std::array<uint8_t, 16> bytes{};
  friend bool operator==(const CacheDomain&, const CacheDomain&) = default;
};

// What content a block holds, whoever computed it.
struct ContentKey {
  BlockHash hash;
  CacheDomain domain;
  friend bool operator==(const ContentKey&, const ContentKey&) = default;

  // 64 uniform bits: equal keys have equal ones, different keys almost never.
  [[nodiscard]] uint64_t Digest() const {
    uint64_t digest = 0;
    uint64_t part = 0;
    std::memcpy(&digest, hash.bytes.data(), sizeof digest);
    std::memcpy(&part, domain.bytes.data(), sizeof part);
    return digest ^ part;
  }
};

struct ContentKeyHash {
  size_t operator()(const ContentKey& key) const { return key.Digest(); }
};

// Who computed it: kernel set, compute type, KV dtype, weights, numerics version. KV with another
// tag may differ in bits and is never exact here.
struct NumericsTag {
  uint64_t value = 0;
  // `description` spells the parts out, as model::Model::numerics_tag() does.
  static NumericsTag FromDescription(std::string_view description);
  friend bool operator==(const NumericsTag&, const NumericsTag&) = default;
};

struct BlockKey {
  ContentKey content;
  NumericsTag numerics;
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

// Whether reading a block gives the same bits as computing it here.
enum class Fidelity { kExact, kLossy };

// The label of a kind of work, for which a pipeline's quality was measured. The label that is empty
// has a tag like any other.
struct WorkloadTag {
  uint32_t value = 0;  // 0: none
  static WorkloadTag Of(std::string_view label);
  friend bool operator==(const WorkloadTag&, const WorkloadTag&) = default;
};

// What a block is worth to its readers: top-1 agreement of the pipeline that stored it, [0, 1]; 1
// when exact. It was measured for kinds of work, and one of them may be known to get more than the
// least: that of the request for which the block was loaded.
struct BlockQuality {
  Fidelity fidelity = Fidelity::kExact;
  float q = 1.0F;             // whatever the work is
  WorkloadTag workload = {};  // none: nothing more is known
  float workload_q = 1.0F;    // for this kind of work
  [[nodiscard]] float For(WorkloadTag reader) const {
    return workload.value != 0 && workload == reader ? workload_q : q;
  }
};

// The worse of both in every respect: of what was computed from both. `workload` is the kind of
// work that is kept apart; none: that of `a`, or else of `b`. What is not a number was never
// measured, and worth nothing.
[[nodiscard]] BlockQuality WorseOf(const BlockQuality& a, const BlockQuality& b,
                                   WorkloadTag workload = {});

// The least a reader accepts. The default never reads a lossy block.
struct MinQuality {
  bool allow_lossy = false;
  float q_min = 0.0F;         // with allow_lossy
  WorkloadTag workload = {};  // of the reader; none: it has to be good enough for any
  [[nodiscard]] bool Accepts(const BlockQuality& quality) const {
    return quality.fidelity == Fidelity::kExact || (allow_lossy && quality.For(workload) >= q_min);
  }
};

}  // namespace kvik::kv
