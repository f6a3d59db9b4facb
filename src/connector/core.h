// SPDX-License-Identifier: Apache-2.0
// connector/core.h: what stands behind connector.h: tickets, their look-ups and loads, under one
// lock that is never held while a source is called. Shared by whoever still has an answer to give.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/rng.h"
#include "connector/connector.h"
#include "connector/event_queue.h"
#include "connector/io_pool.h"
#include "connector/job_index.h"
#include "connector/load_choice.h"
#include "connector/load_job.h"
#include "connector/peer_source.h"
#include "connector/scratch_pool.h"
#include "connector/source_state.h"
#include "connector/store_source.h"
#include "connector/storer.h"

namespace kvik::connector {

// What is left to do once the lock is let go.
struct Later {
  std::vector<std::pair<TicketPtr, LoadJobPtr>> start;
  std::vector<std::shared_ptr<ChunkLoad>> cancel;
  std::vector<std::pair<std::shared_ptr<ObjectSource>, kv::ObjectKey>> discard;
  std::vector<NewObject> keep;
};

class Core final : public std::enable_shared_from_this<Core> {
 public:
  Core(ConnectorOptions options, ConnectorParts parts)
      : options_(std::move(options)),
        clock_(*parts.clock),
        profiles_(std::move(parts.profiles)),
        endpoint_(parts.endpoint),
        dial_(std::move(parts.dial)),
        events_(std::make_shared<EventQueue>()),
        io_(options_.io_threads, clock_),
        store_io_(std::min(options_.io_threads, 1), clock_),
        encode_io_(std::min(options_.io_threads, 1), clock_, IoPriority::kYielding),
        put_io_(std::min(options_.io_threads, 1), clock_, IoPriority::kYielding),
        rng_(options_.seed) {}

  Result<void> Open(const ConnectorParts& parts);
  void Shutdown();

  // As kv::Connector.
  void Attach(const kv::ConnectorHost& host);
  void Detach();
  void Ask(const kv::LoadRequest& request);
  std::vector<kv::BlockRange> Claim(kv::TicketId id, std::span<const kv::BlockRange> missing);
  void Load(kv::TicketId id, const kv::BlockRange& range, std::span<const BlockId> blocks);
  int64_t Yield(kv::TicketId id, int32_t front_block);
  std::shared_ptr<const kv::TransferReport> Close(kv::TicketId id, const kv::TicketFate& fate);
  bool Offer(const kv::SealedBlocks& sealed);
  void NeedRoom(int32_t missing_blocks);
  std::vector<kv::ConnectorEvent> Poll() { return events_->Take(); }

  ConnectorCounters counters() const;
  std::vector<SourceReport> sources() const;
  std::vector<std::string> Decisions(size_t limit) const;
  void Flush() {
    if (storer_ != nullptr) {
      storer_->Flush();
    }
  }
  bool RunDue() {
    return io_.RunDue() || store_io_.RunDue() || encode_io_.RunDue() || put_io_.RunDue();
  }

 private:
  // Someone that requests have named.
  struct Peer {
    size_t source = 0;    // its place among sources_, for as long as anybody holds the Peer
    int64_t used_us = 0;  // when it was named last
  };

  [[nodiscard]] std::unique_ptr<SourceState> MakeState(std::shared_ptr<ObjectSource> source,
                                                       double initial_bytes_per_s) const;
  void AddSource(std::shared_ptr<ObjectSource> source, double initial_bytes_per_s)
      KVIK_REQUIRES(mutex_);
  [[nodiscard]] std::shared_ptr<PeerSource> MakePeer(const char* kind,
                                                     const std::string& address) const {
    transfer::ObjectClient::Options client;
    client.address = address;
    if (dial_) {
      client.dial = [dial = dial_, address](int64_t deadline_us,
                                            transfer::Endpoint::Connected done) {
        dial(address, deadline_us, std::move(done));
      };
    }
    return std::make_shared<PeerSource>(kind, transfer::ObjectClient::Create(*endpoint_, client),
                                        address, options_.tenant, clock_);
  }
  // Null: it cannot be asked. `forgotten`: who made room; to be destroyed without the lock.
  std::shared_ptr<const Peer> PeerOf(const std::string& address,
                                     std::unique_ptr<SourceState>& forgotten) KVIK_REQUIRES(mutex_);
  void OnFound(const TicketPtr& ticket, size_t source,
               Result<std::vector<transfer::FoundObject>> found);
  void ProbeIfSilent(size_t index, const std::shared_ptr<ObjectSource>& source)
      KVIK_EXCLUDES(mutex_);
  void Probe(size_t index, const std::shared_ptr<ObjectSource>& source, uint64_t bytes)
      KVIK_EXCLUDES(mutex_);
  [[nodiscard]] LoadRules Rules(const Ticket& ticket) const KVIK_REQUIRES(mutex_);

