// SPDX-License-Identifier: Apache-2.0
// connector/testing/toy_objects.h: objects of the toy engine's KV without an engine, and what a rig
// of one connector needs.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "codec/testing/made_kv.h"
#include "connector/chunk_codec.h"
#include "connector/profile_set.h"
#include "connector/source.h"
#include "connector/store_source.h"
#include "connector/testing/toy_engine.h"

namespace kvik::connector::testing {

// Raw, lossless and the presets that need no calibration.
inline std::shared_ptr<const ProfileSet> ToyProfiles(int32_t chunk_tokens = 64) {
  const kv::KvGeometry geometry = ToyGeometry();
  const codec::ModelFacts model =
      codec::testing::MadeModel(geometry.num_layers, geometry.num_kv_heads, geometry.head_dim);
  auto profiles = ProfileSet::Create(model, nullptr, chunk_tokens, Isa::kScalar);
  KVIK_CHECK(profiles.has_value(), "%s", profiles.error().message.c_str());
  return std::move(profiles).value();
}

// A prompt that no other id shares a block with.
inline std::vector<uint64_t> ToyPrompt(uint64_t id, size_t blocks) {
  std::vector<uint64_t> choices(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    choices[i] = id * 1000 + i;
  }
  return choices;
}

// A request for all of these blocks and a few tokens more.
inline ToyRequest ToyRequestOf(const std::vector<uint64_t>& choices, kv::MinQuality quality = {}) {
  ToyRequest request;
  request.keys = ToyKeys(choices);
  request.num_tokens = static_cast<int32_t>(request.keys.size()) * 16 + 3;
  request.quality = quality;
  return request;
}

// What an engine would store of blocks `range` of a prompt.
inline NewObject ToyObject(const CodecProfile& profile, std::span<const kv::ContentKey> keys,
                           const kv::BlockRange& range, const kv::BlockQuality& source = {}) {
  const kv::KvGeometry geometry = ToyGeometry();
  std::vector<std::byte> arena(static_cast<size_t>(range.num_blocks) * geometry.bytes_per_block());
  std::vector<BlockId> ids;
  NewObject object;
  for (int32_t i = 0; i < range.num_blocks; ++i) {
    const kv::ContentKey& key = keys[static_cast<size_t>(range.first_block + i)];
    const auto bytes = ToyBytes(key, geometry);
    std::memcpy(arena.data() + static_cast<size_t>(i) * bytes.size(), bytes.data(), bytes.size());
    ids.push_back(i);
    object.blocks.push_back(key.hash);
  }
  if (range.first_block > 0) {
    object.parent = keys[static_cast<size_t>(range.first_block - 1)].hash;
  }
  object.info.key = {{keys[static_cast<size_t>(range.end_block() - 1)], kToyNumerics},
                     profile.hash};
  object.info.num_blocks = range.num_blocks;
  object.info.quality = profile.lossy ? kv::BlockQuality{kv::Fidelity::kLossy, profile.q} : source;
  CodecScratch scratch;
  auto bytes = EncodeChunk(*profile.codec, {object.info.key, object.parent, object.blocks, source},
                           {&geometry, arena, range.first_block, ids}, scratch);
  KVIK_CHECK(bytes.has_value(), "%s", bytes.error().message.c_str());
  object.info.size_bytes = bytes->size();
  object.bytes = transfer::SharedBytes::Own(std::move(bytes).value());
  return object;
}

// Puts it into a store of the default tenant, as it says it is, with whatever bytes.
inline void PutToy(store::Store& store, const NewObject& object,
                   const transfer::SharedBytes& bytes) {
  store::ObjectMeta meta;
  meta.key = ToStoreKey(object.info.key, {});
  meta.quality = object.info.quality;
  meta.parent = object.parent;
  meta.blocks = object.blocks;
  const auto copy = store::Buffer::CopyOf(bytes.span());
  KVIK_CHECK(copy.has_value() && store.Put(meta, *copy).has_value());
}

}  // namespace kvik::connector::testing
