// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <exception>

#include "base/check.h"
#include "base/mutex.h"

namespace kvik {

void Counter::Add(double amount) {
  KVIK_DCHECK(amount >= 0);
  impl_.Increment(amount);
}
double Counter::value() const { return impl_.Value(); }

void Gauge::Set(double value) { impl_.Set(value); }
void Gauge::Add(double amount) { impl_.Increment(amount); }
double Gauge::value() const { return impl_.Value(); }

void Histogram::Observe(double value) { impl_.Observe(value); }

// The library already returns the same metric for the same labels; the maps give each one stable
// handle of ours.
struct MetricsRegistry::State {
  Mutex mutex;
  prometheus::Registry registry;
  std::map<prometheus::Counter*, std::unique_ptr<Counter>> counters KVIK_GUARDED_BY(mutex);
  std::map<prometheus::Gauge*, std::unique_ptr<Gauge>> gauges KVIK_GUARDED_BY(mutex);
  std::map<prometheus::Histogram*, std::unique_ptr<Histogram>> histograms KVIK_GUARDED_BY(mutex);
};

namespace {

// Names are ours, written in code: one that the library refuses is a bug.
template <typename Fn>
decltype(auto) OrDie(const std::string& name, Fn&& fn) {
  try {
    return fn();
  } catch (const std::exception& error) {
    KVIK_CHECK(false, "metric %s: %s", name.c_str(), error.what());
    throw;  // not reached
  }
}

}  // namespace

MetricsRegistry::MetricsRegistry() : state_(std::make_unique<State>()) {}
MetricsRegistry::~MetricsRegistry() = default;

Counter& MetricsRegistry::AddCounter(const std::string& name, const std::string& help,
                                     const Labels& labels) {
  MutexLock lock(state_->mutex);
  prometheus::Counter& impl = OrDie(name, [&]() -> prometheus::Counter& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry).Add(labels);
  });
  std::unique_ptr<Counter>& handle = state_->counters[&impl];
  if (handle == nullptr) {
    handle.reset(new Counter(impl));
  }
  return *handle;
}

Gauge& MetricsRegistry::AddGauge(const std::string& name, const std::string& help,
                                 const Labels& labels) {
  MutexLock lock(state_->mutex);
  prometheus::Gauge& impl = OrDie(name, [&]() -> prometheus::Gauge& {
    return prometheus::BuildGauge().Name(name).Help(help).Register(state_->registry).Add(labels);
  });
  std::unique_ptr<Gauge>& handle = state_->gauges[&impl];
  if (handle == nullptr) {
    handle.reset(new Gauge(impl));
  }
  return *handle;
}

Histogram& MetricsRegistry::AddHistogram(const std::string& name, const std::string& help,
                                         const std::vector<double>& bounds, const Labels& labels) {
  MutexLock lock(state_->mutex);
  prometheus::Histogram& impl = OrDie(name, [&]() -> prometheus::Histogram& {
    return prometheus::BuildHistogram()
        .Name(name)
        .Help(help)
        .Register(state_->registry)
        .Add(labels, bounds);
  });
  std::unique_ptr<Histogram>& handle = state_->histograms[&impl];
  if (handle == nullptr) {
    handle.reset(new Histogram(impl));
  }
  return *handle;
}

std::string MetricsRegistry::Render() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace kvik
