// SPDX-License-Identifier: Apache-2.0
#include "eval/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "codec/frame.h"
#include "codec/profile_library.h"
#include "eval/model_facts.h"
#include "eval/testing/tiny_setup.h"

namespace kvik::eval {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPipelines[] = {
    "k:prerope+center+qklt|v:center+qklt -> ecsq -> rans",
    "k:prerope+center+qklt|v:center+qklt -> ecsq(d=2) -> rans",
    "k:prerope+center+jklt|v:center+jklt -> ecsq -> rans",
    "k:center+klt|v:klt -> ecsq -> rans(tables=static)",
    "affine -> uniform(levels=16,per=token) -> pack",
    "k:center+affine(kind=full)|v:affine(kind=full) -> ecsq -> none",
    "delta(group=4) -> ecsq -> none",
    "hadamard -> uniform(levels=mix(0.5,16,4),per=token) -> rans",
    "keep(sinks=4,recent=8) -> none -> rans",
};

std::string MadeText() {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += "Line " + std::to_string(i * i) + " of the text says " +
            std::string(static_cast<size_t>(i % 7), 'x') + ".\n";
  }
  return text;
}

model::testing::TinyModelOptions TwoHeads() {
  model::testing::TinyModelOptions tiny;
  tiny.num_heads = 4;
  tiny.num_kv_heads = 2;
  return tiny;
}

class Calibrate : public ::testing::Test {
 protected:
  static CalibrationKvOptions Options() {
    CalibrationKvOptions options;
    options.sequence_tokens = 160;
    options.max_sequences = 4;
    options.queries_per_sequence = 8;
    return options;
  }

  static void Compute(int threads, CalibrationKv& kv, CalibrationFacts& facts) {
    testing::TinySetup setup(TwoHeads(), threads);
    const std::vector<CalibrationTextInput> texts = {{"made", MadeText()}};
    const auto cut =
        CutCalibrationTexts(texts, Options(), *setup.tokenizer, setup.chat_template.get());
    ASSERT_TRUE(cut) << cut.error().message;
    ASSERT_EQ(cut->pieces.size(), 4U);
    const auto source = model::ModelSource::Open(kvik::testing::TempPath("tiny.gguf"));
    ASSERT_TRUE(source);
    auto computed = ComputeCalibrationKv(*setup.model, **source, ModelFactsOf(*setup.model),
                                         cut->pieces, Options(), nullptr);
    ASSERT_TRUE(computed) << computed.error().message;
    kv = std::move(*computed);
    size_t last = 0;
    auto measured = MeasureCalibrationFacts(*setup.model, kv, kv.sequences[0], 5, Isa::kScalar,
                                            setup.pool, [&](size_t done, size_t total) {
                                              EXPECT_GT(done, last);
                                              EXPECT_LE(done, total);
                                              last = done;
                                            });
    ASSERT_TRUE(measured) << measured.error().message;
    facts = std::move(*measured);
  }

  void SetUp() override { Compute(1, kv_, facts_); }

  Result<codec::SideInfo> SideInfoOf(ThreadPool& pool) {
    Calibrator calibrator(kv_, facts_, Isa::kScalar, pool);
    for (const char* text : kPipelines) {
      KVIK_ASSIGN(const codec::PipelineSpec spec, codec::PipelineSpec::Parse(text));
      KVIK_TRY(calibrator.Add(spec));
    }
    return calibrator.side_info();
  }

  CalibrationKv kv_;
  CalibrationFacts facts_;
};

TEST_F(Calibrate, EveryPipelineFindsWhatItNeeds) {
  ThreadPool pool(1);
  const auto made = SideInfoOf(pool);
  ASSERT_TRUE(made) << made.error().message;
  const auto side_info = std::make_shared<const codec::SideInfo>(*made);
  for (const char* text : kPipelines) {
    const auto codec = codec::FrameCodec::Create(codec::PipelineSpec::Parse(text).value(),
                                                 kv_.facts, side_info, Isa::kScalar);
    ASSERT_TRUE(codec) << text << ": " << codec.error().message;
    const CalibrationSequence& sequence = kv_.sequences[1];
    codec::KvRows rows;
    rows.layer = 1;
    rows.num_tokens = sequence.num_tokens;
    rows.prompt_tokens = sequence.num_tokens;
    rows.head_stride =
        static_cast<size_t>(sequence.num_tokens) * static_cast<size_t>(kv_.facts.head_dim);
    rows.keys = sequence.Rows(1, kv::KvPart::kKey).data();
    rows.values = sequence.Rows(1, kv::KvPart::kValue).data();
    std::vector<std::byte> bytes;
    codec::Workspace workspace;
    const auto size = (*codec)->Encode(rows, codec::FrameParts::kBoth, workspace, bytes);
    ASSERT_TRUE(size) << text << ": " << size.error().message;
    // Fewer bytes than the raw ones, so not stored as it was.
    EXPECT_LT(*size, sequence.Rows(1, kv::KvPart::kKey).size() * 2 * 2) << text;
  }
}

