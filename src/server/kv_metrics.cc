// SPDX-License-Identifier: Apache-2.0
#include "server/kv_metrics.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/metrics.h"
#include "base/mutex.h"

namespace kvik::server {

using Labels = MetricsRegistry::Labels;

namespace {

double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

}  // namespace

struct KvMetrics::Impl {
  explicit Impl(Labels with) : labels(std::move(with)) {}

  // Numbers under labels of ours.
  struct Group {
    MetricsRegistry registry;
    std::map<std::pair<std::string, Labels>, double> totals;  // as last seen
  };

  [[nodiscard]] Labels With(const Labels& more) const {
    Labels all = labels;
    all.insert(more.begin(), more.end());
    return all;
  }
  // Follows a total that is kept elsewhere and only grows.
  template <typename Number>
  void Count(const char* name, const char* help, Number total, const Labels& more = {})
      KVIK_REQUIRES(mutex) {
    Group& group = GroupOf(more);
    double& seen = group.totals[{name, more}];
    const auto now = static_cast<double>(total);
    group.registry.AddCounter(name, help, With(more)).Add(std::max(0.0, now - seen));
    seen = std::max(seen, now);
  }
  template <typename Number>
  void Show(const char* name, const char* help, Number number, const Labels& more = {})
      KVIK_REQUIRES(mutex) {
    GroupOf(more).registry.AddGauge(name, help, With(more)).Set(static_cast<double>(number));
  }

  Group& GroupOf(const Labels& more) KVIK_REQUIRES(mutex) {
    return more.contains("source") ? *of_sources : *lasting;
  }

  void Connector(const connector::ConnectorCounters& c) KVIK_REQUIRES(mutex);
  void Sources(const std::vector<connector::SourceReport>& reports) KVIK_REQUIRES(mutex);
  void Source(const connector::SourceReport& s) KVIK_REQUIRES(mutex);
  void Link(const transfer::PeerStats& l, const Labels& source) KVIK_REQUIRES(mutex);
  void Node(const connector::ObjectNodeCounters& c) KVIK_REQUIRES(mutex);
  void Port(const transfer::EndpointStats& p) KVIK_REQUIRES(mutex);
  void Store(const store::StoreStats& s) KVIK_REQUIRES(mutex);
  void Tier(const store::TierStats& t, const std::string& name) KVIK_REQUIRES(mutex);
  void Events(const events::PublisherStats& e) KVIK_REQUIRES(mutex);

  const Labels labels;
  Mutex mutex;
  const std::unique_ptr<Group> lasting KVIK_GUARDED_BY(mutex) = std::make_unique<Group>();
  // What is told of sources, which come and go: begun anew from their totals when one has gone.
  std::unique_ptr<Group> of_sources KVIK_GUARDED_BY(mutex) = std::make_unique<Group>();
  std::set<std::string> sources KVIK_GUARDED_BY(mutex);  // in it
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
          number, {{"what", what}});
  }
  Count("kvik:kv_loads_total", "Objects that were asked for.", c.loads);
  Count("kvik:kv_shared_loads_total", "Not asked for: another request was loading the same.",
        c.shared_loads);
  Count("kvik:kv_shared_blocks_total", "Blocks copied from another request's load.",
        c.shared_blocks);
  Count("kvik:kv_prefetched_objects_total", "Objects brought to memory while requests waited.",
        c.prefetched_objects);
  Count("kvik:kv_kept_originals_total", "Approximated objects that were stored as they came.",
        c.kept_originals);
  Count("kvik:kv_load_seconds_total", "From asking for an object to its arrival, all objects.",
        Seconds(c.load_us));
  Count("kvik:kv_damaged_objects_total", "Objects that did not decode to what was asked for.",
        c.damaged_objects);
  Count("kvik:kv_refused_quality_total", "Objects that came in less quality than was announced.",
        c.refused_quality);
  Count("kvik:kv_decode_seconds_total", "Spent decoding, all threads.", Seconds(c.decode_us));
  Count("kvik:kv_encode_seconds_total", "Spent encoding, all threads.", Seconds(c.encode_us));
  Count("kvik:kv_transfer_predicted_seconds_total", "Predicted for loads of requests.",
        Seconds(c.predicted_us));
  Count("kvik:kv_transfer_observed_seconds_total", "What those loads took.",
        Seconds(c.observed_us));
  Count("kvik:kv_remote_prefill_seconds_total", "Peers computed KV that was loaded.",
        Seconds(c.remote_prefill_us));
  Count("kvik:kv_remote_encode_seconds_total", "Peers encoded KV that was loaded, all threads.",
        Seconds(c.remote_encode_us));
  Count("kvik:kv_stored_objects_total", "Objects given to the store and to pools.",
        c.stored_objects);
  Count("kvik:kv_store_failures_total", "Objects that nobody took.", c.store_failures);
  Count("kvik:kv_stores_dropped_total", "Stores given up because too much was waiting.",
        c.dropped_stores);
  Count("kvik:kv_served_objects_total", "Objects of this engine's own cache that peers got.",
        c.served_objects);
  Count("kvik:kv_serve_failures_total", "Of those asked for, not given.", c.served_failures);
  Count("kvik:kv_served_bytes_total", "KV of this engine that peers got, as encoded.",
        c.served_wire_bytes);
  Show("kvik:kv_requests", "Requests that the connector knows.", c.open_tickets);
  Show("kvik:kv_loading_blocks", "KV blocks that are being loaded.", c.loading_blocks);
  Show("kvik:kv_held_blocks", "KV blocks that are kept for stores and peers.", c.held_blocks);
  Show("kvik:kv_compute_pace", "How long computing takes, over what the cost model says.",
       c.compute_pace);
}

