// SPDX-License-Identifier: Apache-2.0
// What "hazard" has learned, as JSON:
//
//   {"format": "kvik.hazard", "version": 1, "bins": 34, "eviction_age_s": 12.5,
//    "nodes": [{"node": 7, "returns": [...], "waiting_s": [...]}, ...]}
//
// Nodes that have seen nothing are left out. The contents of the cache are not part of it.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json_parse.h"
#include "kv/hazard_policy.h"

namespace kvik::kv {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "kvik.hazard";
constexpr int kVersion = 1;
constexpr double kMaxNumber = 1e15;
constexpr JsonLimits kLimits{.max_bytes = size_t{64} << 20, .max_nesting = 8, .max_members = 64};

bool ReadNumber(const Json& json, double& number) {
  if (!json.is_number()) {
    return false;
  }
  number = json.get<double>();
  return std::isfinite(number) && number >= 0 && number <= kMaxNumber;
}

bool ReadBins(const Json& json, std::array<double, ReuseHazard::kNumBins>& bins) {
  if (!json.is_array() || json.size() != bins.size()) {
    return false;
  }
  for (size_t i = 0; i < bins.size(); ++i) {
    if (!ReadNumber(json[i], bins[i])) {
      return false;
    }
  }
  return true;
}

bool Empty(const ReuseHazard::Counts& counts) {
  for (size_t i = 0; i < counts.returns.size(); ++i) {
    if (counts.returns[i] > 0 || counts.waiting_s[i] > 0) {
      return false;
    }
  }
  return true;
}

Error BadState(const std::string& what) {
  return Error{ErrorCode::kInvalidInput, "state of the hazard policy " + what};
}

const Json& Member(const Json& object, const char* name) {
  static const Json kNothing;
  const auto it = object.find(name);
  return it == object.end() ? kNothing : *it;
}

}  // namespace

std::string HazardPolicy::SaveState() const {
  Json nodes = Json::array();
  for (int node = 0; node < hazard_.num_nodes(); ++node) {
    const ReuseHazard::Counts counts = hazard_.counts(node);
    if (!Empty(counts)) {
      nodes.push_back(
          {{"node", node}, {"returns", counts.returns}, {"waiting_s", counts.waiting_s}});
    }
  }
  return Json{{"format", kFormat},
              {"version", kVersion},
              {"bins", ReuseHazard::kNumBins},
              {"eviction_age_s", eviction_age_s_},
              {"nodes", std::move(nodes)}}
      .dump();
}

Result<void> HazardPolicy::RestoreState(std::string_view state) {
  if (state.empty()) {
    return {};
  }
  auto parsed = ParseJson<Json>(state, kLimits);
  if (!parsed) {
    return BadState(parsed.error().message);
  }
  const Json& json = *parsed;
  if (!json.is_object() || Member(json, "format") != kFormat ||
      Member(json, "version") != kVersion || Member(json, "bins") != ReuseHazard::kNumBins) {
    return BadState("is of another format or version");
  }
  double eviction_age_s = 0;
  if (!ReadNumber(Member(json, "eviction_age_s"), eviction_age_s)) {
    return BadState("has no valid eviction_age_s");
  }
  const Json& nodes = Member(json, "nodes");
  if (!nodes.is_array() || nodes.size() > static_cast<size_t>(hazard_.num_nodes())) {
    return BadState("has no valid list of nodes");
  }
  std::vector<std::pair<int, ReuseHazard::Counts>> read;
  for (const Json& item : nodes) {
    double node = 0;
    ReuseHazard::Counts counts;
    if (!item.is_object() || !ReadNumber(Member(item, "node"), node) ||
        node >= hazard_.num_nodes() || node != std::floor(node) ||
        !ReadBins(Member(item, "returns"), counts.returns) ||
        !ReadBins(Member(item, "waiting_s"), counts.waiting_s)) {
      return BadState("has a node that is not valid");
    }
    read.emplace_back(static_cast<int>(node), counts);
  }
  for (const auto& [node, counts] : read) {
    hazard_.set_counts(node, counts);
  }
  eviction_age_s_ = eviction_age_s;
  return {};
}

}  // namespace kvik::kv
