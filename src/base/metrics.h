// SPDX-License-Identifier: Apache-2.0
// base/metrics.h: counters, gauges and histograms, rendered as Prometheus text.
//
// Everything here is thread-safe. Metrics are created once, at wiring time; after that a counter
// or gauge costs an atomic operation and a histogram a short lock, so observe per step or request,
// not per token of a kernel.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace kvik {

// Only goes up.
class Counter {
 public:
  // REQUIRES: amount >= 0.
  void Add(double amount = 1);
  [[nodiscard]] double value() const;

 private:
  friend class MetricsRegistry;
  explicit Counter(prometheus::Counter& impl) : impl_(impl) {}
  prometheus::Counter& impl_;
};

class Gauge {
 public:
  void Set(double value);
  void Add(double amount);
  [[nodiscard]] double value() const;

 private:
  friend class MetricsRegistry;
  explicit Gauge(prometheus::Gauge& impl) : impl_(impl) {}
  prometheus::Gauge& impl_;
};

// Counts observations by upper bound.
class Histogram {
 public:
  void Observe(double value);

 private:
  friend class MetricsRegistry;
  explicit Histogram(prometheus::Histogram& impl) : impl_(impl) {}
  prometheus::Histogram& impl_;
};

class MetricsRegistry {
 public:
  using Labels = std::map<std::string, std::string>;

  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The metric of this name and label values, made on the first call; it lives as long as the
  // registry. Units belong in the name (`_seconds`, `_bytes`, `_tokens`); counters end in `_total`.
  // REQUIRES: the name is a valid Prometheus name that no other kind of metric has.
  Counter& AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `bounds`: ascending upper bounds, inclusive; +Inf is implied. Later calls keep the first ones.
  Histogram& AddHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& bounds, const Labels& labels = {});

  // All metrics in the text exposition format 0.0.4.
  [[nodiscard]] std::string Render() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvik
