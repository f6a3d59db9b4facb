// SPDX-License-Identifier: Apache-2.0
#include "kv/reuse_hazard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kvik::kv {
namespace {

constexpr double kFirstEdgeS = 0.1;
constexpr double kEdgeRatio = 1.4;
constexpr double kFirstRate = 0.1;  // a second, before anything was seen
constexpr double kMaxWeight = 1e9;
constexpr int64_t kRatesLastUs = 1'000'000;

}  // namespace

const std::array<double, ReuseHazard::kNumBins + 1>& ReuseHazard::Edges() {
  static const auto edges = [] {
    std::array<double, kNumBins + 1> e{};
    for (size_t i = 1; i < e.size(); ++i) {
      e[i] = kFirstEdgeS * std::pow(kEdgeRatio, static_cast<double>(i - 1));
    }
    return e;
  }();
  return edges;
}

ReuseHazard::ReuseHazard(std::vector<Node> nodes) : tables_(nodes.size()) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    KVIK_CHECK(nodes[i].parent < static_cast<int>(i));
    tables_[i].node = nodes[i];
  }
  for (size_t i = 0; i < inverse_width_.size(); ++i) {
    inverse_width_[i] = 1 / (Edges()[i + 1] - Edges()[i]);
  }
}

void ReuseHazard::AdvanceTime(int64_t now_us) {
  if (now_us_ >= 0 && now_us > now_us_) {
    due_by_time_ =
        std::min(1.0, due_by_time_ + static_cast<double>(now_us - now_us_) * 1e-6 / kFadeS);
    const double due = std::min(due_by_time_, due_by_requests_);
    due_by_time_ -= due;
    due_by_requests_ -= due;
    weight_ *= std::exp(due);
  }
  now_us_ = std::max(now_us_, now_us);
  if (weight_ > kMaxWeight) {
    const double scale = 1 / weight_;
    for (Tables& t : tables_) {
      for (size_t i = 0; i < t.returns.size(); ++i) {
        t.returns[i] *= scale;
        t.waiting_s[i] *= scale;
      }
    }
    weight_ = 1;
  }
}

void ReuseHazard::CountRequest() {
  due_by_requests_ = std::min(1.0, due_by_requests_ + 1 / kFadeRequests);
}

void ReuseHazard::AddWaiting(int node, double from_age_s, double to_age_s, double weight) {
  const auto& edges = Edges();
  for (int bin = BinOf(from_age_s); from_age_s < to_age_s; ++bin) {
    const bool last = bin + 1 == kNumBins;
    const double end = last ? to_age_s : std::min(to_age_s, edges[static_cast<size_t>(bin) + 1]);
    const double amount = (end - from_age_s) * weight * weight_;
    for (int n = node; n != kNoParent; n = At(n).node.parent) {
      At(n).waiting_s[static_cast<size_t>(bin)] += amount;
    }
    from_age_s = end;
  }
}

void ReuseHazard::AddReturn(int node, double age_s, double weight) {
  const auto bin = static_cast<size_t>(BinOf(age_s));
  for (int n = node; n != kNoParent; n = At(n).node.parent) {
    At(n).returns[bin] += weight * weight_;
  }
}

void ReuseHazard::RebuildRates(int node) {
  Tables& t = At(node);
  if (t.rates_us >= 0 && now_us_ - t.rates_us < kRatesLastUs) {
    return;
  }
  t.rates_us = now_us_;
  if (t.node.parent == kNoParent) {
    const double prior_uses = kRootPriorUses * weight_;
    double younger = kFirstRate;
    for (size_t i = 0; i < t.rate.size(); ++i) {
      const double prior_s = prior_uses / inverse_width_[i];
      t.rate[i] = (t.returns[i] + younger * prior_s) / (t.waiting_s[i] + prior_s);
      if (i + 1 < t.rate.size()) {
        younger = t.rate[i] * inverse_width_[i + 1] / inverse_width_[i];
      }
    }
    return;
  }
  RebuildRates(t.node.parent);
  const Tables& parent = At(t.node.parent);
  double seen = kPriorReturns * weight_;
  double expected = seen;
  for (size_t i = 0; i < t.rate.size(); ++i) {
    seen += t.returns[i];
    expected += t.waiting_s[i] * parent.rate[i] * t.node.prior_factor;
  }
  const double prior_uses = kPriorUses * weight_;
  const double factor = t.node.prior_factor * seen / expected;
  for (size_t i = 0; i < t.rate.size(); ++i) {
    const double prior_s = prior_uses / inverse_width_[i];
    t.rate[i] = (t.returns[i] + parent.rate[i] * factor * prior_s) / (t.waiting_s[i] + prior_s);
  }
}

void ReuseHazard::Rebuild(int node, double horizon_s) {
  RebuildRates(node);
  Tables& t = At(node);
  t.rebuilt_us = now_us_;
  const double discount = 1 / horizon_s;
  t.gain[kNumBins] = t.rate[kNumBins - 1] / (t.rate[kNumBins - 1] + discount);
  for (size_t i = kNumBins; i-- > 0;) {
    const double leave = t.rate[i] + discount;
    const double stay = std::exp(-leave / inverse_width_[i]);
    t.gain[i] = t.rate[i] / leave * (1 - stay) + stay * t.gain[i + 1];
  }
}

ReuseHazard::Counts ReuseHazard::counts(int node) const {
  Counts counts;
  const Tables& t = At(node);
  for (size_t i = 0; i < t.returns.size(); ++i) {
    counts.returns[i] = t.returns[i] / weight_;
    counts.waiting_s[i] = t.waiting_s[i] / weight_;
  }
  return counts;
}

void ReuseHazard::set_counts(int node, const Counts& counts) {
  Tables& t = At(node);
  for (size_t i = 0; i < t.returns.size(); ++i) {
    t.returns[i] = counts.returns[i] * weight_;
    t.waiting_s[i] = counts.waiting_s[i] * weight_;
  }
  t.rates_us = -1;
  t.rebuilt_us = -1;
}

}  // namespace kvik::kv
