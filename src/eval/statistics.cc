// SPDX-License-Identifier: Apache-2.0
#include "eval/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace kvik::eval {
namespace {

PromptQuality& operator+=(PromptQuality& sum, const PromptQuality& prompt) {
  sum.positions += prompt.positions;
  sum.agreeing += prompt.agreeing;
  sum.sure_positions += prompt.sure_positions;
  sum.sure_agreeing += prompt.sure_agreeing;
  sum.kl_nats += prompt.kl_nats;
  sum.text_positions += prompt.text_positions;
  sum.text_nll += prompt.text_nll;
  sum.text_nll_raw += prompt.text_nll_raw;
  sum.prompt_values += prompt.prompt_values;
  sum.values += prompt.values;
  sum.bytes += prompt.bytes;
  sum.key_error += prompt.key_error;
  sum.value_error += prompt.value_error;
  sum.attention += prompt.attention;
  sum.scored += prompt.scored;
  sum.score += prompt.score;
  sum.score_raw += prompt.score_raw;
  return sum;
}

double Ratio(double a, double b, double otherwise) { return b > 0 ? a / b : otherwise; }
double Ratio(int64_t a, int64_t b, double otherwise) {
  return Ratio(static_cast<double>(a), static_cast<double>(b), otherwise);
}

struct Metric {
  Estimate CellQuality::*estimate;
  double (*of)(const PromptQuality& sum);  // of the sum of prompts
};

// Every squared difference is of half the values.
constexpr std::array<Metric, 15> kMetrics = {{
    {&CellQuality::bits_per_value,
     [](const PromptQuality& s) { return 8 * Ratio(s.bytes, s.values, 0); }},
    {&CellQuality::cr, [](const PromptQuality& s) { return 2 * Ratio(s.values, s.bytes, 0); }},
    {&CellQuality::kl,
     [](const PromptQuality& s) { return Ratio(s.kl_nats, static_cast<double>(s.positions), 0); }},
    {&CellQuality::top1, [](const PromptQuality& s) { return Ratio(s.agreeing, s.positions, 1); }},
    {&CellQuality::q,
     [](const PromptQuality& s) { return Ratio(s.sure_agreeing, s.sure_positions, 1); }},
    {&CellQuality::ppl,
     [](const PromptQuality& s) {
       return std::exp(Ratio(s.text_nll, static_cast<double>(s.text_positions), 0));
     }},
    {&CellQuality::ppl_raw,
     [](const PromptQuality& s) {
       return std::exp(Ratio(s.text_nll_raw, static_cast<double>(s.text_positions), 0));
     }},
    {&CellQuality::ppl_ratio,
     [](const PromptQuality& s) {
       return std::exp(
           Ratio(s.text_nll - s.text_nll_raw, static_cast<double>(s.text_positions), 0));
     }},
    {&CellQuality::mse,
     [](const PromptQuality& s) {
       return Ratio(s.key_error + s.value_error, static_cast<double>(s.prompt_values), 0);
     }},
    {&CellQuality::key_mse,
     [](const PromptQuality& s) {
       return Ratio(2 * s.key_error, static_cast<double>(s.prompt_values), 0);
     }},
    {&CellQuality::value_mse,
     [](const PromptQuality& s) {
       return Ratio(2 * s.value_error, static_cast<double>(s.prompt_values), 0);
     }},
    {&CellQuality::logit_error,
     [](const PromptQuality& s) {
       return std::sqrt(Ratio(s.attention.score_difference, s.attention.score_variance, 0));
     }},
    {&CellQuality::output_error,
     [](const PromptQuality& s) {
       return std::sqrt(Ratio(s.attention.output_difference, s.attention.output_norm, 0));
     }},
    {&CellQuality::score,
     [](const PromptQuality& s) { return Ratio(s.score, static_cast<double>(s.scored), 0); }},
    {&CellQuality::score_raw,
     [](const PromptQuality& s) { return Ratio(s.score_raw, static_cast<double>(s.scored), 0); }},
}};

// The central 95 % of what a metric is in resamples.
void FillInterval(std::vector<double>& samples, Estimate& estimate) {
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  estimate.low = samples[static_cast<size_t>(n * 0.025)];
  estimate.high = samples[static_cast<size_t>(std::ceil(n * 0.975)) - 1];
}

}  // namespace

CellQuality Summarize(std::span<const PromptQuality> prompts, uint64_t seed, int resamples) {
  KVIK_CHECK(!prompts.empty() && resamples >= 1);
  const PromptQuality total =
      std::accumulate(prompts.begin(), prompts.end(), PromptQuality(),
                      [](PromptQuality sum, const PromptQuality& prompt) { return sum += prompt; });
  CellQuality cell;
  cell.prompts = static_cast<int64_t>(prompts.size());
  cell.positions = total.positions;
  cell.sure_positions = total.sure_positions;
  cell.scored_prompts = total.scored;
  std::array<std::vector<double>, kMetrics.size()> samples;
  for (int i = 0; i < resamples; ++i) {
    Rng rng(seed, static_cast<uint64_t>(i));
    PromptQuality sum;
    for (size_t j = 0; j < prompts.size(); ++j) {
      sum += prompts[static_cast<size_t>(rng.Below(prompts.size()))];
    }
    for (size_t m = 0; m < kMetrics.size(); ++m) {
      samples[m].push_back(kMetrics[m].of(sum));
    }
  }
  for (size_t m = 0; m < kMetrics.size(); ++m) {
    Estimate& estimate = cell.*kMetrics[m].estimate;
    estimate.value = kMetrics[m].of(total);
    FillInterval(samples[m], estimate);
  }
  return cell;
}

}  // namespace kvik::eval
