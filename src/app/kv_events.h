// SPDX-License-Identifier: Apache-2.0
// app/kv_events.h: what a server tells routers of the KV it holds: events of its cache and of its
// store, published together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "events/config.h"
#include "events/publisher.h"
#include "kv/block_events.h"
#include "kv/block_key.h"
#include "server/openai_response.h"
#include "store/events.h"

namespace kvik::app {

// Events at any free ports of the interface that the server listens on. kInvalidInput: `host` has
// no address.
[[nodiscard]] Result<events::PublisherConfig> EventsAt(const std::string& host);

// Thread-safe.
class KvEvents {
 public:
  struct Options {
    events::PublisherConfig config;
    std::function<int32_t()> block_size_tokens;  // any thread; 0: not known
    // Of stored objects, which concern requests of this quality and numerics; none: all do.
    std::optional<kv::MinQuality> accepted;
    kv::NumericsTag numerics;
  };
  static Result<std::unique_ptr<KvEvents>> Create(Options options);

  // Of the cache.
  void OnCache(std::vector<kv::BlockEvent> events) { publisher_->Publish(std::move(events)); }
  // For a store, which may outlive this.
  [[nodiscard]] std::shared_ptr<store::EventSink> store_sink() const { return sink_; }

  // What /health says of them; none: nobody can come for them.
  [[nodiscard]] std::optional<server::EventsAddress> address() const;
  [[nodiscard]] events::PublisherStats stats() const { return publisher_->stats(); }

 private:
  class StoreSink;
  KvEvents(const Options& options, std::unique_ptr<events::Publisher> publisher);

  const std::string topic_;
  std::shared_ptr<events::Publisher> publisher_;
  std::shared_ptr<store::EventSink> sink_;
};

}  // namespace kvik::app
