// SPDX-License-Identifier: Apache-2.0
#include "connector/peer_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "connector/object_node.h"

namespace kvik::connector {
namespace {

// Sends an object once the peer wants it.
class PutSender final : public transfer::PutSink {
 public:
  PutSender(transfer::SharedBytes object, ObjectTarget::Stored done)
      : object_(std::move(object)), done_(std::move(done)) {}

  void OnAnswer(transfer::PutAnswer answer,
                const std::shared_ptr<transfer::PutHandle>& put) override KVIK_EXCLUDES(mutex_) {
    if (answer == transfer::PutAnswer::kGo) {
      MutexLock lock(mutex_);
      handle_ = put;
    }
    Send();
  }
  void OnWritable() override { Send(); }
  void OnDone(const Result<void>& outcome, const transfer::StreamStats& /*stats*/) override
      KVIK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      handle_ = nullptr;
    }
    done_(outcome);
  }

 private:
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  // As much as there is room for.
  void Send() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (handle_ != nullptr) {
      if (at_ == object_.size_bytes()) {
        std::exchange(handle_, nullptr)->Commit();
        return;
      }
      const size_t size = std::min(kPieceBytes, object_.size_bytes() - at_);
      if (handle_->Append(object_.Slice(at_, size)) != transfer::SendResult::kTaken) {
        return;
      }
      at_ += size;
    }
  }

  const transfer::SharedBytes object_;
  const ObjectTarget::Stored done_;
  Mutex mutex_;
  std::shared_ptr<transfer::PutHandle> handle_ KVIK_GUARDED_BY(mutex_);  // while there is more
  size_t at_ KVIK_GUARDED_BY(mutex_) = 0;
};

}  // namespace

PeerSource::PeerSource(const std::string& kind, std::unique_ptr<transfer::ObjectClient> client,
                       const std::string& address, std::string tenant, const Clock& clock)
    : name_(kind + " " + address),
      tenant_(std::move(tenant)),
      clock_(clock),
      outage_(std::make_shared<Outage>(name_)),
      client_(std::move(client)) {
  client_->Warm();
}

void PeerSource::Lookup(const transfer::LookupRequest& request, int64_t deadline_us, Found done) {
  client_->Lookup(request, deadline_us,
                  [refused = refused_, outage = outage_, name = name_,
                   done = std::move(done)](Result<std::vector<transfer::FoundObject>> found) {
                    // Another model or layout is a mistake of whoever runs both, and would be
                    // silent: everything is computed.
                    const bool unfit = !found && found.error().code == ErrorCode::kUnsupported;
                    if (unfit != refused->exchange(unfit) && unfit) {
                      LogError("%s: %s", name.c_str(), found.error().message.c_str());
                    }
                    if (found) {
                      outage->Worked();
                    } else if (found.error().code == ErrorCode::kUnavailable) {
                      outage->Failed(found.error());
                    }
                    done(std::move(found));
                  });
}

std::shared_ptr<transfer::CallHandle> PeerSource::Get(const kv::ObjectKey& key, int32_t num_blocks,
                                                      int64_t deadline_us,
                                                      std::shared_ptr<transfer::GetSink> sink,
                                                      uint8_t priority) {
  return client_->Get(
      {.keys = {key}, .tenant = tenant_, .num_blocks = {static_cast<uint32_t>(num_blocks)}},
      deadline_us, std::move(sink), priority);
}

void PeerSource::Discard(const kv::ObjectKey& key) {
  constexpr int64_t kPatienceUs = 5'000'000;
  client_->Remove({.keys = {key}, .tenant = tenant_}, clock_.NowMicros() + kPatienceUs,
                  [](const Result<size_t>&) {});
}

void PeerSource::Probe(uint64_t bytes, int64_t deadline_us, const Probed& done) {
  const auto size = static_cast<uint32_t>(std::min<uint64_t>(bytes, kMaxProbeBytes));
  std::vector<std::byte> request(sizeof(size));
  std::memcpy(request.data(), &size, sizeof(size));
  // What came by the deadline counts, too, as does what else came back to back in this time.
  const transfer::ConnectionStats before = client_->stats().connection;
  client_->Call(kProbeCall, transfer::SharedBytes::Own(std::move(request)), deadline_us,
                [weak = std::weak_ptr(client_), before, asked_us = clock_.NowMicros(),
                 &clock = clock_, done](const Result<transfer::SharedBytes>& answer) {
                  const auto client = weak.lock();
                  if (client == nullptr) {
                    return;  // and the clock may be gone
                  }
                  const transfer::ConnectionStats after = client->stats().connection;
                  control::Goodput::Probe probe;
                  if (answer.has_value()) {
                    probe.bytes = answer->size_bytes();
                    probe.elapsed_us = clock.NowMicros() - asked_us;
                  }
                  if (after.wire_bytes > before.wire_bytes && after.wire_us > before.wire_us) {
                    probe.wire_bytes = after.wire_bytes - before.wire_bytes;
                    probe.wire_us = after.wire_us - before.wire_us;
                  }
                  done(probe);
                });
}

std::optional<control::MachineSpeeds> PeerSource::sender_speeds() const {
  const auto hello = client_->peer();
  if (!hello.has_value() || hello->extra.empty()) {
    return std::nullopt;
  }
  auto speeds = control::ParseSpeeds(
      {reinterpret_cast<const char*>(hello->extra.data()), hello->extra.size()});
  if (!speeds.has_value()) {
    return std::nullopt;
  }
  return std::move(speeds).value();
}

void PeerSource::Put(NewObject object, int64_t deadline_us, Stored done) {
  transfer::PutRequest request;
  request.info = object.info;
  request.info.size_bytes = object.bytes.size_bytes();
  request.tenant = tenant_;
  client_->Put(request, deadline_us,
               std::make_shared<PutSender>(std::move(object.bytes), std::move(done)));
}

std::vector<std::byte> HelloExtra(const control::MachineSpeeds& speeds) {
  const std::string text = control::PrintSpeeds(speeds);
  std::vector<std::byte> extra(text.size());
  std::memcpy(extra.data(), text.data(), text.size());
  return extra;
}

}  // namespace kvik::connector
