// SPDX-License-Identifier: Apache-2.0
#include "store/redis_tier.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"
#include "base/mutex.h"

namespace kvik::store {
namespace {

constexpr const char* kPrefix = "kvik:1:{";  // with the version of all that follows
constexpr const char* kIndexSuffix = "}:i";
constexpr int kScanCount = 1000;

struct ValueHeader {
  std::array<char, 4> magic;
  uint32_t version;
  uint32_t meta_bytes;
  uint32_t crc;  // of description and bytes
  uint64_t payload_bytes;
};
static_assert(sizeof(ValueHeader) == 24);
constexpr std::array<char, 4> kValueMagic = {'K', 'V', 'V', '1'};
constexpr uint32_t kValueVersion = 1;

template <size_t N>
void AppendHex(std::string& out, const std::array<uint8_t, N>& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  for (const uint8_t byte : bytes) {
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
}

std::string TagOf(const kv::BlockKey& block, TenantId tenant) {
  std::string tag = kPrefix;
  AppendHex(tag, block.content.hash.bytes);
  AppendHex(tag, block.content.domain.bytes);
  tag += Format("%016" PRIx64 "%016" PRIx64, block.numerics.value, tenant.value);
  return tag;
}

std::string_view View(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Where an object is.
struct Names {
  explicit Names(const ObjectKey& key)
      : tag(TagOf(key.block, key.tenant)),
        index(tag + kIndexSuffix),
        field(Format("%016" PRIx64, key.profile_hash)),
        value(tag + "}:" + field) {}
  std::string tag;
  std::string index;
  std::string field;
  std::string value;
};

// An entry of the index: the description and how many bytes there are.
std::string IndexEntry(const ObjectMeta& meta, uint64_t size_bytes) {
  std::string entry(View(EncodeMeta(meta)));
  entry.append(reinterpret_cast<const char*>(&size_bytes), sizeof size_bytes);
  return entry;
}

struct IndexedObject {
  ObjectMeta meta;
  uint64_t size_bytes = 0;
};

// Everything a reply to HGETALL holds that can be read; `corrupt` counts the rest.
std::vector<IndexedObject> ParseIndex(const RedisReply& reply, int64_t& corrupt) {
  std::vector<IndexedObject> objects;
  const auto fields = reply.elements();
  for (size_t i = 0; i + 1 < fields.size(); i += 2) {
    const std::string_view entry = fields[i + 1].text();
    IndexedObject object;
    if (entry.size() < sizeof object.size_bytes) {
      ++corrupt;
      continue;
    }
    const size_t meta_bytes = entry.size() - sizeof object.size_bytes;
    std::memcpy(&object.size_bytes, entry.data() + meta_bytes, sizeof object.size_bytes);
    auto meta = DecodeMeta(Bytes(entry.substr(0, meta_bytes)));
    if (!meta) {
      ++corrupt;
      continue;
    }
    object.meta = std::move(*meta);
    objects.push_back(std::move(object));
  }
  return objects;
}

Result<Object> ParseValue(const RedisReply& reply, const ObjectKey& key) {
  const std::string_view text = reply.text();
  ValueHeader header = {};
  if (text.size() < sizeof header) {
    return Err(ErrorCode::kCorrupt, "an object in redis is cut short");
  }
  std::memcpy(&header, text.data(), sizeof header);
  if (header.magic != kValueMagic) {
    return Err(ErrorCode::kCorrupt, "an object in redis does not begin as one");
  }
  if (header.version != kValueVersion) {
    return Err(ErrorCode::kUnsupported, "an object in redis has version %u, this build knows %u",
               header.version, kValueVersion);
  }
  const std::string_view body = text.substr(sizeof header);
  if (header.meta_bytes > body.size() || body.size() - header.meta_bytes != header.payload_bytes) {
    return Err(ErrorCode::kCorrupt, "an object in redis has not the length that it says");
  }
  if (Crc32c(Bytes(body)) != header.crc) {
    return Err(ErrorCode::kCorrupt, "an object in redis fails its checksum");
  }
  KVIK_ASSIGN(ObjectMeta meta, DecodeMeta(Bytes(body.substr(0, header.meta_bytes))));
  if (!(meta.key == key)) {
    return Err(ErrorCode::kCorrupt, "an object in redis is another one");
  }
  // The answer's own memory: no copy.
  return Object{std::make_shared<const ObjectMeta>(std::move(meta)),
                Buffer::Share(reply.owner(), Bytes(body.substr(header.meta_bytes)))};
}

}  // namespace

struct RedisTier::State {
  RedisTierOptions options;
  const Clock* clock = nullptr;
  std::unique_ptr<RedisClient> client;
  mutable Mutex mutex;
  TierStats stats KVIK_GUARDED_BY(mutex);

  void CountError(const Error& error) KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    ++(error.code == ErrorCode::kTimeout ? stats.timeouts : stats.errors);
  }

  // Damaged values, and index entries without one. Best effort.
  void Forget(const std::vector<ObjectKey>& keys, int64_t deadline_us) {
    std::deque<Names> names;
    std::vector<RedisCommand> commands;
    for (const ObjectKey& key : keys) {
      const Names& name = names.emplace_back(key);
      commands.push_back({{"HDEL", name.index, name.field}, name.index});
      commands.push_back({{"DEL", name.value}, name.value});
    }
    if (!commands.empty()) {
      (void)client->Run(commands, deadline_us);
    }
  }
};

Result<std::unique_ptr<RedisTier>> RedisTier::Create(const RedisTierOptions& options,
                                                     const Clock& clock) {
  if (options.default_ttl_us < 0 || options.max_object_bytes == 0 ||
      options.max_object_bytes > (uint64_t{500} << 20)) {
    return Err(ErrorCode::kInvalidInput,
               "redis: objects have 1 byte to 500 MiB, default_ttl_us is not negative");
  }
  auto state = std::make_unique<State>();
  state->options = options;
  state->clock = &clock;
  KVIK_ASSIGN(state->client, RedisClient::Create(options.redis, clock));
  {
    MutexLock lock(state->mutex);
    state->stats.kind = TierKind::kRedis;
  }
  return std::unique_ptr<RedisTier>(new RedisTier(std::move(state)));
}

RedisTier::RedisTier(std::unique_ptr<State> state) : state_(std::move(state)) {}
RedisTier::~RedisTier() = default;

Result<std::vector<FoundObject>> RedisTier::Lookup(const BlockQuery& query, int64_t deadline_us) {
  std::vector<std::string> names;
  names.reserve(query.blocks.size());
  for (const kv::ContentKey& block : query.blocks) {
    names.push_back(TagOf({.content = block, .numerics = query.numerics}, query.tenant) +
                    kIndexSuffix);
  }
  std::vector<RedisCommand> commands;
  for (const std::string& name : names) {
    commands.push_back({{"HGETALL", name}, name});
  }
  const auto replies = state_->client->Run(commands, deadline_us);
  std::vector<FoundObject> found;
  int64_t corrupt = 0;
  std::optional<Error> failed;
  for (size_t i = 0; i < replies.size(); ++i) {
    if (!replies[i]) {
      failed = replies[i].error();
      continue;
    }
    for (IndexedObject& object : ParseIndex(*replies[i], corrupt)) {
      if (object.meta.key.block.content == query.blocks[i] &&
          object.meta.key.block.numerics == query.numerics &&
          object.meta.key.tenant == query.tenant && object.meta.blocks.size() <= i + 1) {
        found.push_back({.last_block = static_cast<int32_t>(i),
                         .info = {.key = object.meta.key,
                                  .num_blocks = object.meta.num_blocks(),
                                  .quality = object.meta.quality,
                                  .size_bytes = object.size_bytes,
                                  .tier = TierKind::kRedis}});
      }
    }
  }
  if (failed) {
    state_->CountError(*failed);
  }
  {
    MutexLock lock(state_->mutex);
    ++state_->stats.lookups;
    state_->stats.corrupt += corrupt;
  }
  // One node of a cluster being away hides only what it has.
  if (failed && found.empty()) {
    return *failed;
  }
  return found;
}

Result<std::vector<bool>> RedisTier::Exists(std::span<const ObjectKey> keys, int64_t deadline_us) {
  std::deque<Names> names;
  std::vector<RedisCommand> commands;
  for (const ObjectKey& key : keys) {
    const Names& name = names.emplace_back(key);
    commands.push_back({{"EXISTS", name.value}, name.value});
  }
  std::vector<bool> exists;
  for (const auto& reply : state_->client->Run(commands, deadline_us)) {
    if (!reply) {
      state_->CountError(reply.error());
      return reply.error();
    }
    exists.push_back(reply->integer() != 0);
  }
  return exists;
}

std::vector<Result<Object>> RedisTier::Get(std::span<const ObjectKey> keys, int64_t deadline_us) {
  std::deque<Names> names;
  std::vector<RedisCommand> commands;
  for (const ObjectKey& key : keys) {
    const Names& name = names.emplace_back(key);
    commands.push_back({{"GET", name.value}, name.value});
  }
  std::vector<Result<Object>> objects;
  std::vector<ObjectKey> gone;
  std::optional<Error> failed;
  int64_t corrupt = 0;
  int64_t hits = 0;
  uint64_t read_bytes = 0;
  const auto replies = state_->client->Run(commands, deadline_us);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!replies[i]) {
      failed = replies[i].error();
      objects.emplace_back(replies[i].error());
      continue;
    }
    if (replies[i]->is_nil()) {
      gone.push_back(keys[i]);
      objects.emplace_back(Err(ErrorCode::kNotFound, "the object is not in redis"));
      continue;
    }
    auto object = ParseValue(*replies[i], keys[i]);
    if (object) {
      ++hits;
      read_bytes += object->bytes.size_bytes();
    } else if (object.error().code == ErrorCode::kCorrupt) {
      ++corrupt;
      gone.push_back(keys[i]);
    }
    objects.push_back(std::move(object));
  }
  state_->Forget(gone, deadline_us);
  if (failed) {
    state_->CountError(*failed);
  }
  MutexLock lock(state_->mutex);
  state_->stats.hits += hits;
  state_->stats.misses += static_cast<int64_t>(keys.size()) - hits;
  state_->stats.corrupt += corrupt;
  state_->stats.read_bytes += read_bytes;
  return objects;
}

