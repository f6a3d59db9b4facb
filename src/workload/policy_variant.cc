// SPDX-License-Identifier: Apache-2.0
#include "workload/policy_variant.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "workload/offline_policies.h"
#include "workload/replay_stats.h"

namespace kvik::workload {
namespace {

// "p99" or "p99xNUMBER"; 0: neither.
double MultipleOfP99(std::string_view text) {
  if (!text.starts_with("p99")) {
    return 0;
  }
  text.remove_prefix(3);
  if (text.empty()) {
    return 1;
  }
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), factor);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return text.front() == 'x' && whole && factor >= 1e-6 && factor <= 1e6 ? factor : 0;
}

}  // namespace

Result<PolicyVariant> ParsePolicyVariant(std::string_view text) {
  PolicyVariant variant;
  variant.label = text;
  size_t at = text.find('@');
  variant.policy = text.substr(0, at);
  while (at != std::string_view::npos) {
    text.remove_prefix(at + 1);
    at = text.find('@');
    const std::string_view word = text.substr(0, at);
    const double multiple = MultipleOfP99(word);
    if (word == "scan") {
      variant.selection = kv::VictimSelection::kScan;
    } else if (word == "batch") {
      variant.selection = kv::VictimSelection::kBatch;
    } else if (multiple > 0) {
      variant.lifespan_in_p99 = multiple;
    } else {
      return Err(ErrorCode::kInvalidInput,
                 "policy \"%s\": after @ comes scan, batch, p99 or p99x2 (a multiple)",
                 variant.label.c_str());
    }
  }
  return variant;
}

bool IsOffline(const PolicyVariant& variant) {
  const auto offline = OfflinePolicyNames();
  return variant.lifespan_in_p99 > 0 ||
         std::find(offline.begin(), offline.end(), variant.policy) != offline.end();
}

kv::PolicyOptions OptionsOf(const PolicyVariant& variant, const kv::PolicyOptions& shared,
                            double p99_gap_s) {
  kv::PolicyOptions options = shared;
  options.name = variant.policy;
  if (variant.selection != kv::VictimSelection::kAuto) {
    options.selection = variant.selection;
  }
  if (variant.lifespan_in_p99 > 0) {
    options.lifespan_s = variant.lifespan_in_p99 * p99_gap_s;
  }
  return options;
}

double ReuseGapP99(const Trace& trace) {
  const std::vector<ReuseGaps> gaps = ReuseGapsOf(trace);
  return gaps.empty() ? 0 : Quantile(gaps.front().gaps_s, 0.99);
}

}  // namespace kvik::workload
