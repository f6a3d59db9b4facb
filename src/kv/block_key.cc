// SPDX-License-Identifier: Apache-2.0
#include "kv/block_key.h"

#include <xxhash.h>

#include <algorithm>

#include "base/fnv.h"

namespace kvik::kv {
namespace {

float Lesser(float a, float b) { return a >= 0 && b >= 0 ? std::min(a, b) : 0.0F; }

}  // namespace

WorkloadTag WorkloadTag::Of(std::string_view label) {
  const uint64_t hash = Fnv1a(label);
  const auto folded = static_cast<uint32_t>(hash ^ (hash >> 32));
  return {folded != 0 ? folded : 1};
}

BlockQuality WorseOf(const BlockQuality& a, const BlockQuality& b, WorkloadTag workload) {
  BlockQuality worse;
  worse.fidelity = a.fidelity == Fidelity::kLossy || b.fidelity == Fidelity::kLossy
                       ? Fidelity::kLossy
                       : Fidelity::kExact;
  worse.q = Lesser(a.q, b.q);
  worse.workload = workload.value != 0 ? workload : a.workload.value != 0 ? a.workload : b.workload;
  worse.workload_q = Lesser(a.For(worse.workload), b.For(worse.workload));
  return worse;
}

NumericsTag NumericsTag::FromDescription(std::string_view description) {
  return NumericsTag{XXH3_64bits(description.data(), description.size())};
}

}  // namespace kvik::kv
