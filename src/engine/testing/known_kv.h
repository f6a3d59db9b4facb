// SPDX-License-Identifier: Apache-2.0
// engine/testing/known_kv.h: the KV of known texts, by content, as a FakeExecutor would compute it:
// what a store somewhere else could have.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "kv/block_hasher.h"
#include "kv/testing/fake_kv.h"

namespace kvik::engine {

// Keys of the full blocks of a text, under default options.
inline std::vector<kv::ContentKey> KeysOf(std::span<const TokenId> tokens, int32_t block_size) {
  kv::HashChain chain(kv::ExtraKeys{}, block_size);
  chain.Extend(kv::BlockHasher(kv::HashOptions{}), tokens);
  return {chain.keys().begin(), chain.keys().end()};
}

class KnownKv {
 public:
  using Slots = std::vector<uint64_t>;  // [block_size]

  explicit KnownKv(int32_t block_size) : block_size_(block_size) {}

  void Add(std::span<const TokenId> tokens) {
    const auto keys = KeysOf(tokens, block_size_);
    const Slots slots = kv::FakeKv::ReferenceSlots(tokens);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto begin = slots.begin() + static_cast<std::ptrdiff_t>(i) * block_size_;
      blocks_[keys[i]].assign(begin, begin + block_size_);
    }
  }
  // REQUIRES: known.
  [[nodiscard]] const Slots& At(const kv::ContentKey& key) const { return blocks_.at(key); }
  [[nodiscard]] const auto& blocks() const { return blocks_; }

  // What a lossy codec makes of slots.
  static Slots Distort(Slots slots, uint64_t distortion) {
    for (uint64_t& slot : slots) {
      slot = Rng(distortion, slot).Next();
    }
    return slots;
  }

 private:
  int32_t block_size_;
  std::unordered_map<kv::ContentKey, Slots, kv::ContentKeyHash> blocks_;
};

}  // namespace kvik::engine
