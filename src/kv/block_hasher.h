// SPDX-License-Identifier: Apache-2.0
// kv/block_hasher.h: chained hashes of full blocks of tokens.
//
// H_i = hash(H_{i-1}, tokens of block i, extra keys), H_{-1} = a root made from the seed. Because
// the chain covers the whole prefix, a block stays valid when earlier blocks are evicted.
//
//   kXxh3        XXH3-128 over fixed-width fields; the extra keys are tagged and length-prefixed.
//   kSha256Cbor  SHA-256 over canonical CBOR of (parent, tokens, extra keys or null), byte for byte
//                what vLLM computes as "sha256_cbor" when PYTHONHASHSEED equals `seed`.
//
// In both modes model and tagged extra keys also stand beside the hash, as the key's domain: vLLM's
// untagged list cannot tell an adapter from a salt.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kv/block_key.h"

namespace kvik::kv {

enum class HashAlgorithm { kXxh3, kSha256Cbor };

const char* HashAlgorithmName(HashAlgorithm algorithm);  // "xxh3", "sha256_cbor"
std::optional<HashAlgorithm> ParseHashAlgorithm(std::string_view name);

struct HashOptions {
  HashAlgorithm algorithm = HashAlgorithm::kXxh3;
  // Fixed by default: processes that share a pool must agree without being told.
  std::string seed = "0";
  std::string model;  // name of the model; separates domains
};

// Keys beyond the tokens. The adapter enters every block, the salt the first (and, by the chain,
// all).
struct ExtraKeys {
  std::string adapter;
  std::string cache_salt;
};

// Immutable and thread-safe.
class BlockHasher {
 public:
  explicit BlockHasher(const HashOptions& options);

  [[nodiscard]] CacheDomain Domain(const ExtraKeys& extra) const;
  // The parent of a first block.
  [[nodiscard]] const BlockHash& root() const { return root_; }
  // `first` = block 0 of a sequence. `parent` is root() then.
  [[nodiscard]] BlockHash HashBlock(const BlockHash& parent, std::span<const TokenId> tokens,
                                    const ExtraKeys& extra, bool first) const;

 private:
  HashOptions options_;
  BlockHash root_;
};

// The growing list of block keys of one sequence.
class HashChain {
 public:
  HashChain(ExtraKeys extra, int32_t block_size_tokens);
  // Hashed already. Not to be extended beyond these keys.
  HashChain(std::vector<ContentKey> keys, int32_t block_size_tokens)
      : block_size_tokens_(block_size_tokens), keys_(std::move(keys)) {}

  // Hashes the full blocks of `tokens` that are not hashed yet. REQUIRES: `tokens` extends what
  // earlier calls saw. O(new tokens).
  void Extend(const BlockHasher& hasher, std::span<const TokenId> tokens);
  // Of the whole sequence; empty when it was given hashed.
  [[nodiscard]] const ExtraKeys& extra() const { return extra_; }
  // Keys of the full blocks seen, in order.
  [[nodiscard]] std::span<const ContentKey> keys() const { return keys_; }

 private:
  ExtraKeys extra_;
  int32_t block_size_tokens_;
  std::vector<ContentKey> keys_;
};

}  // namespace kvik::kv
