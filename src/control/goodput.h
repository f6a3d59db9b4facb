// SPDX-License-Identifier: Apache-2.0
// control/goodput.h: how fast bytes reach a peer, as measured by what was sent there.
//
// The estimate follows samples with an exponential average of time per byte, for which transfer
// times are linear. It ages: after a pause the next sample weighs more. Two samples in a row that
// contradict it in the same direction replace it: that is a link that has changed, which an average
// would take ten transfers to believe.
//
// Thread-compatible; time is an argument.
#pragma once

#include <cstdint>

namespace kvik::control {

struct GoodputOptions {
  double initial_bytes_per_s = 125e6;  // until the first sample
  double alpha = 0.2;                  // most weight of a sample against a fresh estimate
  int64_t full_sample_us = 300'000;    // busy for so long it has that weight, else in proportion
  double jump = 2;                     // a factor off the estimate that contradicts it
  int64_t half_life_us = 20'000'000;   // of the evidence: old samples count half
  int64_t probe_after_us = 5'000'000;  // without a sample
  uint64_t min_sample_bytes = 16384;   // less says more about delays than about the link
};

class Goodput {
 public:
  explicit Goodput(const GoodputOptions& options = {});

  // `bytes` went over the wire in `busy_us`, while the sender always had more to send: transfers
  // that waited for the encoder or the reader belong to AddFloor.
  void Add(uint64_t bytes, int64_t busy_us, int64_t now_us);
  // The link has carried at least this: it can only raise the estimate.
  void AddFloor(uint64_t bytes, int64_t elapsed_us, int64_t now_us);

  [[nodiscard]] double bytes_per_s() const { return 1e6 / us_per_byte_; }
  [[nodiscard]] double us_per_byte() const { return us_per_byte_; }
  // Samples that the estimate is worth: 0 before the first, halving with age.
  [[nodiscard]] double Evidence(int64_t now_us) const;
  [[nodiscard]] int64_t AgeUs(int64_t now_us) const;  // since the last sample; -1: never

  // Whether the caller should send something for the sake of measuring, and how much: enough for
  // about 20 ms. A probe that ran counts as a sample; the first call that says yes starts it, and
  // the next one waits for as long again.
  [[nodiscard]] bool TakeProbe(int64_t now_us);
  [[nodiscard]] uint64_t probe_bytes() const;

 private:
  void Accept(double us_per_byte, int64_t busy_us, int64_t now_us);

  GoodputOptions options_;
  double us_per_byte_;
  double evidence_ = 0;
  int64_t last_us_ = 0;
  bool measured_ = false;
  double contradiction_ = 0;  // the sample before, if it was one; us a byte
  int64_t probed_us_ = 0;
  bool probed_ = false;
};

}  // namespace kvik::control
