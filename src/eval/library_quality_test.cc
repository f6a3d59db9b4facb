// SPDX-License-Identifier: Apache-2.0
#include "eval/library_quality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/model_facts.h"
#include "eval/testing/tiny_setup.h"

namespace kvik::eval {
namespace {

using ::testing::HasSubstr;

class LibraryQuality : public ::testing::Test {
 protected:
  codec::ProfileLibrary MakeLibrary() {
    codec::ProfileLibrary library;
    library.model = ModelFactsOf(*setup_.model);
    library.side_info = std::make_shared<codec::SideInfo>();
    library.profiles.resize(3);
    library.profiles[0].name = "coarse";
    library.profiles[0].pipeline = "none -> uniform(levels=3,per=token) -> pack";
    library.profiles[1].name = "exact";
    library.profiles[1].pipeline = "none -> none -> rans";
    library.profiles[2].name = "fine";
    library.profiles[2].pipeline = "none -> uniform(levels=256,per=token) -> pack";
    EXPECT_TRUE(codec::CompleteProfiles(library));
    return library;
  }

  Result<void> Measure(codec::ProfileLibrary& library, ResultsLog& log,
                       const std::vector<Cell>& cells, int64_t* positions = nullptr) {
    LibraryQualityOptions options;
    options.cells = cells;
    options.positions = 40;
    options.corpus.continuation_tokens = 16;
    return MeasureLibraryQuality({.model = setup_.model.get(),
                                  .pool = &setup_.pool,
                                  .tokenizer = setup_.tokenizer.get(),
                                  .chat_template = setup_.chat_template.get(),
                                  .items = items_,
                                  .log = &log,
                                  .clock = &clock_},
                                 options, library, [&](int64_t done) {
                                   if (positions != nullptr) {
                                     EXPECT_GE(done, *positions);
                                     *positions = done;
                                   }
                                 });
  }

  std::vector<EvalItem> items_ = testing::MadeItems(6);
  testing::TinySetup setup_{
      {}, 1, {.isa = Isa::kScalar, .max_batch_rows = 64, .max_logit_rows = 16}};
  ManualClock clock_;
};

TEST_F(LibraryQuality, EveryProfileIsMeasuredInEveryCellAndOverAll) {
  codec::ProfileLibrary library = MakeLibrary();
  const auto log = ResultsLog::Open("").value();
  int64_t positions = 0;
  const auto measured = Measure(library, *log, {{"math", 128}, {"qa", 256}}, &positions);
  ASSERT_TRUE(measured) << measured.error().message;
  for (const codec::Profile& profile : library.profiles) {
    ASSERT_GE(profile.ratios.size(), 1U) << profile.name;
    EXPECT_EQ(profile.ratios[0].prompt_tokens, 128);
    EXPECT_GT(profile.ratios[0].cr, profile.name == "coarse" ? 4 : 1) << profile.name;
  }
  EXPECT_TRUE(library.Find("exact")->quality.empty());
  int64_t judged = 0;
  for (const char* name : {"coarse", "fine"}) {
    const codec::Profile& profile = *library.Find(name);
    std::vector<std::pair<std::string, int32_t>> records;
    for (const codec::QualityRecord& record : profile.quality) {
      records.emplace_back(record.workload, record.prompt_tokens);
      EXPECT_GT(record.positions, 0);
    }
    EXPECT_THAT(records, ::testing::ElementsAre(std::pair<std::string, int32_t>("math", 0),
                                                std::pair("math", 128), std::pair("qa", 0),
                                                std::pair("qa", 256), std::pair("unified", 0)));
    EXPECT_EQ(profile.quality[4].positions,
              profile.quality[0].positions + profile.quality[2].positions);
    EXPECT_EQ(profile.quality[0].positions, profile.quality[1].positions);
    judged += profile.quality[4].positions;
  }
  EXPECT_EQ(positions, judged);
  EXPECT_LT(library.Find("fine")->QualityFor("qa")->kl.value,
            library.Find("coarse")->QualityFor("qa")->kl.value);

  // The result is a library that can be written, and nothing is measured twice.
  const auto files = codec::PrintProfileLibrary(library, "side.f16");
  ASSERT_TRUE(files) << files.error().message;
  const size_t known = log->size();
  codec::ProfileLibrary again = MakeLibrary();
  ASSERT_TRUE(Measure(again, *log, {{"math", 128}, {"qa", 256}}));
  EXPECT_EQ(log->size(), known);
  EXPECT_EQ(again.profiles, library.profiles);
}

TEST_F(LibraryQuality, WhatCannotBeMeasuredSaysWhy) {
  codec::ProfileLibrary library = MakeLibrary();
  const auto log = ResultsLog::Open("").value();
  auto measured = Measure(library, *log, {});
  ASSERT_FALSE(measured);
  EXPECT_THAT(measured.error().message, HasSubstr("no cells"));
  measured = Measure(library, *log, {{"poems", 128}});
  ASSERT_FALSE(measured);
  EXPECT_THAT(measured.error().message, HasSubstr("poems"));
}

}  // namespace
}  // namespace kvik::eval
