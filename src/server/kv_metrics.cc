// SPDX-License-Identifier: Apache-2.0
#include "server/kv_metrics.h"

#include <algorithm>
#include <utility>

#include "base/metrics.h"
#include "base/mutex.h"

namespace kvik::server {

using Labels = MetricsRegistry::Labels;

struct KvMetrics::Impl {
  explicit Impl(Labels with) : labels(std::move(with)) {}

  [[nodiscard]] Labels With(const char* key, const std::string& value) const {
    Labels all = labels;
    if (key != nullptr) {
      all[key] = value;
    }
    return all;
  }
  // Follows a total that is kept elsewhere and only grows.
  template <typename Number>
  void Count(const char* name, const char* help, Number total, const char* key = nullptr,
             const std::string& value = "") KVIK_REQUIRES(mutex) {
    double& seen = totals[std::string(name) + "/" + value];
    const auto now = static_cast<double>(total);
    registry.AddCounter(name, help, With(key, value)).Add(std::max(0.0, now - seen));
    seen = std::max(seen, now);
  }
  template <typename Number>
  void Show(const char* name, const char* help, Number number, const char* key = nullptr,
            const std::string& value = "") {
    registry.AddGauge(name, help, With(key, value)).Set(static_cast<double>(number));
  }

  void Connector(const connector::ConnectorCounters& c) KVIK_REQUIRES(mutex);
  void Node(const connector::ObjectNodeCounters& c) KVIK_REQUIRES(mutex);
  void Tier(const store::TierStats& t) KVIK_REQUIRES(mutex);

