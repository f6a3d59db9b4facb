// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <gtest/gtest.h>

#include <string>

namespace kvik {
namespace {

TEST(Metrics, RendersPrometheusText) {
  MetricsRegistry registry;
  registry.AddCounter("kvik_requests_total", "Requests.", {{"code", "200"}}).Add(3);
  Gauge& running = registry.AddGauge("vllm:num_requests_running", "Running.");
  running.Set(5);
  running.Add(-1);
  registry.AddHistogram("ttft_seconds", "Time to first token.", {0.1, 1}).Observe(0.5);
  const std::string text = registry.Render();
  for (const char* line :
       {"# TYPE kvik_requests_total counter\n", "kvik_requests_total{code=\"200\"} 3\n",
        "# HELP vllm:num_requests_running Running.\n", "vllm:num_requests_running 4\n",
        "ttft_seconds_bucket{le=\"0.1\"} 0\n", "ttft_seconds_bucket{le=\"1\"} 1\n",
        "ttft_seconds_bucket{le=\"+Inf\"} 1\n", "ttft_seconds_count 1\n",
        "ttft_seconds_sum 0.5\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "missing in\n" << text;
  }
}

TEST(Metrics, TheSameNameAndLabelsAreTheSameMetric) {
  MetricsRegistry registry;
  Counter& a = registry.AddCounter("a_total", "A.", {{"x", "1"}});
  Counter& b = registry.AddCounter("a_total", "A.", {{"x", "2"}});
  EXPECT_NE(&a, &b);
  EXPECT_EQ(&a, &registry.AddCounter("a_total", "A.", {{"x", "1"}}));
  a.Add();
  a.Add(2);
  EXPECT_EQ(a.value(), 3);
  EXPECT_EQ(b.value(), 0);
}

TEST(MetricsDeathTest, AnInvalidNameIsABug) {
  MetricsRegistry registry;
  EXPECT_DEATH(registry.AddCounter("9 lives", "No."), "metric 9 lives");
}

}  // namespace
}  // namespace kvik
