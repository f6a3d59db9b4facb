// SPDX-License-Identifier: Apache-2.0
// store/redis_client.h: batches of commands to a Redis server or cluster, one round trip per node.
//
// In a cluster every command goes to the node that owns its key's slot; MOVED and ASK are followed,
// and the map of slots is fetched again when it turns out to be old. A node that cannot be reached
// is left alone for a while that doubles with every failure, so that a dead one costs nobody its
// timeout over and over. Thread-safe: each call has connections of its own, which are kept.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace kvik::store {

struct RedisOptions {
  // "redis://[user:password@]host:port[,host:port...][/db]" or "unix:///path". More addresses are
  // further ways into the same cluster. Whether it is a cluster it says itself.
  std::string url;
  int64_t connect_timeout_us = 1'000'000;
  int64_t call_timeout_us = 5'000'000;  // of a batch that has no deadline of its own
  int64_t min_backoff_us = 100'000;
  int64_t max_backoff_us = 5'000'000;
};

// Of a key, as Redis Cluster computes it: CRC16 (XMODEM) of what stands between the first { and the
// next }, if that is anything, else of all, modulo 16384.
uint16_t RedisSlot(std::string_view key);

// One answer. Borrowed views live as long as the reply.
class RedisReply {
 public:
  // `raw` is a redisReply and frees itself.
  explicit RedisReply(std::shared_ptr<void> raw) : raw_(std::move(raw)) {}
  [[nodiscard]] bool is_nil() const;
  [[nodiscard]] int64_t integer() const;        // 0 when it is none
  [[nodiscard]] std::string_view text() const;  // of strings and statuses; "" when it is neither
  [[nodiscard]] std::vector<RedisReply> elements() const;  // none when it is no array
  // Keeps the memory of text() alive.
  [[nodiscard]] const std::shared_ptr<void>& owner() const { return raw_; }

 private:
  std::shared_ptr<void> raw_;
};

// An argument, in up to three parts that are sent one after the other without being copied
// together.
struct RedisArg {
  RedisArg(std::string_view text) : parts{text, {}, {}} {}                 // NOLINT
  RedisArg(const std::string& text) : RedisArg(std::string_view(text)) {}  // NOLINT
  RedisArg(const char* text) : RedisArg(std::string_view(text)) {}         // NOLINT
  RedisArg(std::string_view a, std::string_view b, std::string_view c) : parts{a, b, c} {}
  [[nodiscard]] size_t size() const { return parts[0].size() + parts[1].size() + parts[2].size(); }
  std::array<std::string_view, 3> parts;
};

// All borrowed until Run returns.
struct RedisCommand {
  std::vector<RedisArg> args;  // args[0] is the command's name
  std::string_view key;        // decides where it goes
};

class RedisClient {
 public:
  // kInvalidInput for a URL that is none. Connects at the first call. `clock` outlives the client.
  static Result<std::unique_ptr<RedisClient>> Create(const RedisOptions& options,
                                                     const Clock& clock);
  ~RedisClient();
  RedisClient(const RedisClient&) = delete;
  RedisClient& operator=(const RedisClient&) = delete;

  // [commands.size()]. Commands of one key are executed in order. Each kUnavailable (not reached,
  // the cluster is down), kTimeout, kExhausted (the server is out of memory) or kInternal (it calls
  // the command wrong). After an error the command may have been executed.
  std::vector<Result<RedisReply>> Run(std::span<const RedisCommand> commands, int64_t deadline_us);
  // One command to every primary; the first error.
  Result<std::vector<RedisReply>> RunOnAll(const std::vector<std::vector<std::string>>& args_of,
                                           int64_t deadline_us);
  // How many primaries there are, as far as is known; asks when nothing is.
  Result<size_t> CountPrimaries(int64_t deadline_us);

 private:
  struct State;
  explicit RedisClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvik::store
