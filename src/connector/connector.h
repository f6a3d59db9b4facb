// SPDX-License-Identifier: Apache-2.0
// connector/connector.h: kv::Connector: KV of requests is found, priced, loaded beside the engine's
// computing, and stored or served to peers when it is new.
//
//   profiles = ProfileSet::Create(model facts, library, ...)
//   store    = store::Store::Open(...)                    may be missing
//   node     = ObjectNode::Create(..., store, clock)      what others get from this process
//   endpoint = transfer::Endpoint::Create(..., MakeObjectServer(*node))
//   connector = Create(options, {clock, profiles, store, endpoint, node})
//
// Loads are planned per request: which blocks (control/load_plan.h), in which encoding
// (control/controller.h), from where. Exact requests see only exact KV of the engine's own
// numerics. Whatever goes wrong is a block that does not come, and a counter.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "connector/counters.h"
#include "connector/live_cache.h"
#include "connector/object_node.h"
#include "connector/profile_set.h"
#include "connector/source.h"
#include "control/controller.h"
#include "control/goodput.h"
#include "control/speeds.h"
#include "kv/block_key.h"
#include "kv/connector.h"
#include "kv/cost_model.h"
#include "store/store.h"
#include "transfer/endpoint.h"

namespace kvik::connector {

// --kv-failure-policy: what becomes of a request whose KV was promised by a peer
// (TransferParams::peer) and did not come.
enum class FailurePolicy : uint8_t {
  kRecompute,  // it is computed here
  kFail,       // the request ends with an error
};

inline constexpr const char* kAdaptive = "adaptive";

struct ConnectorOptions {
  // --kv-profile: kAdaptive, kRawName, or a profile's name: nothing else is loaded or stored then.
  std::string kv_profile = kAdaptive;
  // --default-workload: of requests that name none.
  std::string default_workload;
  FailurePolicy failure_policy = FailurePolicy::kRecompute;
  // --pool kvik://host:port: asked for every request, given what is new.
  std::vector<std::string> pools;
  std::string tenant;

  // BlockHasher::root() of this engine's hasher.
  kv::BlockHash root;
  // This machine's, of prefill and of the codec. Profiles without speeds are not used when
  // adaptive.
  kv::CostModel compute = kv::CostModel::Default();
  control::MachineSpeeds speeds;
  int32_t step_tokens = 512;  // that the engine computes at a time
  // Of the engine's speed, what is left while chunks are decoded beside it: (0, 1].
  double compute_share = 0.8;
  // How many times computing counts, in the choice, where a peer has computed the same for this
  // process: a decode node that prefills holds up everybody who decodes there.
  double promised_compute_weight = 50;

  // What new KV is stored as, by name; empty: ProfileSet::ForStoring, or kv_profile when it is one.
  std::vector<std::string> store_profiles;
  bool store_new_kv = true;  // offer sealed blocks to the store and the pools
  int64_t put_timeout_us = 30'000'000;
  // Of the pool's blocks, that wait to be stored at most; beyond it new ones are not taken.
  double max_storing_share = 0.25;

  int io_threads = 2;  // that encode and decode; 0: RunDue, for tests
  int64_t lookup_patience_us = 200'000;
  // Of a peer that was named as one that has the request's KV or is computing it: it may be in the
  // midst of a step, and what it promised is dear to compute here.
  int64_t promised_patience_us = 2'500'000;
  // A load that is expected to take t is given up after max(load_timeout_us, 4 t).
  int64_t load_timeout_us = 5'000'000;
  int32_t max_loads_in_flight = 4;  // objects of one request, but for those still being computed
  uint64_t seed = 1;                // of exploring
  // Servers named by requests that are remembered; a further one takes the place of the one that
  // was named longest ago.
  size_t max_peers = 1024;

  LiveCacheOptions live;
  control::GoodputOptions goodput;        // of peers; stores of this process have their own
  control::ControllerOptions controller;  // form, geometry and produce_us are filled in
};

// What it works with. Everything outlives the connector; those that may be null say so.
struct ConnectorParts {
  const Clock* clock = nullptr;
  std::shared_ptr<const ProfileSet> profiles;
  store::Store* store = nullptr;           // may be null
  transfer::Endpoint* endpoint = nullptr;  // may be null: no peers, no pools
  ObjectNode* node = nullptr;              // may be null: nothing is served
  // How peers and pools are reached, instead of by their addresses; may be null.
  std::function<void(const std::string& address, int64_t deadline_us,
                     transfer::Endpoint::Connected done)>
      dial;
  // Further ones, asked for every request and given what is new.
  std::vector<std::shared_ptr<ObjectSource>> sources;
  std::vector<std::shared_ptr<ObjectTarget>> targets;
};

// How a source has done.
struct SourceReport {
  std::string name;
  double goodput_bytes_per_s = 0;
  int64_t loads = 0;
  int64_t failures = 0;
  uint64_t wire_bytes = 0;
  // How often the controller chose each profile, for KV that is encoded on request or was before.
  std::map<std::pair<std::string, bool>, int64_t> choices;  // by name and whether it was live
  std::optional<transfer::PeerStats> link;                  // none: it is in this process
};

class Connector : public kv::Connector {
 public:
  // kInvalidInput names the option: an unknown profile, a pool's address, pools without an
  // endpoint, profiles that are too many for a controller.
  static Result<std::unique_ptr<Connector>> Create(ConnectorOptions options, ConnectorParts parts);

  // Thread-safe.
  [[nodiscard]] virtual ConnectorCounters counters() const = 0;
  [[nodiscard]] virtual std::vector<SourceReport> sources() const = 0;
  // The last decisions of all controllers, oldest first, as JSON objects.
  [[nodiscard]] virtual std::vector<std::string> Decisions(size_t limit) const = 0;
  // Waits until everything that was taken has been stored or given up.
  virtual void Flush() = 0;

  // Without threads: as IoPool::RunDue.
  virtual bool RunDue() = 0;
};

// Whether a request of this quality can be served with --kv-profile `name` at all: kInvalidInput,
// for a 400, when the profile is fixed and lossy and the request is exact or wants more.
[[nodiscard]] Result<void> CheckQuality(const ProfileSet& profiles, const std::string& kv_profile,
                                        const kv::MinQuality& quality);

}  // namespace kvik::connector
