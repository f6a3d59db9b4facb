// SPDX-License-Identifier: Apache-2.0
#include "events/wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <msgpack.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace kvik::events {
namespace {

using kv::BlockEvent;
using kv::BlockEventKind;
using kv::BlockHash;
using kv::BlockMedium;

constexpr size_t kShortDigest = 16;  // XXH3-128 leaves the rest zero
constexpr int kMaxNesting = 16;

// Bytes of the digest that the hash function wrote.
std::span<const uint8_t> Digest(const BlockHash& hash) {
  const std::span<const uint8_t> all = hash.bytes;
  const auto rest = all.subspan(kShortDigest);
  const bool is_short = std::all_of(rest.begin(), rest.end(), [](uint8_t b) { return b == 0; });
  return is_short ? all.first(kShortDigest) : all;
}

uint64_t LowBits(std::span<const uint8_t> digest) {
  uint64_t number = 0;
  for (const uint8_t byte : digest.last(std::min<size_t>(8, digest.size()))) {
    number = number << 8 | byte;
  }
  return number;
}

class Writer {
 public:
  explicit Writer(const WireForm& form) : form_(form) {}

  void Batch(double unix_seconds, std::span<const BlockEvent> events) {
    pack_.pack_map(3);
    Key("ts");
    Float64(unix_seconds);
    Key("events");
    pack_.pack_array(Count(events.size()));
    for (const BlockEvent& event : events) {
      Event(event);
    }
    Key("data_parallel_rank");
    pack_.pack_uint8(0);
  }
  [[nodiscard]] std::string Take() const { return {buffer_.data(), buffer_.size()}; }

 private:
  static uint32_t Count(size_t count) {
    KVIK_CHECK(count <= UINT32_MAX);
    return static_cast<uint32_t>(count);
  }
  // The library makes an integer of a number that is one; readers want a float.
  void Float64(double value) {
    uint64_t bits = std::bit_cast<uint64_t>(value);
    std::array<char, 9> bytes = {'\xcb'};
    for (size_t i = bytes.size(); --i > 0; bits >>= 8) {
      bytes[i] = static_cast<char>(bits);
    }
    buffer_.write(bytes.data(), bytes.size());
  }
  void Text(std::string_view text) {
    pack_.pack_str(Count(text.size()));
    pack_.pack_str_body(text.data(), Count(text.size()));
  }
  void TextOrNil(std::string_view text) { text.empty() ? void(pack_.pack_nil()) : Text(text); }
  void Key(std::string_view name) { Text(name); }
  void Hash(const BlockHash& hash) {
    const std::span<const uint8_t> digest = Digest(hash);
    if (form_.int_block_hashes) {
      pack_.pack_uint64(LowBits(digest));
      return;
    }
    pack_.pack_bin(Count(digest.size()));
    pack_.pack_bin_body(reinterpret_cast<const char*>(digest.data()), Count(digest.size()));
  }
  void Hashes(const std::vector<BlockHash>& hashes) {
    Key("block_hashes");
    pack_.pack_array(Count(hashes.size()));
    for (const BlockHash& hash : hashes) {
      Hash(hash);
    }
  }
  void Medium(BlockMedium medium) {
    Key("medium");
    Text(MediumName(medium));
  }
  void Group() {
    Key("group_idx");
    pack_.pack_uint8(0);
  }

  void Event(const BlockEvent& event) {
    switch (event.kind) {
      case BlockEventKind::kStored:
        return Stored(event);
      case BlockEventKind::kRemoved:
        pack_.pack_map(4);
        Key("type");
        Text("BlockRemoved");
        Hashes(event.blocks);
        Medium(event.medium);
        return Group();
      case BlockEventKind::kCleared:
        pack_.pack_map(1);
        Key("type");
        return Text("AllBlocksCleared");
    }
  }

