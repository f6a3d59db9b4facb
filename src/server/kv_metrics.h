// SPDX-License-Identifier: Apache-2.0
// server/kv_metrics.h: what /metrics shows of KV that is stored, served and moved, under vLLM's
// names where there are such.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connector/connector.h"
#include "connector/counters.h"
#include "connector/object_node.h"
#include "events/publisher.h"
#include "store/store.h"
#include "transfer/endpoint.h"

namespace kvik::server {

// Of the parts that a process has.
struct KvReadings {
  std::optional<connector::ConnectorCounters> connector;
  std::vector<connector::SourceReport> sources;
  std::optional<connector::ObjectNodeCounters> node;
  std::optional<store::StoreStats> store;
  std::optional<transfer::EndpointStats> port;
  std::optional<events::PublisherStats> events;
};

// Thread-safe.
class KvMetrics {
 public:
  explicit KvMetrics(const std::map<std::string, std::string>& labels);
  ~KvMetrics();

  // Lines of /metrics.
  [[nodiscard]] std::string Render(const KvReadings& readings);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::server