TEST_F(Calibrate, ThreadsChangeNothing) {
  CalibrationKv kv;
  CalibrationFacts facts;
  Compute(3, kv, facts);
  EXPECT_EQ(facts.sensitivity, facts_.sensitivity);
  ThreadPool one(1);
  ThreadPool three(3);
  const auto a = SideInfoOf(one);
  const auto b = SideInfoOf(three);
  ASSERT_TRUE(a && b);
  ASSERT_EQ(a->tensors().size(), b->tensors().size());
  for (const auto& [name, tensor] : a->tensors()) {
    ASSERT_NE(b->Find(name), nullptr);
    EXPECT_EQ(b->Find(name)->values, tensor.values) << name;
  }
}

// Coefficients have no mean, do not go together, and their spread is what ecsq is told.
TEST_F(Calibrate, BasesDoWhatTheirNamesSay) {
  ThreadPool pool(1);
  const auto side_info = SideInfoOf(pool);
  ASSERT_TRUE(side_info) << side_info.error().message;
  for (const char* basis : {"qklt", "jklt"}) {
    const std::string chain_text = std::string("k:prerope+center+") + basis + "|v:center+" + basis;
    const auto spec = codec::PipelineSpec::Parse(chain_text + " -> ecsq -> rans").value();
    for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
      const codec::PartSpec& part_spec = spec.part(part);
      const size_t count = part_spec.transforms.size();
      const auto chain =
          TransformChain::Create(part_spec, part, count, kv_.facts, *side_info, Isa::kScalar);
      ASSERT_TRUE(chain) << chain.error().message;
      const bool joint = std::string(basis) == "jklt";
      const auto moments = MeasureMoments(kv_, *chain, part, joint, kCalibrationSinkTokens, pool);
      ASSERT_TRUE(moments);
      const std::string key = codec::SideKey(part_spec, part, count);
      const codec::SideTensor* sigma = side_info->Find(key + "/sigma");
      ASSERT_NE(sigma, nullptr) << key;
      size_t at = 0;
      for (const ChannelMoments& of : *moments) {
        const size_t n = of.mean.size();
        double together = 0;
        double apart = 0;
        for (size_t i = 0; i < n; ++i) {
          const double deviation = std::sqrt(of.covariance[i * n + i]);
          EXPECT_NEAR(of.mean[i], 0, 0.05 * deviation + 1e-3);
          EXPECT_NEAR(deviation / static_cast<double>(sigma->values[at++]), 1, 0.01);
          for (size_t j = 0; j < n; ++j) {
            const double covariance = of.covariance[i * n + j];
            (i == j ? apart : together) += covariance * covariance;
          }
        }
        EXPECT_LT(together, 1e-4 * apart);
      }
      EXPECT_EQ(at, sigma->values.size());
    }
  }
}

TEST_F(Calibrate, AHeadThatCostsMoreGetsASmallerStep) {
  ThreadPool pool(1);
  const auto spec = codec::PipelineSpec::Parse("none -> ecsq -> none").value();
  const auto weights = [&] {
    Calibrator calibrator(kv_, facts_, Isa::kScalar, pool);
    EXPECT_TRUE(calibrator.Add(spec));
    return calibrator.side_info().Find("ecsq/k//weights")->values;
  };
  const std::vector<float> before = weights();
  for (double& value : facts_.metric[3].rotated_key) {
    value *= 4;
  }
  const std::vector<float> after = weights();
  ASSERT_EQ(before.size(), 4U);
  for (size_t cell = 0; cell < 4; ++cell) {
    EXPECT_NEAR(after[cell] / before[cell], cell == 3 ? 0.5 : 1.0, 0.01);
  }
  // All of the layer's keys cost twice as much.
  facts_.sensitivity[0] *= 4;
  const std::vector<float> layer = weights();
  EXPECT_NEAR(layer[0] / after[0], 0.5, 0.01);
  EXPECT_NEAR(layer[2] / after[2], 1.0, 0.01);
}

TEST_F(Calibrate, TextsAreCutAtLines) {
  testing::TinySetup setup;
  const std::vector<CalibrationTextInput> texts = {{"made", MadeText()}, {"short", "one line\n"}};
  auto options = Options();
  auto cut = CutCalibrationTexts(texts, options, *setup.tokenizer, nullptr);
  ASSERT_FALSE(cut);
  EXPECT_THAT(cut.error().message, HasSubstr("short: too short"));
  options.max_sequences = 100;
  cut = CutCalibrationTexts(std::span(texts).first(1), options, *setup.tokenizer,
                            setup.chat_template.get());
  ASSERT_TRUE(cut);
  int64_t tokens = 0;
  for (const std::vector<TokenId>& piece : cut->pieces) {
    EXPECT_LE(piece.size(), 160U);
    tokens += static_cast<int64_t>(piece.size());
  }
  EXPECT_GT(cut->pieces.size(), 4U);
  EXPECT_EQ(cut->tokens_of_text, std::vector<int64_t>{tokens});
}

}  // namespace
}  // namespace kvik::eval
