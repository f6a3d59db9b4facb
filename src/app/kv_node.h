// SPDX-License-Identifier: Apache-2.0
// app/kv_node.h: everything through which KV of an engine comes and goes, wired once: profiles and
// their speeds, the store of this process, the transfer endpoint and the connector.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/kv_store.h"
#include "app/runtime.h"
#include "base/clock.h"
#include "base/result.h"
#include "connector/connector.h"
#include "connector/object_node.h"
#include "connector/profile_set.h"
#include "server/kv_metrics.h"
#include "server/openai_server.h"
#include "store/store.h"
#include "transfer/endpoint.h"
#include "transfer/object_server.h"

namespace kvik::app {

struct KvNodeOptions {
  transfer::Role role = transfer::Role::kServer;
  std::string listen;              // "host:port" for peers; empty: peers get no KV here
  std::string link;                // as UseLink
  std::vector<std::string> pools;  // kvik://host:port
  KvStoreOptions store;            // of this process
  std::string profiles_path;       // of a profile library; empty: raw and lossless
  std::string profile = connector::kAdaptive;
  std::string default_workload;
  connector::FailurePolicy failure_policy = connector::FailurePolicy::kRecompute;
};

// Members in order of dependence. Outlives the engine that is connected to it.
class KvNode {
 public:
  // `runtime` has a model and its costs; it and `clock` outlive the node. `store_events`: of the
  // store, may be null. Listens when it returns.
  static Result<std::unique_ptr<KvNode>> Create(const KvNodeOptions& options,
                                                const Runtime& runtime, const Clock& clock,
                                                std::shared_ptr<store::EventSink> store_events);
  ~KvNode();
  KvNode(const KvNode&) = delete;
  KvNode& operator=(const KvNode&) = delete;

  [[nodiscard]] connector::Connector& connector() { return *connector_; }
  // Where peers come for KV; none: nowhere.
  [[nodiscard]] const std::optional<server::KvAddress>& address() const { return address_; }
  // As connector::CheckQuality, of --kv-profile.
  [[nodiscard]] Result<void> CheckQuality(const kv::MinQuality& quality) const;

  // Thread-safe.
  [[nodiscard]] server::KvReadings Readings() const;

  // What was taken reaches the store. After the engine has let go of the connector.
  void Finish();

 private:
  KvNode() = default;

  std::string profile_;
  std::shared_ptr<const connector::ProfileSet> profiles_;
  std::unique_ptr<store::Store> store_;  // null: none
  std::unique_ptr<connector::ObjectNode> node_;
  std::unique_ptr<transfer::StreamHandler> objects_;
  std::unique_ptr<transfer::Endpoint> endpoint_;
  std::unique_ptr<connector::Connector> connector_;
  std::optional<server::KvAddress> address_;
};

}  // namespace kvik::app
