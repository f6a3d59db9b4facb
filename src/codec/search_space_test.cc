// SPDX-License-Identifier: Apache-2.0
#include "codec/search_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

namespace kvik::codec {
namespace {

TEST(SearchSpace, HasTheSizeThatASearchIsJudgedOn) {
  const SearchSpace space = EnumerateSearchSpace();
  std::set<std::string> distinct;
  size_t across = 0;
  size_t mixhq_with_hadamard = 0;
  for (const Candidate& candidate : space.candidates) {
    const std::string text = candidate.pipeline.ToString();
    distinct.insert(text.substr(0, text.rfind(" -> ")));
    across += candidate.across_methods ? 1U : 0U;
    mixhq_with_hadamard +=
        candidate.transforms == "hadamard" && candidate.quantizer == "mixhq" ? 1U : 0U;
  }
  EXPECT_EQ(distinct.size(), space.candidates.size());
  EXPECT_GE(space.candidates.size(), 4000U);
  EXPECT_GE(across, 1000U);
  EXPECT_GE(mixhq_with_hadamard, 3969U);
  std::printf("%zu candidates, %zu of them across methods; %zu combinations refused\n",
              space.candidates.size(), across, space.refused.size());
}

TEST(SearchSpace, EveryTransformMeetsEveryQuantizerOrTheReasonIsGiven) {
  const SearchSpace space = EnumerateSearchSpace();
  std::set<std::string> transforms;
  std::set<std::string> quantizers;
  std::set<std::string> met;
  for (const Candidate& candidate : space.candidates) {
    transforms.insert(candidate.transforms);
    quantizers.insert(candidate.quantizer);
    met.insert(candidate.transforms + " " + candidate.quantizer);
  }
  EXPECT_GE(transforms.size(), 12U);
  EXPECT_GE(quantizers.size(), 7U);
  for (const Refused& refused : space.refused) {
    EXPECT_FALSE(refused.reason.empty());
  }
  const size_t missing = transforms.size() * quantizers.size() - met.size();
  EXPECT_LE(missing, space.refused.size());
}

TEST(SearchSpace, AnyCoderMayStandBehindACandidate) {
  const SearchSpace space = EnumerateSearchSpace();
  for (size_t i = 0; i < space.candidates.size(); i += 101) {
    for (const std::string& coder : CodersToSearch()) {
      const PipelineSpec pipeline = WithCoder(space.candidates[i].pipeline, coder);
      EXPECT_EQ(pipeline.key.transforms, space.candidates[i].pipeline.key.transforms);
      EXPECT_EQ(pipeline.key.quantizer, space.candidates[i].pipeline.key.quantizer);
      EXPECT_EQ(pipeline.value.coder.ToString(), coder);
    }
  }
}

}  // namespace
}  // namespace kvik::codec