void KvMetrics::Impl::Sources(const std::vector<connector::SourceReport>& reports) {
  std::set<std::string> names;
  for (const connector::SourceReport& source : reports) {
    names.insert(source.name);
  }
  if (!std::includes(names.begin(), names.end(), sources.begin(), sources.end())) {
    of_sources = std::make_unique<Group>();
  }
  sources = std::move(names);
  for (const connector::SourceReport& source : reports) {
    Source(source);
  }
}

void KvMetrics::Impl::Source(const connector::SourceReport& s) {
  const Labels source = {{"source", s.name}};
  Show("kvik:kv_source_goodput_bytes_per_second", "Measured, by source.", s.goodput_bytes_per_s,
       source);
  Count("kvik:kv_source_loads_total", "Objects asked for, by source.", s.loads, source);
  Count("kvik:kv_source_failures_total", "Of those, not loaded.", s.failures, source);
  Count("kvik:kv_source_loaded_bytes_total", "Of objects, as encoded.", s.wire_bytes, source);
  for (const auto& [choice, times] : s.choices) {
    Labels chosen = source;
    chosen["profile"] = choice.first;
    chosen["encoded"] = choice.second ? "on_request" : "before";
    Count("kvik:kv_profile_choices_total", "Times that the controller chose a profile.", times,
          chosen);
  }
  if (s.link) {
    Link(*s.link, source);
  }
}