std::vector<Result<void>> RedisTier::Put(std::span<const Object> objects, int64_t deadline_us) {
  struct Item {
    explicit Item(const ObjectKey& key) : names(key) {}
    Names names;
    std::string front;  // header and description; the bytes follow
    std::string entry;
    std::string ttl_ms;
    size_t first_command = 0;
  };
  std::vector<Result<void>> results(objects.size());
  std::deque<Item> items;
  std::vector<size_t> of_item;
  std::vector<RedisCommand> commands;
  for (size_t i = 0; i < objects.size(); ++i) {
    const ObjectMeta& meta = *objects[i].meta;
    results[i] = meta.Check();
    if (results[i] && objects[i].bytes.size_bytes() > state_->options.max_object_bytes) {
      results[i] = Err(ErrorCode::kExhausted, "an object of %zu bytes is too large for redis",
                       objects[i].bytes.size_bytes());
    }
    if (!results[i]) {
      MutexLock lock(state_->mutex);
      ++state_->stats.rejected;
      continue;
    }
    Item& item = items.emplace_back(meta.key);
    of_item.push_back(i);
    const std::vector<std::byte> description = EncodeMeta(meta);
    const auto payload = objects[i].bytes.bytes();
    ValueHeader header = {};
    header.magic = kValueMagic;
    header.version = kValueVersion;
    header.meta_bytes = static_cast<uint32_t>(description.size());
    header.crc = Crc32c(payload, Crc32c(description));
    header.payload_bytes = payload.size();
    item.front.append(reinterpret_cast<const char*>(&header), sizeof header);
    item.front.append(View(description));
    const RedisArg value(item.front,
                         {reinterpret_cast<const char*>(payload.data()), payload.size()}, {});
    item.entry = IndexEntry(meta, payload.size());
    item.first_command = commands.size();
    const int64_t ttl_us = meta.ttl_us > 0 ? meta.ttl_us : state_->options.default_ttl_us;
    const Names& names = item.names;
    if (ttl_us > 0) {
      item.ttl_ms = std::to_string(std::max<int64_t>(1, ttl_us / 1000));
      commands.push_back({{"SET", names.value, value, "NX", "PX", item.ttl_ms}, names.value});
    } else {
      commands.push_back({{"SET", names.value, value, "NX"}, names.value});
    }
    commands.push_back({{"HSET", names.index, names.field, item.entry}, names.index});
  }
  const auto replies = state_->client->Run(commands, deadline_us);
  std::vector<ObjectKey> half;
  std::optional<Error> failed;
  for (size_t k = 0; k < items.size(); ++k) {
    const auto& set = replies[items[k].first_command];
    const auto& index = replies[items[k].first_command + 1];
    const Object& object = objects[of_item[k]];
    if (set && index) {
      MutexLock lock(state_->mutex);
      if (set->is_nil()) {
        ++state_->stats.duplicates;
      } else {
        ++state_->stats.puts;
        state_->stats.written_bytes += object.bytes.size_bytes();
      }
      continue;
    }
    failed = set ? index.error() : set.error();
    results[of_item[k]] = *failed;
    if (!set && index) {
      half.push_back(object.meta->key);  // named, but not there
    }
    MutexLock lock(state_->mutex);
    ++state_->stats.rejected;
  }
  state_->Forget(half, deadline_us);
  if (failed) {
    state_->CountError(*failed);
  }
  return results;
}

