// SPDX-License-Identifier: Apache-2.0
// Which chains of transforms are legal, and how many.
#include "codec/stages/chain_rules.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "codec/registry.h"

namespace kvik::codec {
namespace {

std::string Outcome(const std::string& transforms) {
  const auto pipeline = PipelineSpec::Parse(transforms + " -> none -> none");
  return pipeline ? "legal" : pipeline.error().message;
}

TEST(ChainRules, SensibleChainsAreLegal) {
  for (const char* chain :
       {"k:center+prerope+hadamard|v:center+hadamard", "k:prerope+center+klt|v:center+klt",
        "k:selfcenter+prerope+qklt(share=0.5)+affine|v:none", "k:prerope+delta+hadamard|v:delta",
        "hadamard+delta", "delta+klt+hadamard", "affine+hadamard", "center+affine+klt",
        "hadamard+affine", "k:center+prerope+delta+affine+klt+hadamard|v:affine(kind=full)+delta",
        "keep(streaming=0.7)+hadamard", "keep"}) {
    EXPECT_EQ(Outcome(chain), "legal") << chain;
  }
}

TEST(ChainRules, SenselessChainsAreRefusedWithTheReason) {
  const std::pair<const char*, const char*> refused[] = {
      {"prerope", "values: prerope: values carry no rotary positions"},
      {"k:prerope+prerope|v:none", "turned back already"},
      {"k:hadamard(seed=4)+prerope|v:none", "hadamard(seed=4) has mixed the pairs of channels"},
      {"k:affine+prerope|v:none", "affine has mixed the pairs of channels"},
      {"k:klt+prerope|v:none", "klt has mixed the pairs of channels"},
      {"k:delta+prerope|v:none", "differences of keys at two positions"},
      {"center+center", "center has removed the mean already"},
      {"k:center+prerope+selfcenter|v:none", "center has removed the mean already"},
      {"hadamard+center", "hadamard is linear"},
      {"delta+selfcenter", "no mean worth removing"},
      {"hadamard+hadamard(seed=2)", "hadamard has spread the channels already"},
      {"delta+delta(group=5)", "delta has taken the differences already"},
      {"klt+qklt", "one basis is enough"},
      {"hadamard+klt", "undoes hadamard"},
      {"affine+affine", "can do the work of both"},
      {"klt+affine(kind=full)", "a full matrix can do the work of klt too"},
      {"hadamard+keep", "keep chooses which slots are kept, so it stands before"},
  };
  for (const auto& [chain, reason] : refused) {
    EXPECT_NE(Outcome(chain).find(reason), std::string::npos) << chain << ": " << Outcome(chain);
  }
}

// All combinations of values that a search tries.
std::vector<std::string> Variants(const StageModule& module) {
  std::vector<std::string> variants = {""};
  for (const ParamSpec& param : module.params) {
    if (param.search.empty()) {
      continue;
    }
    std::vector<std::string> longer;
    for (const std::string& variant : variants) {
      for (const ArgValue& value : param.search) {
        char number[32];
        std::snprintf(number, sizeof(number), "%g", value.number);
        longer.push_back(variant + (variant.empty() ? "" : ",") + param.name + "=" +
                         (value.word.empty() ? number : value.word));
      }
    }
    variants = std::move(longer);
  }
  for (std::string& variant : variants) {
    variant = module.name + "(" + variant + ")";
  }
  return variants;
}

// Grows legal chains stage by stage: what is refused in a chain is refused in every longer one.
std::set<std::string> LegalChains(kv::KvPart part, size_t most_stages) {
  std::set<std::string> found;
  const std::function<void(const std::string&, size_t)> grow = [&](const std::string& chain,
                                                                   size_t stages) {
    for (const StageModule* module : AllStages()) {
      if (module->kind != StageKind::kTransform || stages == most_stages) {
        continue;
      }
      for (const std::string& variant : Variants(*module)) {
        const std::string longer = chain.empty() ? variant : chain + "+" + variant;
        const auto pipeline = PipelineSpec::Parse(part == kv::KvPart::kKey
                                                      ? "k:" + longer + "|v:none -> none -> none"
                                                      : "k:none|v:" + longer + " -> none -> none");
        if (pipeline) {
          found.insert(pipeline->part(part).TransformsBefore(stages + 1));
          grow(longer, stages + 1);
        }
      }
    }
  };
  grow("", 0);
  return found;
}

TEST(ChainRules, AreWideEnoughForASearch) {
  const size_t keys = LegalChains(kv::KvPart::kKey, 4).size();
  const size_t values = LegalChains(kv::KvPart::kValue, 4).size();
  RecordProperty("keys", static_cast<int>(keys));
  RecordProperty("values", static_cast<int>(values));
  EXPECT_GT(keys, 500U);
  EXPECT_GT(values, 150U);
  EXPECT_LT(keys, 20000U);  // and not so wide that most of it is the same in other words
}

TEST(ChainRules, EveryTransformAndSelectorSaysWhatItIs) {
  size_t transforms = 0;
  for (const StageModule* module : AllStages()) {
    if (module->kind != StageKind::kTransform && module->kind != StageKind::kSelector) {
      continue;
    }
    ++transforms;
    EXPECT_FALSE(module->summary.empty()) << module->name;
    for (const ParamSpec& param : module->params) {
      EXPECT_FALSE(param.summary.empty()) << module->name << " " << param.name;
    }
  }
  EXPECT_GE(transforms, 9U);
}

}  // namespace
}  // namespace kvik::codec