void KvMetrics::Impl::Link(const transfer::PeerStats& l, const Labels& source) {
  const transfer::ConnectionStats& c = l.connection;
  Show("kvik:kv_link_up", "1 while connected.", l.connected ? 1 : 0, source);
  Show("kvik:kv_link_rtt_seconds", "Least of the last heartbeats; 0: none yet.", Seconds(c.rtt_us),
       source);
  Show("kvik:kv_link_streams", "Calls that are under way.", c.open_streams, source);
  Count("kvik:kv_link_connects_total", "Connections made.", l.connects, source);
  Count("kvik:kv_link_connect_failures_total", "Attempts that came to nothing.", l.failed_connects,
        source);
  Count("kvik:kv_link_received_bytes_total", "With headers.", c.received_bytes, source);
  Count("kvik:kv_link_sent_bytes_total", "With headers.", c.sent_bytes, source);
  Count("kvik:kv_link_back_to_back_bytes_total", "Received without waiting for their producer.",
        c.wire_bytes, source);
  Count("kvik:kv_link_back_to_back_seconds_total", "What those took.", Seconds(c.wire_us), source);
  Count("kvik:kv_link_streams_total", "Calls.", c.streams_total, source);
  Count("kvik:kv_link_stream_failures_total", "Calls that failed, or were given up.",
        c.streams_failed, source);
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

void KvMetrics::Impl::Port(const transfer::EndpointStats& p) {
  Show("kvik:kv_port_connections", "Connections of both directions.", p.connections);
  Count("kvik:kv_port_accepted_total", "Connections that others made.", p.accepted);
  Count("kvik:kv_port_greeted_total", "Connections that got through the handshake.", p.greeted);
  Count("kvik:kv_port_failed_handshakes_total",
        "Connections from others that did not: refused, silent or something else.",
        p.failed_handshakes);
  Count("kvik:kv_port_over_limit_total", "Connections closed because there were too many.",
        p.over_limit);
  Count("kvik:kv_port_broken_total", "Connections on which a peer broke the protocol.", p.broken);
}

void KvMetrics::Impl::Store(const store::StoreStats& s) {
  std::map<std::string, int> seen;
  for (const store::TierStats& tier : s.tiers) {
    const std::string kind = store::TierKindName(tier.kind);
    const int number = ++seen[kind];  // several of a kind stay apart
    Tier(tier, number == 1 ? kind : kind + "-" + std::to_string(number));
  }
  Count("kvik:kv_store_promotions_total", "Objects copied to memory because they were asked for.",
        s.promotions);
  Count("kvik:kv_store_write_backs_total", "Objects that reached a lower tier.", s.write_backs);
  Count("kvik:kv_store_write_backs_dropped_total", "Objects that did not.", s.write_backs_dropped);
  Show("kvik:kv_store_queued_bytes", "Waiting for lower tiers.", s.queued_bytes);
  Count("kvik:kv_store_expired_leases_total", "Reads that took longer than their lease.",
        s.expired_leases);
  Count("kvik:kv_store_lookup_failures_total", "Tiers that could not answer.", s.lookup_failures);
}

void KvMetrics::Impl::Tier(const store::TierStats& t, const std::string& name) {
  const Labels tier = {{"tier", name}};
  Show("kvik:kv_store_objects", "Objects by tier.", t.objects, tier);
  Show("kvik:kv_store_used_bytes", "Of the budget, by tier.", t.used_bytes, tier);
  Show("kvik:kv_store_budget_bytes", "By tier; 0: not known.", t.budget_bytes, tier);
  Count("vllm:kv_offload_tiering_block_hits_total", "Objects that a tier gave.", t.hits, tier);
  Count("vllm:kv_offload_tiering_block_queries_total", "Objects that a tier was asked for.",
        t.hits + t.misses, tier);
  Count("kvik:kv_store_lookups_total", "Look-ups.", t.lookups, tier);
  Count("kvik:kv_store_puts_total", "Objects taken in.", t.puts, tier);
  Count("kvik:kv_store_duplicates_total", "Objects that were there already.", t.duplicates, tier);
  Count("kvik:kv_store_rejected_total", "Objects that were refused for room.", t.rejected, tier);
  Count("kvik:kv_store_evictions_total", "Objects dropped to make room.", t.evictions, tier);
  Count("kvik:kv_store_expirations_total", "Objects whose time to live ended.", t.expirations,
        tier);
  Count("kvik:kv_store_removals_total", "Objects removed by request.", t.removals, tier);
  Count("kvik:kv_store_corrupt_total", "Objects that failed their checksum.", t.corrupt, tier);
  Count("kvik:kv_store_errors_total", "Operations that device or network failed.", t.errors, tier);
  Count("kvik:kv_store_timeouts_total", "Operations whose deadline passed.", t.timeouts, tier);
  Count("kvik:kv_store_read_bytes_total", "Of objects.", t.read_bytes, tier);
  Count("kvik:kv_store_written_bytes_total", "Of objects.", t.written_bytes, tier);
}

void KvMetrics::Impl::Events(const events::PublisherStats& e) {
  Count("kvik:kv_event_batches_total", "Batches of KV events that were published.", e.batches);
  Count("kvik:kv_event_batches_lost_total", "Of which more waited than there is room for.",
        e.lost_batches);
  Count("kvik:kv_event_replays_total", "Requests for batches that were answered.", e.replays);
  Show("kvik:kv_event_blocks", "Blocks held, as events have told it.", e.held_blocks);
}

KvMetrics::KvMetrics(const std::map<std::string, std::string>& labels)
    : impl_(std::make_unique<Impl>(labels)) {}
KvMetrics::~KvMetrics() = default;

std::string KvMetrics::Render(const KvReadings& readings) {
  MutexLock lock(impl_->mutex);
  if (readings.connector) {
    impl_->Connector(*readings.connector);
  }
  impl_->Sources(readings.sources);
  if (readings.node) {
    impl_->Node(*readings.node);
  }
  if (readings.store) {
    impl_->Store(*readings.store);
  }
  if (readings.port) {
    impl_->Port(*readings.port);
  }
  if (readings.events) {
    impl_->Events(*readings.events);
  }
  return impl_->lasting->registry.Render() + impl_->of_sources->registry.Render();
}

}  // namespace kvik::server
