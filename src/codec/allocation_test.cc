// SPDX-License-Identifier: Apache-2.0
#include "codec/allocation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "codec/side_info.h"
#include "codec/testing/made_kv.h"

namespace kvik::codec {
namespace {

ArgValue Form(const char* word, const std::vector<double>& numbers) {
  std::vector<ArgValue> list;
  for (const double v : numbers) {
    list.push_back(ArgValue::Number(v));
  }
  return ArgValue::Word(word, list);
}

class AllocationTest : public ::testing::Test {
 protected:
  AllocationTest() { site_.model = &model_; }
  Allocation Make(const ArgValue& value, bool integral = true) {
    auto allocation = Allocation::Make(value, integral, "scores/attention", site_);
    KVIK_CHECK(allocation.has_value(), "%s", allocation.error().message.c_str());
    return std::move(allocation).value();
  }

  ModelFacts model_ = testing::MadeModel(12, 3, 64);
  SideInfo side_info_;
  StageSite site_;
};

TEST_F(AllocationTest, OneNumberIsTheSameEverywhere) {
  const Allocation allocation = Make(ArgValue::Number(7));
  EXPECT_EQ(allocation.distinct(), std::vector<double>{7});
  EXPECT_EQ(allocation.At(11, 2), 7);
}

TEST_F(AllocationTest, ThirdsOfLayersThatDoNotDivideByThree) {
  model_.num_layers = 28;
  const Allocation allocation = Make(Form("thirds", {32, 16, 12}));
  EXPECT_EQ(allocation.distinct(), (std::vector<double>{12, 16, 32}));
  int counts[3] = {};
  for (int32_t layer = 0; layer < 28; ++layer) {
    const double v = allocation.At(layer, 0);
    ++counts[v == 32 ? 0 : v == 16 ? 1 : 2];
    EXPECT_EQ(allocation.distinct()[allocation.Index(layer, 1)], v);
    EXPECT_LE(v, allocation.At(std::max(0, layer - 1), 0)) << "layer " << layer;
  }
  EXPECT_EQ(counts[0], 10);
  EXPECT_EQ(counts[1], 9);
  EXPECT_EQ(counts[2], 9);
}

TEST_F(AllocationTest, PyramidsEndAtBothNumbers) {
  const Allocation whole = Make(Form("pyramid", {16, 3}));
  EXPECT_EQ(whole.At(0, 0), 16);
  EXPECT_EQ(whole.At(11, 0), 3);
  EXPECT_EQ(whole.At(5, 0), 10);  // 16 - 13 * 5 / 11 = 10.09
  const Allocation real = Make(Form("pyramid", {0.5, 0.25}), false);
  EXPECT_DOUBLE_EQ(real.At(10, 2), 0.5 - 0.25 * 10 / 11);
  model_.num_layers = 1;
  EXPECT_EQ(Make(Form("pyramid", {16, 3})).At(0, 0), 16);
}

TEST_F(AllocationTest, MixGivesTheLowestScoresTheLowNumber) {
  std::vector<float> scores(36);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>((i * 7) % 36);
  }
  ASSERT_TRUE(side_info_.Add("scores/attention", {12, 3}, scores));
  site_.side_info = &side_info_;
  const Allocation allocation = Make(Form("mix", {0.25, 16, 5}));
  for (int32_t layer = 0; layer < 12; ++layer) {
    for (int32_t head = 0; head < 3; ++head) {
      const float score = scores[static_cast<size_t>(layer * 3 + head)];
      EXPECT_EQ(allocation.At(layer, head), score < 9 ? 5 : 16) << layer << " " << head;
    }
  }
  EXPECT_EQ(Make(Form("mix", {0, 16, 5})).distinct(), std::vector<double>{16});
  EXPECT_EQ(Make(Form("mix", {1, 16, 5})).distinct(), std::vector<double>{5});
}

TEST_F(AllocationTest, EqualScoresGoByLayerThenHead) {
  ASSERT_TRUE(side_info_.Add("scores/attention", {12, 3}, std::vector<float>(36, 1.0F)));
  site_.side_info = &side_info_;
  const Allocation allocation = Make(Form("mix", {0.5, 16, 5}));
  for (int32_t cell = 0; cell < 36; ++cell) {
    EXPECT_EQ(allocation.At(cell / 3, cell % 3), cell < 18 ? 5 : 16);
  }
}

TEST_F(AllocationTest, MixWithoutScoresSaysWhichTensorIsMissing) {
  const auto none = Allocation::Make(Form("mix", {0.5, 16, 5}), true, "scores/output", site_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(none.error().message.find("scores/output"), std::string::npos);
  ASSERT_TRUE(side_info_.Add("scores/output", {3, 12}, std::vector<float>(36, 1.0F)));
  site_.side_info = &side_info_;
  EXPECT_EQ(Allocation::Make(Form("mix", {0.5, 16, 5}), true, "scores/output", site_).error().code,
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace kvik::codec
