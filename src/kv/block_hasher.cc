// SPDX-License-Identifier: Apache-2.0
#include "kv/block_hasher.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/sha256.h"

namespace kvik::kv {
namespace {

// Fixed-width little-endian fields and length-prefixed strings: no two different inputs give the
// same bytes.
class FieldWriter {
 public:
  void Bytes(std::span<const uint8_t> bytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  void U32(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) {
      buffer_.push_back(static_cast<uint8_t>(value >> shift));
    }
  }
  void Tagged(char tag, std::string_view text) {
    buffer_.push_back(static_cast<uint8_t>(tag));
    U32(static_cast<uint32_t>(text.size()));
    buffer_.insert(buffer_.end(), text.begin(), text.end());
  }
  [[nodiscard]] std::array<uint8_t, 16> Xxh128() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(buffer_.data(), buffer_.size()));
    std::array<uint8_t, 16> digest{};
    std::copy_n(canonical.digest, digest.size(), digest.begin());
    return digest;
  }

 private:
  std::vector<uint8_t> buffer_;
};

// Canonical CBOR (RFC 8949, shortest heads) of the few types a block hash needs.
class CborWriter {
 public:
  void Array(size_t size) { Head(4, size); }
  void Integer(int64_t value) {
    if (value >= 0) {
      Head(0, static_cast<uint64_t>(value));
    } else {
      Head(1, static_cast<uint64_t>(-(value + 1)));
    }
  }
  void ByteString(std::span<const uint8_t> bytes) {
    Head(2, bytes.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  void Text(std::string_view text) {
    Head(3, text.size());
    buffer_.insert(buffer_.end(), text.begin(), text.end());
  }
  void Null() { buffer_.push_back(0xF6); }
  [[nodiscard]] BlockHash Sha256() const {
    return BlockHash{Sha256Of(std::as_bytes(std::span(buffer_)))};
  }

 private:
  void Head(uint8_t major, uint64_t value) {
    const auto type = static_cast<uint8_t>(major << 5);
    int bytes = 8;
    if (value < 24) {
      buffer_.push_back(static_cast<uint8_t>(type | value));
      return;
    }
    if (value <= 0xFF) {
      buffer_.push_back(type | 24);
      bytes = 1;
    } else if (value <= 0xFFFF) {
      buffer_.push_back(type | 25);
      bytes = 2;
    } else if (value <= 0xFFFFFFFF) {
      buffer_.push_back(type | 26);
      bytes = 4;
    } else {
      buffer_.push_back(type | 27);
    }
    for (int i = bytes - 1; i >= 0; --i) {
      buffer_.push_back(static_cast<uint8_t>(value >> (8 * i)));
    }
  }
  std::vector<uint8_t> buffer_;
};

BlockHash Widen(const std::array<uint8_t, 16>& digest) {
  BlockHash hash;
  std::copy(digest.begin(), digest.end(), hash.bytes.begin());
  return hash;
}

BlockHash MakeRoot(const HashOptions& options) {
  if (options.algorithm == HashAlgorithm::kSha256Cbor) {
    CborWriter cbor;
    cbor.Text(options.seed);
    return cbor.Sha256();
  }
  FieldWriter fields;
  fields.Tagged('r', options.seed);
  return Widen(fields.Xxh128());
}

}  // namespace

const char* HashAlgorithmName(HashAlgorithm algorithm) {
  return algorithm == HashAlgorithm::kXxh3 ? "xxh3" : "sha256_cbor";
}

std::optional<HashAlgorithm> ParseHashAlgorithm(std::string_view name) {
  for (const HashAlgorithm algorithm : {HashAlgorithm::kXxh3, HashAlgorithm::kSha256Cbor}) {
    if (name == HashAlgorithmName(algorithm)) {
      return algorithm;
    }
  }
  return std::nullopt;
}

BlockHasher::BlockHasher(const HashOptions& options)
    : options_(options), root_(MakeRoot(options)) {}

CacheDomain BlockHasher::Domain(const ExtraKeys& extra) const {
  FieldWriter fields;
  fields.Tagged('m', options_.model);
  fields.Tagged('a', extra.adapter);
  fields.Tagged('s', extra.cache_salt);
  return CacheDomain{fields.Xxh128()};
}

BlockHash BlockHasher::HashBlock(const BlockHash& parent, std::span<const TokenId> tokens,
                                 const ExtraKeys& extra, bool first) const {
  if (options_.algorithm == HashAlgorithm::kSha256Cbor) {
    const bool salted = first && !extra.cache_salt.empty();
    const size_t num_extra = (extra.adapter.empty() ? 0U : 1U) + (salted ? 1U : 0U);
    CborWriter cbor;
    cbor.Array(3);
    cbor.ByteString(parent.bytes);
    cbor.Array(tokens.size());
    for (const TokenId token : tokens) {
      cbor.Integer(token);
    }
    if (num_extra == 0) {
      cbor.Null();
    } else {
      cbor.Array(num_extra);
      if (!extra.adapter.empty()) {
        cbor.Text(extra.adapter);
      }
      if (salted) {
        cbor.Text(extra.cache_salt);
      }
    }
    return cbor.Sha256();
  }
  FieldWriter fields;
  fields.Bytes(std::span(parent.bytes).first(16));
  if (first) {
    fields.Bytes(Domain(extra).bytes);
  }
  for (const TokenId token : tokens) {
    fields.U32(static_cast<uint32_t>(token));
  }
  return Widen(fields.Xxh128());
}

HashChain::HashChain(ExtraKeys extra, int32_t block_size_tokens)
    : extra_(std::move(extra)), block_size_tokens_(block_size_tokens) {
  KVIK_CHECK(block_size_tokens > 0);
}

void HashChain::Extend(const BlockHasher& hasher, std::span<const TokenId> tokens) {
  const auto size = static_cast<size_t>(block_size_tokens_);
  const size_t full_blocks = tokens.size() / size;
  KVIK_CHECK(full_blocks >= keys_.size(), "the tokens of a sequence only grow");
  while (keys_.size() < full_blocks) {
    const bool first = keys_.empty();
    const BlockHash& parent = first ? hasher.root() : keys_.back().hash;
    const CacheDomain domain = first ? hasher.Domain(extra_) : keys_.back().domain;
    const auto block = tokens.subspan(keys_.size() * size, size);
    keys_.push_back(ContentKey{hasher.HashBlock(parent, block, extra_, first), domain});
  }
}

}  // namespace kvik::kv
