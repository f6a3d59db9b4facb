// SPDX-License-Identifier: Apache-2.0
// transfer/link_spec.h: what a slow, long or bad link is, as text and as numbers.
//
//   rate=1Gbit,delay=2ms,jitter=0.5ms,loss=0.001
//   rate=2Gbit@0s/100Mbit@20s/2Gbit@40s,delay=5ms
//
// Every value may change over time: VALUE@TIME/VALUE@TIME..., times since the link was made and
// ascending; the first value holds before its time, too. A rate of 0 is a link that is down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvik::transfer {

// A piecewise constant function of time.
class LinkSchedule {
 public:
  explicit LinkSchedule(double value = 0) : steps_{{0, value}} {}
  // REQUIRES: not empty, times ascending.
  explicit LinkSchedule(std::vector<std::pair<int64_t, double>> steps);
  [[nodiscard]] double At(int64_t time_us) const;
  // When the value changes next after `time_us`; kNever.
  [[nodiscard]] int64_t NextChange(int64_t time_us) const;
  [[nodiscard]] const std::vector<std::pair<int64_t, double>>& steps() const { return steps_; }
  friend bool operator==(const LinkSchedule&, const LinkSchedule&) = default;

 private:
  std::vector<std::pair<int64_t, double>> steps_;
};

struct LinkSpec {
  // Bytes a second; infinity: as fast as what is below.
  LinkSchedule rate_bytes_per_second{std::numeric_limits<double>::infinity()};
  LinkSchedule delay_us{0};    // one way
  LinkSchedule jitter_us{0};   // uniform in [0, jitter] on top; bytes stay in order
  LinkSchedule loss{0};        // chance of a packet: everything behind it waits one `rto`
  LinkSchedule resets{0};      // a second, at random: the connection breaks
  int64_t rto_us = 200000;     // retransmission timeout
  size_t burst_bytes = 16384;  // may leave at once after a pause
  size_t queue_bytes = 0;      // that wait before the writer is held back; 0: 20 ms worth
  size_t packet_bytes = 1448;  // what `loss` is about
  uint64_t seed = 1;

  // kInvalidInput: names the key that is wrong. An empty text is a link without limits.
  static Result<LinkSpec> Parse(std::string_view text);
  // Parses to the same spec.
  [[nodiscard]] std::string ToString() const;
  friend bool operator==(const LinkSpec&, const LinkSpec&) = default;
};

}  // namespace kvik::transfer
