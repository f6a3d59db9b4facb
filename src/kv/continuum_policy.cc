// SPDX-License-Identifier: Apache-2.0
// The state as text:
//
//   {"kvik_continuum": 1, "durations": {...}, "below": {...}}     below: null if it learns nothing
#include "kv/continuum_policy.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_parse.h"

namespace kvik::kv {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr int32_t kPinPriority = 60;
constexpr JsonLimits kLimits{.max_bytes = size_t{1} << 25, .max_nesting = 10};

}  // namespace

ContinuumPolicy::ContinuumPolicy(std::unique_ptr<EvictionPolicy> inner,
                                 const PolicyOptions& options)
    : WithholdingPolicy(std::move(inner), options.num_blocks, kMaxPinnedShare),
      name_(std::string(this->inner().name()) + "+continuum"),
      returns_(options.num_blocks) {}

void ContinuumPolicy::Track(const TrackedBlock& block) {
  returns_.Track(block);
  WithholdingPolicy::Track(block);
}

void ContinuumPolicy::Hit(std::span<const BlockId> blocks, const Access& access) {
  returns_.Hit(blocks, access);
  WithholdingPolicy::Hit(blocks, access);
}

void ContinuumPolicy::Missed(std::span<const uint64_t> contents, const Access& access) {
  returns_.Missed(contents, access);
  WithholdingPolicy::Missed(contents, access);
}

void ContinuumPolicy::Forget(BlockId block) {
  returns_.Forgotten(block);
  WithholdingPolicy::Forget(block);
}

std::vector<BlockId> ContinuumPolicy::SelectVictims(size_t count, int64_t now_us) {
  std::vector<BlockId> victims = WithholdingPolicy::SelectVictims(count, now_us);
  returns_.Evicted(victims);
  return victims;
}

std::vector<PolicyReading> ContinuumPolicy::Readings() const {
  std::vector<PolicyReading> readings = WithholdingPolicy::Readings();
  readings.push_back({"tool_calls_awaited", "Requests that called a tool and are not back.", "",
                      static_cast<double>(returns_.num_departures())});
  readings.push_back({"tool_calls_returned_total", "Requests that came back from a tool.", "",
                      static_cast<double>(durations().num_samples()), true});
  return readings;
}

void ContinuumPolicy::Judge(std::span<const BlockId> blocks, const Access& access,
                            std::vector<Verdict>& verdicts) {
  const RequestFacts& request = access.request;
  if (!request.tool_call || request.will_continue == false || blocks.empty()) {
    return;
  }
  const int64_t wait_us = returns_.durations().ExpectedUs(request.tool);
  returns_.Depart(request.tool, blocks, access);
  verdicts.assign(
      blocks.size(),
      Verdict{.priority = kPinPriority, .until_us = access.now_us + wait_us, .pin = true});
}

bool ContinuumPolicy::HoldsFor(std::span<const BlockId> blocks, uint64_t session) const {
  const BlockId awaited = returns_.AwaitedBlock(blocks, session);
  return (awaited != kNoBlock && IsWithheld(awaited)) ||
         WithholdingPolicy::HoldsFor(blocks, session);
}

std::string ContinuumPolicy::SaveState() const {
  const std::string below = WithholdingPolicy::SaveState();
  return Json{{"kvik_continuum", kVersion},
              {"durations", Json::parse(durations().SaveState())},
              {"below", below.empty() ? Json() : Json::parse(below)}}
      .dump();
}

Result<void> ContinuumPolicy::RestoreState(std::string_view state) {
  Result<Json> parsed = ParseJson<Json>(state, kLimits);
  if (!parsed || !parsed->is_object() || !parsed->contains("kvik_continuum")) {
    return WithholdingPolicy::RestoreState(state);
  }
  const auto wrong = [](const std::string& what) {
    return Error{ErrorCode::kInvalidInput, "the saved state of continuum " + what};
  };
  if ((*parsed)["kvik_continuum"] != kVersion) {
    return wrong("has a version other than " + std::to_string(kVersion));
  }
  if (!parsed->contains("durations") || !parsed->contains("below")) {
    return wrong("lacks durations, or what the policy below learned");
  }
  DurationHistory durations;
  KVIK_TRY(durations.RestoreState((*parsed)["durations"].dump()));
  const Json& below = (*parsed)["below"];
  KVIK_TRY(WithholdingPolicy::RestoreState(below.is_null() ? std::string() : below.dump()));
  returns_.mutable_durations() = std::move(durations);
  return {};
}

}  // namespace kvik::kv