  void Stored(const BlockEvent& event) {
    const bool salted = !event.parent && !event.extra.cache_salt.empty();
    const bool has_extra = salted || !event.extra.adapter.empty();
    pack_.pack_map(has_extra ? 11 : 10);
    Key("type");
    Text("BlockStored");
    Hashes(event.blocks);
    Key("parent_block_hash");
    event.parent ? Hash(*event.parent) : void(pack_.pack_nil());
    Key("token_ids");
    pack_.pack_array(Count(event.tokens.size()));
    for (const TokenId token : event.tokens) {
      pack_.pack_int32(token);
    }
    Key("block_size");
    pack_.pack_int64(event.tokens.empty()
                         ? form_.block_size_tokens
                         : static_cast<int64_t>(event.tokens.size() / event.blocks.size()));
    Key("lora_id");
    pack_.pack_nil();
    Medium(event.medium);
    Key("lora_name");
    TextOrNil(event.extra.adapter);
    if (has_extra) {
      Extra(event, salted);
    }
    Group();
    Key("kv_cache_spec_kind");
    Text("full_attention");
  }
  // What entered the hash of each block besides its tokens: the adapter, and the salt of the first.
  void Extra(const BlockEvent& event, bool salted) {
    Key("extra_keys");
    pack_.pack_array(Count(event.blocks.size()));
    const bool adapted = !event.extra.adapter.empty();
    for (size_t i = 0; i < event.blocks.size(); ++i) {
      const bool with_salt = salted && i == 0;
      if (!adapted && !with_salt) {
        pack_.pack_nil();
        continue;
      }
      pack_.pack_array((adapted ? 1 : 0) + (with_salt ? 1 : 0));
      if (adapted) {
        Text(event.extra.adapter);
      }
      if (with_salt) {
        Text(event.extra.cache_salt);
      }
    }
  }

  const WireForm& form_;
  msgpack::sbuffer buffer_;
  msgpack::packer<msgpack::sbuffer> pack_{buffer_};
};

// Walks a message without building it. Where it is: a stack of the open maps and arrays, each map
// with the key whose value comes.
class Reader : public msgpack::null_visitor {
 public:
  ReceivedBatch batch;
  [[nodiscard]] bool complete() const { return has_events_ && stack_.empty(); }

  // NOLINTBEGIN(readability-identifier-naming): the library's names.
  bool visit_nil() { return Scalar(std::nullopt, {}); }
  bool visit_boolean(bool) { return Scalar(std::nullopt, {}); }
  bool visit_positive_integer(uint64_t value) { return Scalar(value, {}); }
  bool visit_negative_integer(int64_t) { return Scalar(std::nullopt, {}); }
  bool visit_float32(float value) { return Seconds(value); }
  bool visit_float64(double value) { return Seconds(value); }
  bool visit_str(const char* text, uint32_t size) { return Scalar(std::nullopt, {text, size}); }
  bool visit_bin(const char* bytes, uint32_t size) {
    if (InHashes()) {
      if (size < 8) {
        return false;
      }
      return Block(LowBits({reinterpret_cast<const uint8_t*>(bytes), size}));
    }
    return Scalar(std::nullopt, {});
  }
  bool visit_ext(const char*, uint32_t) { return Scalar(std::nullopt, {}); }
  bool start_array(uint32_t) { return Open(false); }
  bool end_array() { return Close(); }
  bool start_map(uint32_t) { return Open(true); }
  bool start_map_key() {
    stack_.back().at_key = true;
    return true;
  }
  bool end_map_key() {
    stack_.back().at_key = false;
    return true;
  }
  bool end_map() { return Close(); }
  // NOLINTEND(readability-identifier-naming)

 private:
  struct Frame {
    bool is_map = false;
    bool at_key = false;
    std::string key;
  };

  // The batch's map, its "events", and one of them.
  [[nodiscard]] bool InEvents(size_t depth) const {
    return stack_.size() >= depth && stack_[0].is_map && stack_[0].key == "events" &&
           (depth < 2 || !stack_[1].is_map) && (depth < 3 || stack_[2].is_map);
  }
  [[nodiscard]] bool InHashes() const {
    return stack_.size() == 4 && InEvents(3) && !stack_[3].is_map &&
           stack_[2].key == "block_hashes";
  }

