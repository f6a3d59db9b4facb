// SPDX-License-Identifier: Apache-2.0
#include "kv/cost_fit.h"

#include <Eigen/QR>
#include <array>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace kvik::kv {
namespace {

constexpr size_t kTerms = 7;
constexpr size_t kMinSamples = 16;
constexpr double kMinRSquared = 0.99;

std::array<double, kTerms> TermsOf(const StepFeatures& f) {
  return {1.0,       f.computed_tokens, f.cached_tokens,   f.segments,
          f.squares, f.decodes,         f.decode_kv_tokens};
}

CostModel ModelOf(const std::array<double, kTerms>& k) {
  return CostModel{.step_us = k[0],
                   .token_us = k[1],
                   .cached_token_us = k[2],
                   .segment_us = k[3],
                   .square_us = k[4],
                   .decode_us = k[5],
                   .decode_kv_token_us = k[6]};
}

// Least squares over the terms in use; columns are scaled to length 1, since squares of positions
// and counts of segments differ by ten orders of magnitude.
std::array<double, kTerms> Solve(std::span<const CostSample> samples,
                                 const std::array<bool, kTerms>& used) {
  std::vector<size_t> terms;
  for (size_t i = 0; i < kTerms; ++i) {
    if (used[i]) {
      terms.push_back(i);
    }
  }
  const auto rows = static_cast<Eigen::Index>(samples.size());
  const auto cols = static_cast<Eigen::Index>(terms.size());
  Eigen::MatrixXd x(rows, cols);
  Eigen::VectorXd y(rows);
  for (Eigen::Index row = 0; row < rows; ++row) {
    const CostSample& sample = samples[static_cast<size_t>(row)];
    const auto values = TermsOf(sample.features);
    for (Eigen::Index col = 0; col < cols; ++col) {
      x(row, col) = values[terms[static_cast<size_t>(col)]];
    }
    y(row) = sample.us;
  }
  Eigen::VectorXd scale = x.colwise().norm().transpose();
  for (Eigen::Index col = 0; col < cols; ++col) {
    scale(col) = scale(col) > 0 ? scale(col) : 1;
    x.col(col) /= scale(col);
  }
  const Eigen::VectorXd solution = x.colPivHouseholderQr().solve(y);
  std::array<double, kTerms> k{};
  for (Eigen::Index col = 0; col < cols; ++col) {
    k[terms[static_cast<size_t>(col)]] = solution(col) / scale(col);
  }
  return k;
}

}  // namespace

CostFit Judge(const CostModel& model, std::span<const CostSample> samples) {
  KVIK_CHECK(!samples.empty());
  double mean = 0;
  for (const CostSample& sample : samples) {
    mean += sample.us / static_cast<double>(samples.size());
  }
  CostFit fit;
  fit.model = model;
  double residual = 0;
  double total = 0;
  for (const CostSample& sample : samples) {
    const double error = sample.us - model.StepUs(sample.features);
    residual += error * error;
    total += (sample.us - mean) * (sample.us - mean);
    fit.mean_abs_error_us += std::abs(error) / static_cast<double>(samples.size());
  }
  fit.r_squared = total > 0 ? 1 - residual / total : 0;
  return fit;
}

Result<CostFit> FitCostModel(std::span<const CostSample> samples) {
  if (samples.size() < kMinSamples) {
    return Err(ErrorCode::kInvalidInput, "%zu timed steps are too few: at least %zu",
               samples.size(), kMinSamples);
  }
  for (const CostSample& sample : samples) {
    if (!std::isfinite(sample.us) || sample.us < 0) {
      return Err(ErrorCode::kInvalidInput, "a timed step of %g us", sample.us);
    }
  }
  std::array<bool, kTerms> used;
  used.fill(true);
  std::array<double, kTerms> k{};
  for (bool again = true; again;) {  // at most kTerms times: every round drops one
    k = Solve(samples, used);
    again = false;
    size_t worst = kTerms;
    for (size_t i = 0; i < kTerms; ++i) {
      if (used[i] && k[i] < 0 && (worst == kTerms || k[i] < k[worst])) {
        worst = i;
      }
    }
    if (worst != kTerms) {
      used[worst] = false;
      again = true;
    }
  }
  const CostFit fit = Judge(ModelOf(k), samples);
  if (!(fit.r_squared > kMinRSquared)) {
    return Err(ErrorCode::kInvalidInput,
               "the cost model explains %.4f of the variance of %zu timed steps, not more than "
               "%.2f: is something else running on this machine?",
               fit.r_squared, samples.size(), kMinRSquared);
  }
  constexpr double kRounding = 1e-9;  // what a position costs, beside what a token does
  if (!(fit.model.a_us() > 0) || !(fit.model.square_us > kRounding * fit.model.a_us())) {
    return Err(ErrorCode::kInvalidInput,
               "fitted costs make no sense: %g us a token (of which %g refunded when cached), %g "
               "us a token and position",
               fit.model.token_us, fit.model.cached_token_us, fit.model.c_us());
  }
  return fit;
}

}  // namespace kvik::kv
