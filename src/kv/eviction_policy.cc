// SPDX-License-Identifier: Apache-2.0
#include "kv/eviction_policy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kv/asym_policy.h"
#include "kv/asym_run_policy.h"
#include "kv/continuum_policy.h"
#include "kv/fifo_policy.h"
#include "kv/gdsf_policy.h"
#include "kv/hazard_policy.h"
#include "kv/hint_policy.h"
#include "kv/lfu_policy.h"
#include "kv/lru_policy.h"
#include "kv/max_score_class_policy.h"
#include "kv/pensieve_policy.h"
#include "kv/random_policy.h"
#include "kv/retention_policy.h"
#include "kv/slru_policy.h"

namespace kvik::kv {
namespace {

using Factory = std::unique_ptr<EvictionPolicy> (*)(const PolicyOptions&);

struct NamedPolicy {
  std::string_view name;
  bool uses_cost;  // weighs PolicyOptions::cost
  bool learns;     // has a state to save
  Factory make;
};

// A new policy is a file and a line here.
constexpr std::array kPolicies = {
    NamedPolicy{"lru", false, false,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<LruPolicy>(o.num_blocks);
                }},
    NamedPolicy{"hazard", true, true,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<HazardPolicy>(o, HitScope::kGaps);
                }},
    NamedPolicy{"hazard-prefix", true, true,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<HazardPolicy>(o, HitScope::kPrefix);
                }},
    NamedPolicy{"asym", true, true,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<AsymPolicy>(o, kAsym);
                }},
    NamedPolicy{"asym-run", true, true,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<AsymRunPolicy>(o);
                }},
    NamedPolicy{"asym-last", true, true,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<AsymPolicy>(o, kAsymLast);
                }},
    NamedPolicy{"max-score", false, true,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<AsymPolicy>(o, kMaxScore);
                }},
    NamedPolicy{"pensieve", true, false,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<PensievePolicy>(o);
                }},
    NamedPolicy{"lfu", false, false,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<LfuPolicy>(o);
                }},
    NamedPolicy{"slru", false, false,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<SlruPolicy>(o);
                }},
    NamedPolicy{"fifo", false, false,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<FifoPolicy>(o);
                }},
    NamedPolicy{"gdsf", true, false,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<GdsfPolicy>(o);
                }},
    NamedPolicy{"max-score-class", false, false,
                [](const PolicyOptions& o) -> std::unique_ptr<EvictionPolicy> {
                  return std::make_unique<MaxScoreClassPolicy>(o);
                }},
    NamedPolicy{"random", false, false,
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

constexpr std::array<std::string_view, 1> kOverlayNames = {"continuum"};

std::string ListOf(std::span<const std::string_view> names) {
  std::string list;
  for (const std::string_view name : names) {
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  return list;
}

Result<void> CheckReuseCurve(const PolicyOptions& o) {
  if (!(o.lifespan_s >= 0 && std::isfinite(o.lifespan_s))) {
    return Err(ErrorCode::kInvalidInput, "lifespan is %g s: 0 to learn it, or more", o.lifespan_s);
  }
  if (!(o.reuse_prob > 0 && o.reuse_prob < 1)) {
    return Err(ErrorCode::kInvalidInput, "reuse probability is %g: between 0 and 1", o.reuse_prob);
  }
  if (!(o.slope_ratio > 1 && std::isfinite(o.slope_ratio))) {
    return Err(ErrorCode::kInvalidInput, "slope ratio is %g: more than 1", o.slope_ratio);
  }
  return {};
}

}  // namespace

std::span<const std::string_view> EvictionPolicyNames() { return kPolicyNames; }

bool PolicyUsesCost(std::string_view name) {
  return std::any_of(kPolicies.begin(), kPolicies.end(), [&](const NamedPolicy& policy) {
    return policy.name == WithoutOverlays(name) && policy.uses_cost;
  });
}

bool PolicyLearns(std::string_view name) {
  const std::string_view base = WithoutOverlays(name);
  return base != name ||  // continuum learns durations
         std::any_of(kPolicies.begin(), kPolicies.end(), [&](const NamedPolicy& policy) {
           return policy.name == base && policy.learns;
         });
}

std::string_view WithoutOverlays(std::string_view name) { return name.substr(0, name.find('+')); }

std::span<const std::string_view> EvictionOverlayNames() { return kOverlayNames; }

Result<std::unique_ptr<EvictionPolicy>> AddOverlays(const PolicyOptions& options,
                                                    std::unique_ptr<EvictionPolicy> policy) {
  const bool weighs_hints = policy->WeighsHints();
  bool continuum = false;
  std::string_view rest = options.name;
  for (rest.remove_prefix(WithoutOverlays(rest).size()); !rest.empty();) {
    const std::string_view overlay = WithoutOverlays(rest.substr(1));
    rest.remove_prefix(1 + overlay.size());
    if (overlay != "continuum") {
      return Err(ErrorCode::kInvalidInput, "unknown overlay \"%s\" of policy \"%s\": choose of %s",
                 std::string(overlay).c_str(), options.name.c_str(), ListOf(kOverlayNames).c_str());
    }
    if (continuum) {
      return Err(ErrorCode::kInvalidInput, "overlay \"continuum\" is twice in policy \"%s\"",
                 options.name.c_str());
    }
    continuum = true;
    policy = std::make_unique<ContinuumPolicy>(std::move(policy), options);
  }
  // The more a client says, the further out: its ranges outrank its hints, and those a guess.
  if (options.obey_clients) {
    if (!weighs_hints) {
      policy = std::make_unique<HintPolicy>(std::move(policy), options, continuum);
    }
    policy = std::make_unique<RetentionPolicy>(std::move(policy), options);
  }
  return policy;
}

Result<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(const PolicyOptions& options) {
  KVIK_TRY(CheckReuseCurve(options));
  const std::string_view base = WithoutOverlays(options.name);
  for (const NamedPolicy& policy : kPolicies) {
    if (policy.name == base) {
      return AddOverlays(options, policy.make(options));
    }
  }
  return Err(ErrorCode::kInvalidInput, "unknown eviction policy \"%s\": choose one of %s",
             std::string(base).c_str(), ListOf(kPolicyNames).c_str());
}

}  // namespace kvik::kv
