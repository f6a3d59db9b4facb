// SPDX-License-Identifier: Apache-2.0
// kv/duration_history.h: how long things of a kind take until the request comes back, as a tool
// call: a quantile of what was seen lately, of this kind or, before enough of it, of all kinds.
//
// The quantile is 0.9. A pin is worth its room while a return is likely; tool times have long tails
// (log-normal with sigma 0.8: P90 is 2.8 medians, P99 6.4), so the last tenth of the returns would
// cost more waiting in the cache than all the others together. Memory is bounded.
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/result.h"
#include "kv/gap_histogram.h"

namespace kvik::kv {

class DurationHistory {
 public:
  static constexpr double kQuantile = 0.9;
  static constexpr int64_t kMinSamples = 10;  // before them a kind has no history of its own
  static constexpr double kFirstGuessS = 10;  // before anything is known
  static constexpr double kMaxS = 600;        // no quantile is believed beyond this
  static constexpr size_t kMaxKinds = 256;    // later ones count for all kinds only
  static constexpr int64_t kForgetAfterSamples = 500;  // then a kind's past counts half

  void Add(uint64_t kind, int64_t duration_us);
  // How long to wait for a return. > 0.
  [[nodiscard]] int64_t ExpectedUs(uint64_t kind) const;

  [[nodiscard]] size_t num_kinds() const { return kinds_.size(); }
  [[nodiscard]] int64_t num_samples() const { return all_.gaps.num_samples(); }

  // As JSON, a value of an object.
  [[nodiscard]] std::string SaveState() const;
  // kInvalidInput, with nothing changed, for what SaveState cannot have said.
  Result<void> RestoreState(std::string_view state);

 private:
  struct Kind {
    GapHistogram gaps;
    int64_t until_decay = kForgetAfterSamples;
    void Add(int64_t duration_us);
  };
  std::map<uint64_t, Kind> kinds_;
  Kind all_;
};

}  // namespace kvik::kv
