// SPDX-License-Identifier: Apache-2.0
// connector/chunk_sender.h: one chunk of live blocks on its way to a peer: layers are encoded on
// the pool's threads, a few ahead of what the peer has taken, and sent in order.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "connector/chunk_codec.h"
#include "connector/event_queue.h"
#include "connector/io_pool.h"
#include "connector/profile_set.h"
#include "connector/scratch_pool.h"
#include "kv/connector.h"
#include "kv/object.h"
#include "transfer/object_server.h"

namespace kvik::connector {

struct ChunkSenderSpec {
  const CodecProfile* profile = nullptr;
  kv::KvGeometry geometry;
  std::span<std::byte> arena;
  int32_t first_block = 0;
  std::vector<HeldBlockPtr> blocks;
  kv::BlockHash parent;
  kv::BlockQuality source;  // of the blocks, the worst
  kv::ObjectInfo info;
  size_t index = 0;       // of the reply
  int64_t waited_us = 0;  // for its blocks
};

struct ChunkSent {
  bool ok = false;
  uint64_t wire_bytes = 0;
  int64_t encode_us = 0;
};

class ChunkSender final : public std::enable_shared_from_this<ChunkSender> {
 public:
  // Called once, when the object has ended or failed and the blocks are let go. From any thread,
  // also from within Stop.
  using Done = std::function<void(const ChunkSent&)>;

  // `io`, `scratch` and `clock` outlive the sender.
  static std::shared_ptr<ChunkSender> Create(ChunkSenderSpec spec,
                                             std::shared_ptr<transfer::GetReply> reply, IoPool& io,
                                             ScratchPool& scratch, const Clock& clock, Done done);
  void Start() KVIK_EXCLUDES(mutex_);
  void OnRoom() KVIK_EXCLUDES(mutex_);
  // Reads nothing more; what is being read is let go as soon as it is read.
  void Stop() KVIK_EXCLUDES(mutex_);

 private:
  ChunkSender(ChunkSenderSpec spec, std::shared_ptr<transfer::GetReply> reply, IoPool& io,
              ScratchPool& scratch, const Clock& clock, Done done);
  void EncodeOne() KVIK_EXCLUDES(mutex_);
  void PostTasks() KVIK_REQUIRES(mutex_);
  void Emit() KVIK_REQUIRES(mutex_);
  [[nodiscard]] bool Over() KVIK_REQUIRES(mutex_);  // true: report, once
  void Report() KVIK_EXCLUDES(mutex_);

  const ChunkSenderSpec spec_;
  const std::shared_ptr<transfer::GetReply> reply_;
  IoPool& io_;
  ScratchPool& scratch_;
  const Clock& clock_;
  std::vector<BlockId> ids_;

  Mutex mutex_;
  Done done_ KVIK_GUARDED_BY(mutex_);
  std::vector<HeldBlockPtr> blocks_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::byte> stream_ KVIK_GUARDED_BY(mutex_);  // written and not sent yet
  codec::StreamWriter writer_ KVIK_GUARDED_BY(mutex_);
  std::map<int32_t, std::vector<std::byte>> encoded_ KVIK_GUARDED_BY(mutex_);  // by layer
  int32_t next_encode_ KVIK_GUARDED_BY(mutex_) = 0;
  int32_t next_send_ KVIK_GUARDED_BY(mutex_) = 0;
  transfer::SharedBytes unsent_ KVIK_GUARDED_BY(mutex_);  // the peer had no room for it
  int tasks_ KVIK_GUARDED_BY(mutex_) = 0;
  bool finished_ KVIK_GUARDED_BY(mutex_) = false;  // the end was written
  bool stopped_ KVIK_GUARDED_BY(mutex_) = false;
  bool reported_ KVIK_GUARDED_BY(mutex_) = false;
  ChunkSent sent_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::connector
