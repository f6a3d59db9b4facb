// SPDX-License-Identifier: Apache-2.0
#include "kv/eviction_policy.h"

#include <array>

#include "kv/lru_policy.h"
#include "kv/random_policy.h"

namespace kvik::kv {
namespace {

using Factory = std::unique_ptr<EvictionPolicy> (*)(const PolicyOptions&);

struct NamedPolicy {
  std::string_view name;
  Factory make;
};

// A new policy is a file and a line here.
constexpr std::array kPolicies = {
    NamedPolicy{"lru",
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<LruPolicy>(o.num_blocks);
                }},
    NamedPolicy{"random",
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<RandomPolicy>(o.num_blocks, o.seed);
                }},
};

constexpr auto kPolicyNames = [] {
  std::array<std::string_view, kPolicies.size()> names;
  for (size_t i = 0; i < names.size(); ++i) {
    names[i] = kPolicies[i].name;
  }
  return names;
}();

}  // namespace

std::span<const std::string_view> EvictionPolicyNames() { return kPolicyNames; }

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(const PolicyOptions& options) {
  std::string known;
  for (const NamedPolicy& policy : kPolicies) {
    if (policy.name == options.name) {
      return policy.make(options);
    }
    known += (known.empty() ? "" : ", ") + std::string(policy.name);
  }
  return Err(ErrorCode::kInvalidInput, "unknown eviction policy \"%s\": choose one of %s",
             options.name.c_str(), known.c_str());
}

}  // namespace kvik::kv
