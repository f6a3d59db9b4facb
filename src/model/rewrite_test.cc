// SPDX-License-Identifier: Apache-2.0
#include "model/rewrite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/testing/temp_path.h"
#include "base/thread_pool.h"
#include "model/testing/tiny_model.h"
#include "model/weights.h"

namespace kvik::model {
namespace {

std::unique_ptr<ModelSource> Open(const std::string& path) {
  auto source = ModelSource::Open(path);
  EXPECT_TRUE(source) << source.error().message;
  return source ? std::move(*source) : nullptr;
}

// Every weight and everything the forward pass reads from the configuration survives both ways.
TEST(Rewrite, BothContainersHoldTheDequantisedModel) {
  ThreadPool pool(1);
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    testing::TinyModelOptions options;
    options.architecture = architecture;
    options.tied_embeddings = std::string(architecture) != "qwen2";
    options.format = GgmlType::kQ4_1;
    options.rope_scaling = "yarn";
    options.rope_factor = 3.0F;
    options.sliding_window_tokens = 33;
    const std::string path = kvik::testing::TempPath("model.gguf");
    ASSERT_TRUE(testing::WriteTinyGguf(options, path));
    const auto source = Open(path);
    ASSERT_NE(source, nullptr);
    ASSERT_TRUE(WriteF32Gguf(*source, kvik::testing::TempPath("f32.gguf")));
    ASSERT_TRUE(WriteF32HfFolder(*source, kvik::testing::TempPath("hf")));
    const auto gguf = Open(kvik::testing::TempPath("f32.gguf"));
    const auto hf = Open(kvik::testing::TempPath("hf"));
    ASSERT_NE(gguf, nullptr);
    ASSERT_NE(hf, nullptr);
    for (const auto& [name, weight] : source->weights()) {
      const std::vector<float> values = DequantizeWeight(weight);
      EXPECT_EQ(DequantizeWeight(gguf->Weight(name)), values) << name;
      EXPECT_EQ(DequantizeWeight(hf->Weight(name)), values) << name;
    }
    EXPECT_EQ(gguf->config(), source->config());
    ModelConfig from_hf = hf->config();
    from_hf.architecture = source->config().architecture;
    from_hf.name = source->config().name;
    EXPECT_EQ(from_hf, source->config());
    EXPECT_EQ(hf->chat_template(), source->chat_template());
    EXPECT_EQ(HashWeights(*gguf, pool), HashWeights(*hf, pool));
    EXPECT_NE(HashWeights(*gguf, pool), HashWeights(*source, pool));
    EXPECT_EQ(F32Bytes(*source), StoredWeightBytes(*gguf));
  }
}

TEST(Rewrite, EveryFormatIsRewritten) {
  for (const GgmlType format : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBf16, GgmlType::kQ8_0,
                                GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                                GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K}) {
    testing::TinyModelOptions options;
    options.format = format;
    options.hidden_size = 256;
    options.intermediate_size = 256;
    options.num_heads = 4;
    options.num_layers = 1;
    ASSERT_TRUE(testing::WriteTinyGguf(options, kvik::testing::TempPath("any.gguf")));
    const auto source = Open(kvik::testing::TempPath("any.gguf"));
    ASSERT_NE(source, nullptr);
    ASSERT_TRUE(WriteF32Gguf(*source, kvik::testing::TempPath("any_f32.gguf")));
    const auto gguf = Open(kvik::testing::TempPath("any_f32.gguf"));
    ASSERT_NE(gguf, nullptr);
    const std::vector<float> values = DequantizeWeight(source->Weight("blk.0.attn_q.weight"));
    EXPECT_EQ(DequantizeWeight(gguf->Weight("blk.0.attn_q.weight")), values);
    double squares = 0;
    for (const float v : values) {
      squares += static_cast<double>(v) * static_cast<double>(v);
    }
    // The generator meets the deviation it was asked for, 1 / sqrt(256).
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 1.0 / 16, 0.5 / 16)
        << InfoOf(format).name;
  }
}

TEST(Rewrite, SaysWhatHasNoForm) {
  testing::TinyModelOptions options;
  options.rope_divisors.assign(32, 2.0F);
  ASSERT_TRUE(testing::WriteTinyGguf(options, kvik::testing::TempPath("divided.gguf")));
  const auto source = Open(kvik::testing::TempPath("divided.gguf"));
  ASSERT_NE(source, nullptr);
  const Result<void> hf = WriteF32HfFolder(*source, kvik::testing::TempPath("divided_hf"));
  ASSERT_FALSE(hf);
  EXPECT_EQ(hf.error().code, ErrorCode::kUnsupported);
  ASSERT_TRUE(WriteF32Gguf(*source, kvik::testing::TempPath("divided_f32.gguf")));
  EXPECT_EQ(Open(kvik::testing::TempPath("divided_f32.gguf"))->config(), source->config());
  EXPECT_FALSE(WriteF32Gguf(*source, "/nonexistent/x.gguf"));
}

// A weight's hash follows its bytes, its name and the rotary settings.
TEST(Rewrite, AnyChangeOfTheModelChangesItsHash) {
  ThreadPool pool(2);
  std::map<std::string, std::string> seen;
  const auto check = [&](const std::string& what, const testing::TinyModelOptions& options) {
    ASSERT_TRUE(testing::WriteTinyGguf(options, kvik::testing::TempPath("hash.gguf")));
    const auto source = Open(kvik::testing::TempPath("hash.gguf"));
    ASSERT_NE(source, nullptr);
    const std::string hash = HashWeights(*source, pool);
    EXPECT_EQ(hash.size(), 32U);
    const auto [it, is_new] = seen.emplace(hash, what);
    EXPECT_TRUE(is_new) << what << " hashes as " << it->second;
    ThreadPool single(1);
    EXPECT_EQ(HashWeights(*source, single), hash);
  };
  testing::TinyModelOptions options;
  check("base", options);
  options.seed = 2;
  check("seed", options);
  options.rope_scaling = "linear";
  options.rope_factor = 2;
  check("rope", options);
  options.sliding_window_tokens = 7;
  check("window", options);
  options.format = GgmlType::kF32;
  check("format", options);
}

}  // namespace
}  // namespace kvik::model
