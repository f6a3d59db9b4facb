// SPDX-License-Identifier: Apache-2.0
#include "eval/starter_profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "codec/pipeline.h"

namespace kvik::eval {
namespace {

TEST(StarterProfiles, AreLegalAndDiffer) {
  std::set<std::string> names;
  std::set<std::string> pipelines;
  for (const NamedPipeline& profile : StarterProfiles()) {
    const auto spec = codec::PipelineSpec::Parse(profile.pipeline);
    ASSERT_TRUE(spec) << profile.name << ": " << spec.error().message;
    EXPECT_TRUE(names.insert(profile.name).second) << profile.name;
    EXPECT_TRUE(pipelines.insert(spec->ToString()).second) << profile.pipeline;
  }
  EXPECT_GE(names.size(), 12U);
}

TEST(StarterProfiles, AListHasOneALine) {
  const auto profiles = ParseProfileList(
      "# mine\n\n  a-1 = none -> none -> rans(tables=adaptive)  # exact\nb=none -> none -> none");
  ASSERT_TRUE(profiles) << profiles.error().message;
  ASSERT_EQ(profiles->size(), 2U);
  EXPECT_EQ((*profiles)[0].name, "a-1");
  EXPECT_EQ((*profiles)[0].pipeline, "none -> none -> rans(tables=adaptive)");
  EXPECT_EQ((*profiles)[1].name, "b");
}

TEST(StarterProfiles, ALineThatIsNoProfileIsNamed) {
  for (const char* text : {"a = x\nnone -> none -> none", "a = x\n = none", "a = x\nk:b = c"}) {
    const auto profiles = ParseProfileList(text);
    ASSERT_FALSE(profiles) << text;
    EXPECT_THAT(profiles.error().message, ::testing::HasSubstr("line 2 ")) << text;
  }
}

}  // namespace
}  // namespace kvik::eval