  void TakeReady(const TicketPtr& ticket, Later& later) KVIK_REQUIRES(mutex_);
  void GoOn(const TicketPtr& ticket, Later& later) KVIK_REQUIRES(mutex_);
  void Do(Later later);
  void Start(const TicketPtr& ticket, const LoadJobPtr& job);
  void OnChunk(const TicketPtr& ticket, const LoadJobPtr& job, ChunkOutcome outcome);
  void Finish(const TicketPtr& ticket, const LoadJobPtr& job, ChunkOutcome outcome);
  [[nodiscard]] static NewObject OriginalOf(const Ticket& ticket, const LoadJob& job,
                                            ChunkOutcome& outcome);
  void Deliver(Ticket& ticket, const LoadJob& job, const ChunkOutcome& outcome)
      KVIK_REQUIRES(mutex_);
  void Arrived(Ticket& ticket, const LoadJob& job, const ChunkOutcome& outcome,
               const kv::BlockQuality& quality) KVIK_REQUIRES(mutex_);
  // To and from Ticket::waiting.
  void Wait(const TicketPtr& ticket, const LoadJobPtr& job) KVIK_REQUIRES(mutex_);
  void StopWaiting(Ticket& ticket, const LoadJobPtr& job) KVIK_REQUIRES(mutex_);
  void Share(const LoadJobPtr& loader, const TicketPtr& ticket, const LoadJobPtr& job)
      KVIK_REQUIRES(mutex_);
  void ShareWaiting(const LoadJobPtr& loader, const Ticket& owner) KVIK_REQUIRES(mutex_);
  void StopSharing(Ticket& ticket, const LoadJobPtr& job) KVIK_REQUIRES(mutex_);
  void CopyToSharers(const LoadJob& loader);
  void SettleSharers(const LoadJobPtr& loader, const ChunkOutcome& outcome, Later& later)
      KVIK_REQUIRES(mutex_);
  void NotComing(Ticket& ticket, const kv::BlockRange& range, kv::LoadEnd why)
      KVIK_REQUIRES(mutex_);
  void Fail(Ticket& ticket, size_t source, const Error& error) KVIK_REQUIRES(mutex_);
  [[nodiscard]] kv::BlockQuality QualityOf(const Ticket& ticket, const kv::ObjectInfo& info) const;
  [[nodiscard]] std::vector<kv::ObjectKey> ToPrefetch(const Ticket& ticket, size_t source)
      KVIK_REQUIRES(mutex_);
  [[nodiscard]] int32_t FoundBlocks(const Ticket& ticket) const KVIK_REQUIRES(mutex_);
  void Observe(Ticket& ticket) KVIK_REQUIRES(mutex_);
  [[nodiscard]] std::shared_ptr<const kv::TransferReport> ReportOf(const Ticket& ticket) const
      KVIK_REQUIRES(mutex_);
  void ArmSweep();

  const ConnectorOptions options_;
  const Clock& clock_;
  const std::shared_ptr<const ProfileSet> profiles_;
  transfer::Endpoint* const endpoint_;
  const decltype(ConnectorParts::dial) dial_;
  const std::shared_ptr<EventQueue> events_;
  ScratchPool scratch_;
  WantIds wants_;
  IoPool io_;                        // what requests wait for
  IoPool store_io_;                  // likewise: the store's blocking calls
  IoPool encode_io_;                 // what is stored: nobody waits for it
  IoPool put_io_;                    // and then given to the store
  std::shared_ptr<Storer> storer_;   // may be null
  std::shared_ptr<LiveCache> live_;  // may be null
  ObjectNode* node_ = nullptr;
  std::shared_ptr<StoreSource> store_source_;
  const CodecProfile* fixed_ = nullptr;

  mutable Mutex mutex_;
  kv::ConnectorHost host_ KVIK_GUARDED_BY(mutex_);
  bool moves_bytes_ KVIK_GUARDED_BY(mutex_) = false;  // the host has an arena
  bool detached_ KVIK_GUARDED_BY(mutex_) = false;
  Rng rng_ KVIK_GUARDED_BY(mutex_);
  control::ComputePace pace_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<SourceState>> sources_ KVIK_GUARDED_BY(mutex_);
  size_t common_sources_ KVIK_GUARDED_BY(mutex_) = 0;  // asked for every request
  std::map<std::string, std::shared_ptr<Peer>> peers_ KVIK_GUARDED_BY(mutex_);  // by address
  std::unordered_map<kv::TicketId, TicketPtr> tickets_ KVIK_GUARDED_BY(mutex_);
  JobIndex jobs_ KVIK_GUARDED_BY(mutex_);
  ConnectorCounters counters_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::connector
