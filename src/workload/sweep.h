// SPDX-License-Identifier: Apache-2.0
// workload/sweep.h: one knob of the policies at a time through a list of values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/eviction_policy.h"
#include "workload/plot.h"
#include "workload/policy_variant.h"
#include "workload/replay.h"

namespace kvik::workload {

struct Sweep {
  enum class Knob {
    kLifespan,    // multiples of the 99th percentile of the trace's reuse gaps: offline
    kReuseProb,   // at the lifespan
    kSlopeRatio,  // of the curve beyond it
  };
  Knob knob = Knob::kLifespan;
  std::vector<double> values;  // as they were given
};

// "lifespan=0.25,0.5,1,2,4", "reuse-prob=0.1,0.5,0.9", "slope-ratio=10,40". kInvalidInput names
// the knobs, or the value that is out of its knob's range.
Result<Sweep> ParseSweep(std::string_view text);

// "lifespan, x P99 (offline)": of an axis.
std::string_view AxisOf(Sweep::Knob knob);

// The policy with the knob at this value, everything else as it was.
void Turn(Sweep::Knob knob, double value, PolicyVariant& variant, kv::PolicyOptions& shared);

// What a value did. Cells of one value and size stand in the order of the policies.
struct SweepCell {
  double value = 0;
  ReplayCell cell;
};

// As CellJson, with the knob and its value.
std::string SweepCellJson(const Sweep& sweep, const SweepCell& cell);
// Miss cost, a line a value and a column a policy, under a line of names; a block a size.
std::string FormatSweep(const Sweep& sweep, std::span<const SweepCell> cells);
// Miss cost against the value, a picture a size.
std::vector<Plot> SweepPlots(const Sweep& sweep, std::span<const SweepCell> cells);

}  // namespace kvik::workload
