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
#include <optional>

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

  // How much the caller should have sent for the sake of measuring, if anything: enough for about
  // 20 ms. It is under way then, and the next one waits for as long again.
  [[nodiscard]] std::optional<uint64_t> TakeProbe(int64_t now_us);

  struct Probe {
    uint64_t bytes = 0;       // that came, all that were asked for; 0: not in time
    int64_t elapsed_us = 0;   // since they were asked for
    uint64_t wire_bytes = 0;  // of them, or of what else came: back to back,
    int64_t wire_us = 0;      // and how long that took
  };
  // Counts as a sample. What should be sent at once to make something of it, if anything: where the
  // estimate was much too low the bytes come too quickly to tell how fast they were, and a sample
  // that contradicts the estimate is believed when a second one agrees.
  [[nodiscard]] std::optional<uint64_t> AddProbe(const Probe& probe, int64_t now_us);

 private:
  void Accept(double us_per_byte, int64_t busy_us, int64_t now_us);
  [[nodiscard]] uint64_t ProbeBytes() const;

  GoodputOptions options_;
  double us_per_byte_;
  double evidence_ = 0;
  int64_t last_us_ = 0;
  bool measured_ = false;
  double contradiction_ = 0;  // the sample before, if it was one; us a byte
  int64_t probed_us_ = 0;
  bool probed_ = false;
  int probes_in_a_row_ = 0;
};

}  // namespace kvik::control
