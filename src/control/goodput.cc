// SPDX-License-Identifier: Apache-2.0
#include "control/goodput.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvik::control {
namespace {

// Samples that an estimate is worth at most.
constexpr double kMostEvidence = 32;
constexpr double kProbeUs = 20'000;
constexpr uint64_t kSmallestProbe = 64 << 10;
constexpr uint64_t kLargestProbe = 4 << 20;
constexpr uint64_t kProbeGrowth = 4;
constexpr int kMostProbesInARow = 6;

}  // namespace

Goodput::Goodput(const GoodputOptions& options)
    : options_(options), us_per_byte_(1e6 / options.initial_bytes_per_s) {
  KVIK_CHECK(options.initial_bytes_per_s > 0 && options.alpha > 0 && options.alpha <= 1);
  KVIK_CHECK(options.jump > 1 && options.half_life_us > 0);
}

double Goodput::Evidence(int64_t now_us) const {
  const auto age_us = static_cast<double>(std::max<int64_t>(0, now_us - last_us_));
  return evidence_ * std::exp2(-age_us / static_cast<double>(options_.half_life_us));
}

int64_t Goodput::AgeUs(int64_t now_us) const {
  return measured_ ? std::max<int64_t>(0, now_us - last_us_) : -1;
}

void Goodput::Add(uint64_t bytes, int64_t busy_us, int64_t now_us) {
  if (bytes < options_.min_sample_bytes || busy_us <= 0) {
    return;
  }
  Accept(static_cast<double>(busy_us) / static_cast<double>(bytes), busy_us, now_us);
}

void Goodput::AddFloor(uint64_t bytes, int64_t elapsed_us, int64_t now_us) {
  if (bytes < options_.min_sample_bytes || elapsed_us <= 0) {
    return;
  }
  const double sample = static_cast<double>(elapsed_us) / static_cast<double>(bytes);
  if (!measured_ || sample < us_per_byte_) {
    Accept(sample, elapsed_us, now_us);
  }
}

void Goodput::Accept(double sample, int64_t busy_us, int64_t now_us) {
  const double evidence = Evidence(now_us);
  const bool slower = sample > us_per_byte_ * options_.jump;
  const bool faster = sample * options_.jump < us_per_byte_;
  const bool again = (slower && contradiction_ > us_per_byte_) ||
                     (faster && contradiction_ > 0 && contradiction_ < us_per_byte_);
  if (!measured_) {
    us_per_byte_ = sample;
    evidence_ = 1;
  } else if (again) {
    us_per_byte_ = (sample + contradiction_) / 2;
    evidence_ = 2;
    contradiction_ = 0;
  } else {
    // The first samples and those after a pause weigh more than alpha: as much as what is known.
    const double share =
        std::min(1.0, static_cast<double>(busy_us) / static_cast<double>(options_.full_sample_us));
    const double weight = std::max(options_.alpha * share, 1 / (1 + evidence));
    us_per_byte_ += weight * (sample - us_per_byte_);
    evidence_ = std::min(evidence + 1, kMostEvidence);
    contradiction_ = slower || faster ? sample : 0;
  }
  measured_ = true;
  last_us_ = now_us;
}

std::optional<uint64_t> Goodput::TakeProbe(int64_t now_us) {
  const bool known = measured_ && now_us - last_us_ < options_.probe_after_us;
  const bool asked = probed_ && now_us - probed_us_ < options_.probe_after_us;
  if (known || asked) {
    return std::nullopt;
  }
  probed_ = true;
  probed_us_ = now_us;
  probes_in_a_row_ = 1;
  return ProbeBytes();
}

std::optional<uint64_t> Goodput::AddProbe(const Probe& probe, int64_t now_us) {
  const bool timed = probe.wire_bytes >= options_.min_sample_bytes && probe.wire_us > 0;
  if (timed) {
    Add(probe.wire_bytes, probe.wire_us, now_us);
  } else {
    AddFloor(probe.bytes, probe.elapsed_us, now_us);
  }
  if (probe.bytes == 0 || probes_in_a_row_ >= kMostProbesInARow) {
    return std::nullopt;
  }
  const bool quick = static_cast<double>(probe.elapsed_us) < kProbeUs / kProbeGrowth &&
                     probe.bytes < kLargestProbe;
  if (!quick && contradiction_ == 0) {
    return std::nullopt;
  }
  ++probes_in_a_row_;
  probed_us_ = now_us;
  return quick ? std::min(probe.bytes * kProbeGrowth, kLargestProbe) : probe.bytes;
}

uint64_t Goodput::ProbeBytes() const {
  const double bytes = kProbeUs / us_per_byte_;
  return static_cast<uint64_t>(
      std::clamp(bytes, static_cast<double>(kSmallestProbe), static_cast<double>(kLargestProbe)));
}

}  // namespace kvik::control
