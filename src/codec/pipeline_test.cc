// SPDX-License-Identifier: Apache-2.0
#include "codec/pipeline.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "codec/registry.h"
#include "codec/stage.h"

namespace kvik::codec {
namespace {

const std::vector<ParamSpec>& Params() {
  static const std::vector<ParamSpec> kParams = [] {
    ParamSpec levels;
    levels.name = "levels";
    levels.min = 2;
    levels.max = 256;
    levels.allocatable = true;
    levels.default_value = ArgValue::Number(16);
    ParamSpec per;
    per.name = "per";
    per.type = ParamSpec::Type::kWord;
    per.words = {"token", "channel"};
    per.default_value = ArgValue::Word("token");
    ParamSpec distortion;
    distortion.name = "d";
    distortion.type = ParamSpec::Type::kReal;
    distortion.min = 0;
    distortion.max = 10;
    distortion.default_value = ArgValue::Number(0.02);
    return std::vector<ParamSpec>{levels, per, distortion};
  }();
  return kParams;
}

using Given = std::vector<std::pair<std::string, ArgValue>>;

TEST(StageArgs, TakesNamesPositionsAndDefaults) {
  const auto args = StageArgs::Check(
      "stage", Params(), Given{{"d", ArgValue::Number(0.5)}, {"", ArgValue::Number(5)}});
  ASSERT_TRUE(args) << args.error().message;
  EXPECT_EQ(args->Integer("levels"), 5);
  EXPECT_EQ(args->Word("per"), "token");
  EXPECT_EQ(args->Real("d"), 0.5);
  EXPECT_EQ(args->Canonical(),
            (Given{{"levels", ArgValue::Number(5)}, {"d", ArgValue::Number(0.5)}}));
}

TEST(StageArgs, WhatEqualsADefaultIsNotWritten) {
  const auto args = StageArgs::Check("stage", Params(), Given{{"levels", ArgValue::Number(16)}});
  ASSERT_TRUE(args);
  EXPECT_TRUE(args->Canonical().empty());
  EXPECT_EQ(*args, *StageArgs::Check("stage", Params(), {}));
}

TEST(StageArgs, RefusesWhatDoesNotFitAndSaysWhatWould) {
  const auto message = [](const Given& given) {
    const auto args = StageArgs::Check("stage", Params(), given);
    return args ? std::string("accepted") : args.error().message;
  };
  EXPECT_EQ(message({{"levels", ArgValue::Number(1)}}),
            "stage: levels=1 must be an integer in [2, 256], thirds(a,b,c), pyramid(first,last) or "
            "mix(share,high,low)");
  EXPECT_EQ(message({{"levels", ArgValue::Number(2.5)}}).substr(0, 24), "stage: levels=2.5 must b");
  EXPECT_EQ(message({{"per", ArgValue::Word("head")}}), "stage: per=head must be token, channel");
  EXPECT_EQ(message({{"per", ArgValue::Number(3)}}), "stage: per=3 must be token, channel");
  EXPECT_EQ(message({{"size", ArgValue::Number(3)}}),
            "stage has no argument \"size\"; it has levels, per, d");
  EXPECT_EQ(message({{"d", ArgValue::Number(1)}, {"d", ArgValue::Number(1)}}),
            "stage: argument \"d\" is given twice");
  const ArgValue thirds =
      ArgValue::Word("thirds", {ArgValue::Number(32), ArgValue::Number(16), ArgValue::Number(12)});
  EXPECT_EQ(message({{"levels", thirds}}), "accepted");
  EXPECT_NE(message({{"d", thirds}}), "accepted");  // not allocatable
  EXPECT_EQ(message({{"levels", ArgValue::Word("mix", {ArgValue::Number(0.6), ArgValue::Number(16),
                                                       ArgValue::Number(5)})}}),
            "accepted");
  EXPECT_NE(message({{"levels", ArgValue::Word("mix", {ArgValue::Number(1.5), ArgValue::Number(16),
                                                       ArgValue::Number(5)})}}),
            "accepted");
}

TEST(Registry, EveryStageDescribesItself) {
  ASSERT_GE(AllStages().size(), 2U);
  for (const StageModule* stage : AllStages()) {
    SCOPED_TRACE(stage->name);
    EXPECT_FALSE(stage->summary.empty());
    EXPECT_EQ(stage->make_selector != nullptr, stage->kind == StageKind::kSelector);
    EXPECT_EQ(stage->make_transform != nullptr, stage->kind == StageKind::kTransform);
    EXPECT_EQ(stage->make_quantizer != nullptr, stage->kind == StageKind::kQuantizer);
    EXPECT_EQ(stage->make_coder != nullptr, stage->kind == StageKind::kCoder);
    EXPECT_EQ(FindStage(stage->kind, stage->name), stage);
    // Defaults and values to search pass the stage's own check.
    Given defaults;
    for (const ParamSpec& param : stage->params) {
      SCOPED_TRACE(param.name);
      EXPECT_FALSE(param.summary.empty());
      defaults.emplace_back(param.name, param.default_value);
      for (const ArgValue& value : param.search) {
        const auto args = StageArgs::Check(stage->name, stage->params, {{param.name, value}});
        EXPECT_TRUE(args) << args.error().message;
      }
    }
    const auto args = StageArgs::Check(stage->name, stage->params, defaults);
    EXPECT_TRUE(args) << args.error().message;
  }
}

TEST(Pipeline, TheCanonicalStringIsAFixedPoint) {
  for (const char* text : {"none->none->none", "  none  ->none -> none ",
                           "k:none|v:none -> none -> none", "none -> k:none|v:none -> none"}) {
    const auto pipeline = PipelineSpec::Parse(text);
    ASSERT_TRUE(pipeline) << pipeline.error().message;
    EXPECT_EQ(pipeline->ToString(), "none -> none -> none");
    EXPECT_EQ(*PipelineSpec::Parse(pipeline->ToString()), *pipeline);
  }
}

TEST(Pipeline, ErrorsSayWhereAndWhatWouldDo) {
  const auto message = [](std::string_view text) {
    const auto pipeline = PipelineSpec::Parse(text);
    return pipeline ? std::string("accepted") : pipeline.error().message;
  };
  EXPECT_EQ(message("none"), "pipeline \"none\": column 5: the text ends where \"->\" should be");
  EXPECT_EQ(
      message("none -> none -> none -> none"),
      "pipeline \"none -> none -> none -> none\": column 22: \"-> none\" stands where the end "
      "should be");
  EXPECT_NE(
      message("none -> nothing -> none").find("there is no quantizer \"nothing\"; there are: "),
      std::string::npos);
  EXPECT_NE(message("none -> none+none -> none").find("exactly one quantizer"), std::string::npos);
  EXPECT_NE(message("k:none -> none -> none").find("\"|v:\" should be"), std::string::npos);
  EXPECT_NE(message("none -> none(1) -> none").find("takes 0 arguments"), std::string::npos);
  EXPECT_NE(message("none -> none(a(b(c(d)))) -> none").find("nest deeper"), std::string::npos);
  EXPECT_NE(message(std::string(5000, 'n')).find("at most 4096"), std::string::npos);
  EXPECT_NE(message("none -> none(1e999) -> none").find("a number should be"), std::string::npos);
}

TEST(Pipeline, NoTextCrashesTheParser) {
  // Random mutations of a valid text: accepted ones round-trip, the others have a message.
  const std::string seed_text = "k:none|v:none -> k:none(a=1.5,b=mix(0.6,16,5))|v:none -> none";
  Rng rng(11);
  const std::string letters = "nokev:|->(),=+.0123456789 \xFFx";
  for (int round = 0; round < 20000; ++round) {
    std::string text = seed_text;
    for (uint64_t edits = 1 + rng.Below(4); edits > 0; --edits) {
      const size_t at = rng.Below(text.size());
      switch (rng.Below(3)) {
        case 0:
          text[at] = letters[rng.Below(letters.size())];
          break;
        case 1:
          text.erase(at, 1 + rng.Below(5));
          break;
        default:
          text.insert(at, 1, letters[rng.Below(letters.size())]);
      }
      if (text.empty()) {
        text.push_back('n');
      }
    }
    const auto pipeline = PipelineSpec::Parse(text);
    if (pipeline) {
      ASSERT_EQ(*PipelineSpec::Parse(pipeline->ToString()), *pipeline) << text;
    } else {
      ASSERT_FALSE(pipeline.error().message.empty());
      ASSERT_EQ(pipeline.error().code, ErrorCode::kInvalidInput);
    }
  }
}

}  // namespace
}  // namespace kvik::codec