  const Labels labels;
  MetricsRegistry registry;
  Mutex mutex;
  std::map<std::string, double> totals KVIK_GUARDED_BY(mutex);
};

void KvMetrics::Impl::Connector(const connector::ConnectorCounters& c) {
  Count("vllm:kv_offload_load_bytes_total", "KV that was loaded, as encoded.", c.loaded_wire_bytes);
  Count("vllm:kv_offload_store_bytes_total", "KV that was stored, as encoded.",
        c.stored_wire_bytes);
  Count("vllm:nixl_num_failed_transfers_total", "Loads that failed.", c.failed_loads);
  Count("vllm:nixl_num_kv_expired_reqs_total", "Blocks kept for a peer that did not come.",
        c.expired_leases);
  Count("kvik:kv_loaded_raw_bytes_total", "KV that was loaded, as it is in the pool.",
        c.loaded_raw_bytes);
  Count("kvik:kv_stored_raw_bytes_total", "KV that was stored, as it is in the pool.",
        c.stored_raw_bytes);
  Count("kvik:kv_served_bytes_total", "KV of this engine that peers got, as encoded.",
        c.served_wire_bytes);
  Count("kvik:kv_lookups_total", "Requests that were looked up elsewhere.", c.lookups);
  Count("kvik:kv_lookup_failures_total", "Sources that could not answer, or not in time.",
        c.lookup_failures);
  const std::pair<const char*, int64_t> blocks[] = {
      {"queried", c.queried_blocks},   {"found", c.found_blocks},
      {"claimed", c.claimed_blocks},   {"arrived", c.arrived_blocks},
      {"given_up", c.given_up_blocks}, {"late", c.late_blocks},
      {"failed", c.failed_blocks},     {"offered", c.offered_blocks},
      {"taken", c.taken_blocks},       {"released", c.released_blocks}};
  for (const auto& [what, number] : blocks) {
    Count("kvik:kv_exchange_blocks_total", "KV blocks by what became of them outside the pool.",
          number, "what", what);
  }
  Count("kvik:kv_damaged_objects_total", "Objects that did not decode to what was asked for.",
        c.damaged_objects);
  Count("kvik:kv_decode_seconds_total", "Spent decoding, all threads.",
        static_cast<double>(c.decode_us) * 1e-6);
  Count("kvik:kv_encode_seconds_total", "Spent encoding, all threads.",
        static_cast<double>(c.encode_us) * 1e-6);
  Count("kvik:kv_stores_dropped_total", "Stores given up because too much was waiting.",
        c.dropped_stores);
  Show("kvik:kv_loading_blocks", "KV blocks that are being loaded.", c.loading_blocks);
  Show("kvik:kv_held_blocks", "KV blocks that are kept for stores and peers.", c.held_blocks);
}

void KvMetrics::Impl::Node(const connector::ObjectNodeCounters& c) {
  Count("kvik:kv_node_lookups_total", "Look-ups of peers.", c.lookups);
  Count("kvik:kv_node_gets_total", "Objects that peers asked for.", c.gets);
  Count("kvik:kv_node_get_misses_total", "Of which not there.", c.get_misses);
  Count("kvik:kv_node_puts_total", "Objects that peers gave.", c.puts);
  Count("kvik:kv_node_put_failures_total", "Of which not taken.", c.put_failures);
  Count("kvik:kv_node_sent_bytes_total", "To peers.", c.sent_bytes);
  Count("kvik:kv_node_received_bytes_total", "From peers.", c.received_bytes);
  Show("kvik:kv_node_peers", "Connected peers.", c.peers);
}

void KvMetrics::Impl::Tier(const store::TierStats& t) {
  const std::string tier = store::TierKindName(t.kind);
  Show("kvik:kv_store_objects", "Objects by tier.", t.objects, "tier", tier);
  Show("kvik:kv_store_used_bytes", "Of the budget, by tier.", t.used_bytes, "tier", tier);
  Show("kvik:kv_store_budget_bytes", "By tier; 0: not known.", t.budget_bytes, "tier", tier);
  Count("vllm:kv_offload_tiering_block_hits_total", "Objects that a tier gave.", t.hits, "tier",
        tier);
  Count("vllm:kv_offload_tiering_block_queries_total", "Objects that a tier was asked for.",
        t.hits + t.misses, "tier", tier);
  Count("kvik:kv_store_puts_total", "Objects taken in.", t.puts, "tier", tier);
  Count("kvik:kv_store_rejected_total", "Objects that were refused for room.", t.rejected, "tier",
        tier);
  Count("kvik:kv_store_evictions_total", "Objects dropped to make room.", t.evictions, "tier",
        tier);
  Count("kvik:kv_store_corrupt_total", "Objects that failed their checksum.", t.corrupt, "tier",
        tier);
  Count("kvik:kv_store_errors_total", "Operations that device or network failed.", t.errors, "tier",
        tier);
  Count("kvik:kv_store_read_bytes_total", "Of objects.", t.read_bytes, "tier", tier);
  Count("kvik:kv_store_written_bytes_total", "Of objects.", t.written_bytes, "tier", tier);
}

KvMetrics::KvMetrics(const std::map<std::string, std::string>& labels)
    : impl_(std::make_unique<Impl>(labels)) {}
KvMetrics::~KvMetrics() = default;

std::string KvMetrics::Render(const KvReadings& readings) {
  MutexLock lock(impl_->mutex);
  if (readings.connector) {
    impl_->Connector(*readings.connector);
  }
  for (const connector::SourceReport& source : readings.sources) {
    impl_->Show("kvik:kv_source_goodput_bytes_per_second", "Measured, by source.",
                source.goodput_bytes_per_s, "source", source.name);
    impl_->Count("kvik:kv_source_loads_total", "Objects loaded, by source.", source.loads, "source",
                 source.name);
    impl_->Count("kvik:kv_source_failures_total", "Loads that failed, by source.", source.failures,
                 "source", source.name);
  }
  if (readings.node) {
    impl_->Node(*readings.node);
  }
  if (readings.store) {
    for (const store::TierStats& tier : readings.store->tiers) {
      impl_->Tier(tier);
    }
  }
  return impl_->registry.Render();
}

}  // namespace kvik::server