Result<int64_t> RedisTier::Remove(std::span<const ObjectKey> keys, int64_t deadline_us) {
  std::deque<Names> names;
  std::vector<RedisCommand> commands;
  for (const ObjectKey& key : keys) {
    const Names& name = names.emplace_back(key);
    commands.push_back({{"HDEL", name.index, name.field}, name.index});
    commands.push_back({{"DEL", name.value}, name.value});
  }
  int64_t removed = 0;
  std::optional<Error> failed;
  const auto replies = state_->client->Run(commands, deadline_us);
  for (size_t i = 0; i < replies.size(); ++i) {
    if (!replies[i]) {
      failed = replies[i].error();
    } else if (i % 2 == 1) {
      removed += replies[i]->integer();
    }
  }
  {
    MutexLock lock(state_->mutex);
    state_->stats.removals += removed;
  }
  if (failed) {
    state_->CountError(*failed);
    return *failed;
  }
  return removed;
}

Result<int64_t> RedisTier::RemoveMatching(const RemoveFilter& filter, int64_t deadline_us) {
  const auto primaries = state_->client->CountPrimaries(deadline_us);
  if (!primaries) {
    state_->CountError(primaries.error());
    return primaries.error();
  }
  std::vector<std::string> indices;
  std::vector<std::string> cursors(*primaries, "0");
  std::vector<bool> through(*primaries, false);
  const std::string pattern = std::string("kvik:1:[{]*") + kIndexSuffix;
  for (bool more = true; more;) {
    std::vector<std::vector<std::string>> scans;
    for (size_t i = 0; i < cursors.size(); ++i) {
      if (through[i]) {
        scans.push_back({"PING"});
      } else {
        scans.push_back(
            {"SCAN", cursors[i], "MATCH", pattern, "COUNT", std::to_string(kScanCount)});
      }
    }
    const auto replies = state_->client->RunOnAll(scans, deadline_us);
    if (!replies) {
      state_->CountError(replies.error());
      return replies.error();
    }
    more = false;
    for (size_t i = 0; i < replies->size(); ++i) {
      if (through[i]) {
        continue;
      }
      const auto parts = (*replies)[i].elements();
      if (parts.size() != 2) {
        return Err(ErrorCode::kInternal, "redis answers SCAN in a form that is not known");
      }
      cursors[i] = std::string(parts[0].text());
      through[i] = cursors[i] == "0";
      more = more || !through[i];
      for (const RedisReply& name : parts[1].elements()) {
        indices.emplace_back(name.text());
      }
    }
  }
  std::sort(indices.begin(), indices.end());
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  std::vector<RedisCommand> commands;
  for (const std::string& index : indices) {
    commands.push_back({{"HGETALL", index}, index});
  }
  std::vector<ObjectMeta> metas;
  int64_t corrupt = 0;
  for (const auto& reply : state_->client->Run(commands, deadline_us)) {
    if (!reply) {
      state_->CountError(reply.error());
      return reply.error();
    }
    for (IndexedObject& object : ParseIndex(*reply, corrupt)) {
      metas.push_back(std::move(object.meta));
    }
  }
  std::vector<const ObjectMeta*> pointers;
  for (const ObjectMeta& meta : metas) {
    pointers.push_back(&meta);
  }
  std::vector<ObjectKey> keys;
  for (const size_t i : Matching(pointers, filter)) {
    keys.push_back(metas[i].key);
  }
  return keys.empty() ? Result<int64_t>(0) : Remove(keys, deadline_us);
}

TierStats RedisTier::stats() const {
  MutexLock lock(state_->mutex);
  return state_->stats;
}

}  // namespace kvik::store
