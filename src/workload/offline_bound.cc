// SPDX-License-Identifier: Apache-2.0
// The best a cache can do is a choice of intervals: to save a block at request j it must be kept
// from its use before, i, through all requests between, each of which leaves room for N - n_t
// blocks that are not its own (n_t). Pay for room instead of being limited: with any prices y_t >=
// 0
//
//   savings <= sum over intervals of max(0, dT - sum of y_t between) + sum of y_t (N - n_t)
//
// because the right side relaxes the limits and charges at least nothing for it (Lagrange). The
// least right side over all prices is the exact optimum of the fractional problem; it is approached
// by raising prices where the chosen intervals need more room than there is and lowering them
// elsewhere, and the best value on the way is the bound. A start with the best uniform price is
// the bound of a cache of the same size in sum over time.
#include "workload/offline_bound.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

namespace kvik::workload {
namespace {

struct Interval {
  size_t from = 0;  // room is needed in requests [from, to)
  size_t to = 0;
  double saved_us = 0;
};

class PricedRoom {
 public:
  PricedRoom(std::vector<Interval> intervals, std::vector<double> room)
      : intervals_(std::move(intervals)),
        room_(std::move(room)),
        price_(room_.size(), 0.0),
        paid_(room_.size() + 1, 0.0),
        need_(room_.size() + 1, 0.0) {}

  double Minimize(int rounds) {
    double bound = StartUniform();
    for (int round = 0; round < rounds; ++round) {
      const double step = 1.0 / (1.0 + 0.1 * round);
      for (size_t t = 0; t < room_.size(); ++t) {
        const double excess = (need_[t] - room_[t]) / std::max(room_[t], 1.0);
        price_[t] = std::min(price_[t] * std::exp(step * std::clamp(excess, -1.0, 1.0)), 1e15);
      }
      bound = std::min(bound, Evaluate());
    }
    return bound;
  }

 private:
  // Prices all requests alike, at the best such price.
  double StartUniform() {
    double low = 0;
    double high = 1;
    const auto value = [&](double price) {
      std::fill(price_.begin(), price_.end(), price);
      return Evaluate();
    };
    for (const Interval& interval : intervals_) {
      high = std::max(high, interval.saved_us);
    }
    double best = value(0);
    for (int i = 0; i < 80; ++i) {  // convex in the price
      const double left = low + (high - low) / 3;
      const double right = high - (high - low) / 3;
      const double at_left = value(left);
      const double at_right = value(right);
      best = std::min({best, at_left, at_right});
      (at_left < at_right ? high : low) = at_left < at_right ? right : left;
    }
    return std::min(best, value(std::max(low, 1e-6)));
  }

  // The right side for the prices, and in need_ the room that the chosen intervals take.
  double Evaluate() {
    double value = 0;
    for (size_t t = 0; t < room_.size(); ++t) {
      paid_[t + 1] = paid_[t] + price_[t];
      value += price_[t] * room_[t];
    }
    std::fill(need_.begin(), need_.end(), 0.0);
    for (const Interval& interval : intervals_) {
      const double gain = interval.saved_us - (paid_[interval.to] - paid_[interval.from]);
      if (gain > 0) {
        value += gain;
        need_[interval.from] += 1;
        need_[interval.to] -= 1;
      }
    }
    for (size_t t = 1; t < need_.size(); ++t) {
      need_[t] += need_[t - 1];
    }
    return value;
  }

  std::vector<Interval> intervals_;
  std::vector<double> room_;   // [requests]
  std::vector<double> price_;  // [requests]
  std::vector<double> paid_;   // [requests + 1] sums of price_
  std::vector<double> need_;   // [requests + 1]
};

}  // namespace

double SavingsBoundUs(const Trace& trace, const kv::CostModel& cost, int32_t cache_blocks,
                      size_t first_measured, int rounds) {
  const int32_t size = trace.block_size_tokens;
  std::unordered_map<uint64_t, size_t> last_use;
  std::vector<Interval> intervals;
  std::vector<double> room;
  double free_us = 0;  // of blocks used by neighbours in time, which need no room between
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    room.push_back(std::max(
        0.0, static_cast<double>(cache_blocks) - static_cast<double>(request.blocks.size())));
    for (size_t b = 0; b < request.blocks.size(); ++b) {
      const auto [it, first] = last_use.try_emplace(request.blocks[b], i);
      const size_t before = it->second;
      it->second = i;
      const auto end = static_cast<int64_t>(b + 1) * size;
      if (first || i < first_measured || end >= request.input_tokens) {
        continue;  // the block of the last token is always computed
      }
      const double saved_us = cost.RecomputeUs(end - size, size);
      if (before + 1 >= i) {
        free_us += saved_us;
      } else {
        intervals.push_back(Interval{before + 1, i, saved_us});
      }
    }
  }
  return free_us + PricedRoom(std::move(intervals), std::move(room)).Minimize(rounds);
}

}  // namespace kvik::workload
