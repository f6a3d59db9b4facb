// SPDX-License-Identifier: Apache-2.0
// connector/peer_source.h: another process over transfer: a pool node, or an engine whose live
// cache answers.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/outage.h"
#include "connector/source.h"
#include "transfer/endpoint.h"
#include "transfer/object_client.h"

namespace kvik::connector {

class PeerSource final : public ObjectSource, public ObjectTarget {
 public:
  // "pool 10.0.0.7:4711": `kind` and the client's address are its name. `tenant` goes with every
  // call. `clock` is the endpoint's and outlives the source.
  PeerSource(const std::string& kind, std::unique_ptr<transfer::ObjectClient> client,
             const std::string& address, std::string tenant, const Clock& clock);

  [[nodiscard]] std::string name() const override { return name_; }
  void Lookup(const transfer::LookupRequest& request, int64_t deadline_us, Found done) override;
  std::shared_ptr<transfer::CallHandle> Get(const kv::ObjectKey& key, int32_t num_blocks,
                                            int64_t deadline_us,
                                            std::shared_ptr<transfer::GetSink> sink,
                                            uint8_t priority) override;
  void Discard(const kv::ObjectKey& key) override;
  void Probe(uint64_t bytes, int64_t deadline_us, const Probed& done) override;
  // From the peer's hello.
  [[nodiscard]] std::optional<control::MachineSpeeds> sender_speeds() const override;
  [[nodiscard]] std::optional<transfer::PeerStats> link() const override {
    return client_->stats();
  }
  void Put(NewObject object, int64_t deadline_us, Stored done) override;

  [[nodiscard]] transfer::ObjectClient& client() { return *client_; }

 private:
  const std::string name_;
  const std::string tenant_;
  const Clock& clock_;
  // It cannot be reached, and that has been said. Shared with answers on their way.
  const std::shared_ptr<Outage> outage_;
  // The peer was refused, or refuses us, and that has been said. Shared with answers on their way.
  const std::shared_ptr<std::atomic<bool>> refused_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<transfer::ObjectClient> client_;  // weakly shared with calls
};

// What `hello.extra` holds between processes of kvik: this machine's speeds.
[[nodiscard]] std::vector<std::byte> HelloExtra(const control::MachineSpeeds& speeds);

}  // namespace kvik::connector
