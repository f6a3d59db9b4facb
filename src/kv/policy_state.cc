// SPDX-License-Identifier: Apache-2.0
#include "kv/policy_state.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json_parse.h"

namespace kvik::kv {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "kvik.policy-state";
constexpr int kVersion = 1;
constexpr JsonLimits kLimits{.max_bytes = size_t{64} << 20, .max_nesting = 10, .max_members = 64};

}  // namespace

std::string WritePolicyState(const EvictionPolicy& policy, int32_t block_size_tokens) {
  const std::string state = policy.SaveState();
  KVIK_CHECK(!state.empty(), "policy %s learns nothing", std::string(policy.name()).c_str());
  return Json{{"format", kFormat},
              {"version", kVersion},
              {"policy", std::string(policy.name())},
              {"block_size_tokens", block_size_tokens},
              {"state", Json::parse(state)}}
             .dump() +
         "\n";
}

Result<std::string> ReadPolicyState(std::string_view text, const std::string& policy,
                                    int32_t block_size_tokens) {
  KVIK_ASSIGN(const Json json, ParseJson<Json>(text, kLimits));
  if (!json.is_object() || json.value("format", Json()) != kFormat || !json.contains("state")) {
    return Err(ErrorCode::kInvalidInput, "is no saved state of an eviction policy");
  }
  if (json.value("version", Json()) != kVersion) {
    return Err(ErrorCode::kInvalidInput, "has a version other than %d", kVersion);
  }
  const Json owner = json.value("policy", Json());
  if (owner != policy && owner != std::string(WithoutOverlays(policy))) {
    return Err(ErrorCode::kInvalidInput, "was learned by policy %s, not by %s",
               owner.is_string() ? JsonExceptionText(owner.get<std::string>()).c_str() : "?",
               policy.c_str());
  }
  const Json size = json.value("block_size_tokens", Json());
  if (size != block_size_tokens) {
    return Err(ErrorCode::kInvalidInput, "was learned with blocks of %s tokens, not of %d",
               size.is_number() ? size.dump().c_str() : "?", block_size_tokens);
  }
  std::string state = json["state"].dump();
  KVIK_ASSIGN(const std::unique_ptr<EvictionPolicy> taster,
              MakeEvictionPolicy({.name = policy, .num_blocks = 1}));
  if (auto restored = taster->RestoreState(state); !restored.has_value()) {
    return Err(ErrorCode::kInvalidInput, "is damaged: %s", restored.error().message.c_str());
  }
  return state;
}

}  // namespace kvik::kv
