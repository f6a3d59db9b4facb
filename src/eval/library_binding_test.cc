// SPDX-License-Identifier: Apache-2.0
#include "eval/library_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/model_facts.h"
#include "eval/testing/tiny_setup.h"

namespace kvik::eval {
namespace {

codec::ProfileLibrary LibraryOf(const model::Model& model) {
  codec::ProfileLibrary library;
  library.model = ModelFactsOf(model);
  library.side_info = std::make_shared<codec::SideInfo>();
  library.calibration.numerics = model.numerics_tag();
  return library;
}

TEST(BindLibrary, AnotherArithmeticOnTheSameWeightsIsFine) {
  const testing::TinySetup exact({}, 1, {.isa = Isa::kScalar, .compute = ComputeType::kF32});
  const testing::TinySetup rough({}, 1, {.isa = Isa::kScalar, .compute = ComputeType::kBf16});
  ASSERT_NE(exact.model->numerics_tag(), rough.model->numerics_tag());
  codec::ProfileLibrary library = LibraryOf(*exact.model);
  ASSERT_NE(library.model, ModelFactsOf(*rough.model));
  const auto bound = BindLibrary(*rough.model, library);
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_EQ(library.model, ModelFactsOf(*rough.model));
}

TEST(BindLibrary, OtherWeightsAreRefused) {
  const testing::TinySetup one;
  const testing::TinySetup other({.seed = 2});
  codec::ProfileLibrary library = LibraryOf(*one.model);
  const auto bound = BindLibrary(*other.model, library);
  ASSERT_FALSE(bound);
  EXPECT_THAT(bound.error().message, ::testing::HasSubstr("kvik calibrate"));
  EXPECT_EQ(library.model, ModelFactsOf(*one.model));
}

}  // namespace
}  // namespace kvik::eval
