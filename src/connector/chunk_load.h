// SPDX-License-Identifier: Apache-2.0
// connector/chunk_load.h: one object on its way into blocks of the pool: frames are decoded on the
// pool's threads while the next ones arrive, once its head has said that it is the object that was
// asked for.
//
// Thread-safe. However it goes, it reports once, and when it has reported no thread writes to its
// blocks any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "connector/chunk_codec.h"
#include "connector/io_pool.h"
#include "connector/profile_set.h"
#include "connector/scratch_pool.h"
#include "kv/connector.h"
#include "kv/object.h"
#include "transfer/object_client.h"

namespace kvik::connector {

struct ChunkLoadSpec {
  kv::ObjectKey key;
  const CodecProfile* profile = nullptr;
  kv::KvGeometry geometry;
  std::span<std::byte> arena;
  int32_t first_block = 0;
  std::vector<BlockId> blocks;        // of the whole object; kNoBlock where it is not wanted
  std::vector<kv::BlockHash> hashes;  // of the same
  bool keep_bytes = false;            // for ChunkOutcome::bytes
};

struct ChunkOutcome {
  // Success: every wanted block holds its KV.
  Result<void> result;
  bool cancelled = false;    // by Cancel; `result` is an error then
  bool damaged = false;      // the bytes that came are not the object that was asked for
  kv::BlockQuality quality;  // the worse of what the sender and the object's head say
  codec::Fidelity fidelity = codec::Fidelity::kExact;  // as the frames say
  std::vector<kv::DroppedTokens> dropped;              // by layer
  kv::BlockHash parent;                                // as the head says
  std::vector<std::byte> bytes;  // of the object as it came, if they are to be kept
  uint64_t wire_bytes = 0;
  int64_t decode_us = 0;        // of all threads
  transfer::ObjectTimes times;  // at the sender
  transfer::StreamStats stats;
};

class ChunkLoad final : public transfer::GetSink, public std::enable_shared_from_this<ChunkLoad> {
 public:
  // Called once, from any thread, also from within Cancel.
  using Done = std::function<void(ChunkOutcome)>;

  // `io`, `scratch` and `clock` outlive the load.
  static std::shared_ptr<ChunkLoad> Create(ChunkLoadSpec spec, IoPool& io, ScratchPool& scratch,
                                           const Clock& clock, Done done);

  // The call whose sink this is, to end it early.
  void SetCall(std::shared_ptr<transfer::CallHandle> call) KVIK_EXCLUDES(mutex_);
  // Writes nothing more; reports as soon as what is being written is written.
  void Cancel() KVIK_EXCLUDES(mutex_);
  [[nodiscard]] uint64_t received_bytes() const KVIK_EXCLUDES(mutex_);

  void OnObject(size_t index, const kv::ObjectInfo& info) override KVIK_EXCLUDES(mutex_);
  void OnBytes(size_t index, transfer::SharedBytes bytes) override KVIK_EXCLUDES(mutex_);
  void OnObjectTimes(size_t index, const transfer::ObjectTimes& times) override
      KVIK_EXCLUDES(mutex_);
  void OnObjectEnd(size_t index, const Result<void>& outcome) override KVIK_EXCLUDES(mutex_);
  void OnDone(const Result<void>& outcome, const transfer::StreamStats& stats) override
      KVIK_EXCLUDES(mutex_);

 private:
  // What is to be done after the lock is let go.
  struct Act {
    std::shared_ptr<transfer::CallHandle> cancel;
    bool report = false;
    void operator()(ChunkLoad& load);
  };
  ChunkLoad(ChunkLoadSpec spec, IoPool& io, ScratchPool& scratch, const Clock& clock, Done done);

  [[nodiscard]] ChunkPages Pages() const;
  Result<std::optional<ObjectHead>> Identify(std::span<const std::byte>& rest);
  void Cut() KVIK_EXCLUDES(mutex_);
  void Decode(const std::vector<std::byte>& frame) KVIK_EXCLUDES(mutex_);
  void StartCutting() KVIK_REQUIRES(mutex_);
  void Stop(Error error, bool damaged) KVIK_REQUIRES(mutex_);
  [[nodiscard]] Act Settle() KVIK_REQUIRES(mutex_);

  const ChunkLoadSpec spec_;
  IoPool& io_;
  ScratchPool& scratch_;
  const Clock& clock_;

  mutable Mutex mutex_;
  Done done_ KVIK_GUARDED_BY(mutex_);
  std::shared_ptr<transfer::CallHandle> call_ KVIK_GUARDED_BY(mutex_);
  std::vector<transfer::SharedBytes> incoming_ KVIK_GUARDED_BY(mutex_);
  // Of the one task that cuts.
  std::vector<std::byte> kept_;
  std::vector<std::byte> front_;  // of the object, until its head is whole
  bool identified_ = false;       // it is the one that was asked for
  codec::StreamReader reader_;
  bool cutting_ KVIK_GUARDED_BY(mutex_) = false;
  int writing_ KVIK_GUARDED_BY(mutex_) = 0;  // tasks that may write to the blocks now
  int queued_ KVIK_GUARDED_BY(mutex_) = 0;   // frames that were cut and wait
  LayerTally tally_ KVIK_GUARDED_BY(mutex_);
  bool stopped_ KVIK_GUARDED_BY(mutex_) = false;  // it has failed or was cancelled
  bool announced_ KVIK_GUARDED_BY(mutex_) = false;
  bool ended_ KVIK_GUARDED_BY(mutex_) = false;  // all bytes are there
  bool call_over_ KVIK_GUARDED_BY(mutex_) = false;
  bool whole_ KVIK_GUARDED_BY(mutex_) = false;  // the stream's own end was read
  bool reported_ KVIK_GUARDED_BY(mutex_) = false;
  ChunkOutcome outcome_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::connector