  bool Open(bool is_map) {
    if (stack_.size() >= kMaxNesting || (!stack_.empty() && stack_.back().at_key) ||
        (stack_.empty() && !is_map)) {
      return false;
    }
    if (stack_.size() == 1 && InEvents(1)) {
      if (is_map || has_events_) {
        return false;
      }
      has_events_ = true;
    }
    if (stack_.size() == 2 && InEvents(2)) {
      if (!is_map) {
        return false;
      }
      event_ = ReceivedEvent{};
      kind_.reset();
    }
    stack_.push_back(Frame{is_map, false, {}});
    return true;
  }
  bool Close() {
    if (stack_.size() == 3 && InEvents(3) && kind_) {
      event_.kind = *kind_;
      batch.events.push_back(std::move(event_));
    }
    stack_.pop_back();
    return true;
  }

  bool Seconds(double value) {
    if (stack_.size() == 1 && stack_[0].key == "ts") {
      batch.unix_seconds = value;
    }
    return Scalar(std::nullopt, {});
  }
  bool Block(uint64_t number) {
    event_.blocks.push_back(number);
    return true;
  }
  bool Scalar(std::optional<uint64_t> number, std::string_view text) {
    if (stack_.empty()) {
      return false;
    }
    Frame& top = stack_.back();
    if (top.is_map && top.at_key) {
      top.key = text;
      return true;
    }
    if (InHashes()) {
      return number.has_value() && Block(*number);
    }
    if (stack_.size() == 2 && InEvents(2)) {
      return false;  // an event that is no map
    }
    if (stack_.size() == 1 && InEvents(1)) {
      return false;  // "events" that are no array
    }
    if (stack_.size() == 3 && InEvents(3)) {
      if (top.key == "type") {
        Kind(text);
      } else if (top.key == "medium") {
        event_.medium = text == MediumName(BlockMedium::kMemory) ? BlockMedium::kMemory
                        : text == MediumName(BlockMedium::kDisk) ? BlockMedium::kDisk
                                                                 : BlockMedium::kCache;
      }
    }
    return true;
  }
  void Kind(std::string_view name) {
    if (name == "BlockStored") {
      kind_ = BlockEventKind::kStored;
    } else if (name == "BlockRemoved") {
      kind_ = BlockEventKind::kRemoved;
    } else if (name == "AllBlocksCleared") {
      kind_ = BlockEventKind::kCleared;
    }
  }

  std::vector<Frame> stack_;
  bool has_events_ = false;
  ReceivedEvent event_;
  std::optional<BlockEventKind> kind_;
};

}  // namespace

const char* MediumName(BlockMedium medium) {
  switch (medium) {
    case BlockMedium::kCache:
      return "GPU";
    case BlockMedium::kMemory:
      return "CPU";
    case BlockMedium::kDisk:
      break;
  }
  return "STORAGE";
}

uint64_t HashNumber(const BlockHash& hash) { return LowBits(Digest(hash)); }

std::string EncodeBatch(double unix_seconds, std::span<const BlockEvent> events,
                        const WireForm& form) {
  Writer writer(form);
  writer.Batch(unix_seconds, events);
  return writer.Take();
}

Result<ReceivedBatch> DecodeBatch(std::span<const std::byte> payload) {
  Reader reader;
  size_t read = 0;
  bool parsed = false;
  try {
    parsed =
        msgpack::parse(reinterpret_cast<const char*>(payload.data()), payload.size(), read, reader);
  } catch (const std::exception&) {  // whatever the library may throw: it is no batch
  }
  if (!parsed || read != payload.size() || !reader.complete()) {
    return Err(ErrorCode::kCorrupt, "%zu bytes are no batch of events", payload.size());
  }
  return std::move(reader.batch);
}

}  // namespace kvik::events
