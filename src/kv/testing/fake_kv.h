// SPDX-License-Identifier: Apache-2.0
// kv/testing/fake_kv.h: KV whose values tell exactly which tokens they were computed from.
//
// A slot holds one number: a hash of its token, its position and the slot before it, which is read
// through the block table as attention would. A stale slot, a wrong position or a rewritten block
// therefore changes every later digest, and a digest equals ReferenceDigest of the same tokens if
// and only if every slot a real model would read holds the right KV.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "base/types.h"

namespace kvik::kv {

class FakeKv {
 public:
  FakeKv(int32_t num_blocks, int32_t block_size_tokens)
      : block_size_tokens_(block_size_tokens),
        slots_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size_tokens)) {}

  void Write(std::span<const BlockId> table, int32_t pos, TokenId token) {
    Slot(table, pos) = Value(pos == 0 ? 0 : Slot(table, pos - 1), pos, token);
  }
  // Of everything a token at `pos` attends to.
  uint64_t Digest(std::span<const BlockId> table, int32_t pos) {
    uint64_t digest = 0;
    for (int32_t p = 0; p <= pos; ++p) {
      digest = Rng(digest, Slot(table, p)).Next();
    }
    return digest;
  }
  [[nodiscard]] uint64_t BlockChecksum(BlockId block) const {
    uint64_t sum = 0;
    for (int32_t i = 0; i < block_size_tokens_; ++i) {
      sum = Rng(sum, slots_[static_cast<size_t>(block * block_size_tokens_ + i)]).Next();
    }
    return sum;
  }
  // [block_size_tokens], for those who move blocks.
  [[nodiscard]] std::span<uint64_t> Block(BlockId block) {
    const auto size = static_cast<size_t>(block_size_tokens_);
    return std::span(slots_).subspan(static_cast<size_t>(block) * size, size);
  }
  // What the slots of these tokens hold if all of them were computed: [tokens].
  static std::vector<uint64_t> ReferenceSlots(std::span<const TokenId> tokens) {
    std::vector<uint64_t> slots;
    for (size_t p = 0; p < tokens.size(); ++p) {
      slots.push_back(Value(p == 0 ? 0 : slots.back(), static_cast<int32_t>(p), tokens[p]));
    }
    return slots;
  }
  // What Digest must be for the last of these tokens.
  static uint64_t ReferenceDigest(std::span<const TokenId> tokens) {
    uint64_t value = 0;
    uint64_t digest = 0;
    for (size_t p = 0; p < tokens.size(); ++p) {
      value = Value(value, static_cast<int32_t>(p), tokens[p]);
      digest = Rng(digest, value).Next();
    }
    return digest;
  }

 private:
  static uint64_t Value(uint64_t before, int32_t pos, TokenId token) {
    return Rng(before, static_cast<uint64_t>(pos) << 32 | static_cast<uint32_t>(token)).Next();
  }
  uint64_t& Slot(std::span<const BlockId> table, int32_t pos) {
    const BlockId block = table[static_cast<size_t>(pos / block_size_tokens_)];
    KVIK_CHECK(block != kNoBlock, "position %d has no block", pos);
    return slots_[static_cast<size_t>(block * block_size_tokens_ + pos % block_size_tokens_)];
  }

  int32_t block_size_tokens_;
  std::vector<uint64_t> slots_;  // [num_blocks][block_size_tokens]
};

}  // namespace kvik::kv
