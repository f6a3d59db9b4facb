// SPDX-License-Identifier: Apache-2.0
#include "workload/load_compare.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <utility>

#include "workload/load_report.h"

namespace kvik::workload {
namespace {

// A request's share in a metric; `weight` is 1 but for rates.
struct Value {
  double value = 0;
  double weight = 1;
};
using Key = std::pair<int32_t, int32_t>;
using Values = std::map<Key, Value>;
using Statistic = std::function<double(const std::vector<Value>&)>;

// The mean; of rates, weighted.
double Mean(const std::vector<Value>& values) {
  double sum = 0;
  double weight = 0;
  for (const Value& value : values) {
    sum += value.value;
    weight += value.weight;
  }
  return weight > 0 ? sum / weight : 0;
}

Statistic Quantile(double share) {
  return [share](const std::vector<Value>& values) {
    std::vector<double> sorted;
    sorted.reserve(values.size());
    for (const Value& value : values) {
      sorted.push_back(value.value);
    }
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : Percentile(sorted, share);
  };
}

template <typename Fn>
Values Collect(const LoadSamples& samples, const Fn& get) {
  Values values;
  for (const RequestSample& request : samples.requests) {
    if (const std::optional<Value> value = get(request)) {
      values[{request.session, request.turn}] = *value;
    }
  }
  return values;
}

Values CollectJobs(const LoadSamples& samples) {
  Values values;
  for (const JobSample& job : samples.jobs) {
    values[{job.session, 0}] = {job.millis};
  }
  return values;
}

class Bootstrap {
 public:
  Bootstrap(const Values& a, const Values& b) {
    std::vector<Value> in_both;
    for (const auto& [key, value] : a) {
      a_.push_back(value);
      if (b.contains(key)) {
        in_both.push_back(value);
      }
    }
    // A few failed requests on one side do not undo the pairing of the others.
    paired_ = 10 * in_both.size() >= 9 * std::max(a.size(), b.size());
    if (paired_) {
      a_ = std::move(in_both);
    }
    for (const auto& [key, value] : b) {
      if (!paired_ || a.contains(key)) {
        b_.push_back(value);
      }
    }
  }

  [[nodiscard]] std::optional<MetricComparison> Run(std::string name, const Statistic& statistic,
                                                    const CompareOptions& options) const {
    if (a_.empty() || b_.empty()) {
      return std::nullopt;
    }
    MetricComparison result;
    result.metric = std::move(name);
    result.a = statistic(a_);
    result.b = statistic(b_);
    if (!(result.a > 0)) {
      return std::nullopt;
    }
    result.ratio = result.b / result.a;
    result.paired = paired_;
    result.samples = static_cast<int32_t>(std::min(a_.size(), b_.size()));
    Rng rng(options.seed, /*stream=*/0x626F6F74);
    std::vector<Value> drawn_a(a_.size());
    std::vector<Value> drawn_b(b_.size());
    std::vector<double> ratios;
    for (int32_t i = 0; i < options.resamples; ++i) {
      for (size_t k = 0; k < a_.size(); ++k) {
        const size_t pick = rng.Below(a_.size());
        drawn_a[k] = a_[pick];
        if (paired_) {
          drawn_b[k] = b_[pick];
        }
      }
      for (size_t k = 0; !paired_ && k < b_.size(); ++k) {
        drawn_b[k] = b_[rng.Below(b_.size())];
      }
      const double below = statistic(drawn_a);
      if (below > 0) {
        ratios.push_back(statistic(drawn_b) / below);
      }
    }
    std::sort(ratios.begin(), ratios.end());
    const double tail = (1 - options.confidence) / 2;
    result.low = ratios.empty() ? result.ratio : Percentile(ratios, tail);
    result.high = ratios.empty() ? result.ratio : Percentile(ratios, 1 - tail);
    return result;
  }

 private:
  std::vector<Value> a_;
  std::vector<Value> b_;
  bool paired_ = false;
};

}  // namespace

std::vector<MetricComparison> Compare(const LoadSamples& a, const LoadSamples& b,
                                      const CompareOptions& options) {
  std::vector<MetricComparison> metrics;
  const auto add = [&](const std::string& name, const Bootstrap& bootstrap,
                       const Statistic& statistic) {
    if (std::optional<MetricComparison> metric = bootstrap.Run(name, statistic, options)) {
      metrics.push_back(*std::move(metric));
    }
  };
  const auto add_latency = [&](const std::string& name, const Values& in_a, const Values& in_b) {
    const Bootstrap bootstrap(in_a, in_b);
    add(name + " mean", bootstrap, Mean);
    add(name + " p50", bootstrap, Quantile(0.5));
    add(name + " p90", bootstrap, Quantile(0.9));
    add(name + " p99", bootstrap, Quantile(0.99));
  };
  const auto both = [&](const std::string& name, const auto& get) {
    add_latency(name, Collect(a, get), Collect(b, get));
  };
  both("ttft_ms", [](const RequestSample& r) { return std::optional(Value{r.ttft_ms}); });
  both("tpot_ms", [](const RequestSample& r) {
    return r.tpot_ms ? std::optional(Value{*r.tpot_ms}) : std::nullopt;
  });
  both("e2e_ms", [](const RequestSample& r) { return std::optional(Value{r.e2e_ms}); });
  if (a.jobs.size() < a.requests.size()) {  // else a job is a request
    add_latency("job_ms", CollectJobs(a), CollectJobs(b));
  }
  const auto hit = [](const RequestSample& r) {
    return r.cached_tokens ? std::optional(Value{static_cast<double>(*r.cached_tokens),
                                                 static_cast<double>(r.prompt_tokens)})
                           : std::nullopt;
  };
  add("hit_rate", Bootstrap(Collect(a, hit), Collect(b, hit)), Mean);
  return metrics;
}

std::string FormatComparison(const std::vector<MetricComparison>& metrics, double confidence) {
  char line[200];
  std::snprintf(line, sizeof(line), "%-14s %12s %12s %8s   %g %% interval\n", "metric", "A", "B",
                "B / A", confidence * 100);
  std::string text = line;
  for (const MetricComparison& m : metrics) {
    std::snprintf(line, sizeof(line), "%-14s %12.4g %12.4g %8.3f   %.3f .. %.3f  (%d %s)%s\n",
                  m.metric.c_str(), m.a, m.b, m.ratio, m.low, m.high, m.samples,
                  m.paired ? "pairs" : "samples, not paired",
                  m.low > 1 || m.high < 1 ? "  differs" : "");
    text += line;
  }
  return text;
}

}  // namespace kvik::workload
