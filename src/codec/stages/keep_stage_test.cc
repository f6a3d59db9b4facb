// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "codec/pipeline.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/testing/made_kv.h"

namespace kvik::codec {
namespace {

using testing::MadeModel;

constexpr int32_t kLayers = 12;
constexpr int32_t kHeads = 5;

struct MadeKeep {
  ModelFacts model = MadeModel(kLayers, kHeads, 64);
  SideInfo side_info;
  std::vector<float> scores;

  MadeKeep() {
    Rng rng(17);
    for (int32_t i = 0; i < kLayers * kHeads; ++i) {
      // A few equal ones: which of them stream must be certain.
      scores.push_back(static_cast<float>(rng.Below(20)) / 16.0F);
    }
    KVIK_CHECK(side_info.Add("scores/attention", {kLayers, kHeads}, scores).has_value());
  }
  Result<std::unique_ptr<Selector>> Make(const std::string& text, bool with_scores = true) const {
    KVIK_ASSIGN(const PipelineSpec pipeline, PipelineSpec::Parse(text + " -> none -> none"));
    StageSite site;
    site.model = &model;
    site.side_info = with_scores ? &side_info : nullptr;
    return pipeline.selector.module->make_selector(pipeline.selector.args, site);
  }
};

// Token by token, from the definition.
bool IsKept(bool streams, int64_t token, int64_t prompt, int64_t sinks, int64_t recent) {
  return !streams || prompt == 0 || token < sinks || token >= prompt - recent;
}

TEST(Keep, RangesAreThoseOfTheDefinition) {
  const MadeKeep made;
  constexpr int32_t kSinks = 4;
  constexpr int32_t kRecent = 10;
  const auto selector = made.Make("keep(sinks=4,recent=10,streaming=0.5)");
  ASSERT_TRUE(selector) << selector.error().message;
  // The lower half, the first ones of equals first.
  std::vector<std::pair<float, int32_t>> order;
  for (int32_t i = 0; i < kLayers * kHeads; ++i) {
    order.emplace_back(made.scores[static_cast<size_t>(i)], i);
  }
  std::sort(order.begin(), order.end());
  Rng rng(18);
  std::vector<TokenRange> kept;
  int dropped = 0;
  for (int round = 0; round < 4000; ++round) {
    const auto cell = static_cast<int32_t>(rng.Below(kLayers * kHeads));
    const bool streams = std::find_if(order.begin(), order.begin() + kLayers * kHeads / 2,
                                      [&](const auto& entry) { return entry.second == cell; }) !=
                         order.begin() + kLayers * kHeads / 2;
    const auto first = static_cast<int32_t>(rng.Below(40));
    const auto end = first + static_cast<int32_t>(rng.Below(40));
    const auto prompt = static_cast<int32_t>(rng.Below(60));
    (*selector)->Kept(cell / kHeads, cell % kHeads, first, end, prompt, kept);
    std::vector<int32_t> actual;
    int32_t last_end = -1;
    for (const TokenRange& range : kept) {
      ASSERT_LT(range.first, range.end);
      ASSERT_GT(range.first, last_end);  // apart, too: neighbours would be one range
      last_end = range.end;
      for (int32_t token = range.first; token < range.end; ++token) {
        actual.push_back(token);
      }
    }
    std::vector<int32_t> expected;
    for (int32_t token = first; token < end; ++token) {
      if (IsKept(streams, token, prompt, kSinks, kRecent)) {
        expected.push_back(token);
      } else {
        ++dropped;
      }
    }
    ASSERT_EQ(actual, expected) << "cell " << cell << " [" << first << ", " << end << ") of "
                                << prompt;
  }
  EXPECT_GT(dropped, 1000);
}

TEST(Keep, SharesOfZeroAndOne) {
  const MadeKeep made;
  std::vector<TokenRange> kept;
  const auto none = made.Make("keep(streaming=0)");
  const auto all = made.Make("keep(streaming=1)");
  ASSERT_TRUE(none && all);
  for (int32_t cell = 0; cell < kLayers * kHeads; ++cell) {
    (*none)->Kept(cell / kHeads, cell % kHeads, 0, 1000, 1000, kept);
    EXPECT_EQ(kept, (std::vector<TokenRange>{{0, 1000}}));
    (*all)->Kept(cell / kHeads, cell % kHeads, 0, 1000, 1000, kept);
    EXPECT_EQ(kept, (std::vector<TokenRange>{{0, 64}, {744, 1000}}));
    (*all)->Kept(cell / kHeads, cell % kHeads, 100, 200, 1000, kept);
    EXPECT_TRUE(kept.empty());
    // A prompt that its own ends cover loses nothing.
    (*all)->Kept(cell / kHeads, cell % kHeads, 0, 320, 320, kept);
    EXPECT_EQ(kept, (std::vector<TokenRange>{{0, 320}}));
  }
}

TEST(Keep, NeedsScores) {
  const MadeKeep made;
  for (const auto& [text, with] :
       {std::pair{"keep", false}, std::pair{"keep(scores=output)", true}}) {
    const auto selector = made.Make(text, with);
    ASSERT_FALSE(selector);
    EXPECT_EQ(selector.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(selector.error().message.find("scores/"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvik::codec
