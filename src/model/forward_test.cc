// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "attention/kv_pages.h"
#include "base/aligned_buffer.h"
#include "base/rng.h"
#include "base/testing/temp_path.h"
#include "model/model.h"
#include "model/model_source.h"
#include "model/rewrite.h"
#include "model/testing/dense_driver.h"
#include "model/testing/reference_model.h"
#include "model/testing/tiny_model.h"

namespace kvik::model {
namespace {

using testing::DenseDriver;
using ::testing::HasSubstr;
using testing::TinyModelOptions;
using Logits = std::vector<std::vector<float>>;  // [positions][vocab]

std::unique_ptr<ModelSource> MakeSource(const TinyModelOptions& options) {
  const std::string path = kvik::testing::TempPath("tiny.gguf");
  EXPECT_TRUE(testing::WriteTinyGguf(options, path));
  auto source = ModelSource::Open(path);
  EXPECT_TRUE(source) << source.error().message;
  return std::move(*source);
}

std::vector<TokenId> RandomTokens(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(rng.Below(testing::kTinyVocabSize));
  }
  return tokens;
}

ModelOptions Exact(Isa isa) {
  ModelOptions options;
  options.isa = isa;
  options.compute = ComputeType::kF32;
  options.kv_dtype = kv::KvDtype::kF32;
  return options;
}

Logits RunDense(const ModelSource& source, const ModelOptions& options,
                const std::vector<TokenId>& tokens, int32_t chunk_rows = 64, int threads = 1) {
  ThreadPool pool(threads);
  const auto model = Model::Load(source, options, pool);
  EXPECT_TRUE(model) << model.error().message;
  const auto driver = DenseDriver::Create(**model, static_cast<int32_t>(tokens.size()));
  EXPECT_TRUE(driver);
  Logits out;
  (*driver)->Append(tokens, chunk_rows, DenseDriver::Want::kAll,
                    [&](int32_t position, std::span<const float> logits) {
                      EXPECT_EQ(position, static_cast<int32_t>(out.size()));
                      out.emplace_back(logits.begin(), logits.end());
                    });
  return out;
}

// Largest difference over the largest logit.
double RelativeError(const Logits& actual, const std::vector<std::vector<double>>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0;
  double largest = 0;
  for (size_t t = 0; t < expected.size(); ++t) {
    for (size_t i = 0; i < expected[t].size(); ++i) {
      // max() would drop a NaN.
      const double d = std::abs(static_cast<double>(actual[t][i]) - expected[t][i]);
      difference = d <= difference ? difference : d;
      largest = std::max(largest, std::abs(expected[t][i]));
    }
  }
  return difference / largest;
}

struct Variant {
  const char* name;
  TinyModelOptions options;
};

std::vector<Variant> Variants() {
  const auto make = [](const char* name, auto edit) {
    Variant variant{name, {}};
    variant.options.format = GgmlType::kF32;
    edit(variant.options);
    return variant;
  };
  return {
      make("llama", [](auto&) {}),
      make("llama, untied", [](auto& o) { o.tied_embeddings = false; }),
      make("llama, 9 heads of 3 kv heads",
           [](auto& o) {
             o.num_heads = 9;
             o.num_kv_heads = 3;
           }),
      make("llama, head_dim 128, narrow",
           [](auto& o) {
             o.hidden_size = 32;
             o.head_dim = 128;
           }),
      make("llama, linear rope",
           [](auto& o) {
             o.rope_scaling = "linear";
             o.rope_factor = 4.0F;
           }),
      make("llama, yarn",
           [](auto& o) {
             o.rope_scaling = "yarn";
             o.rope_factor = 4.0F;
           }),
      make("llama, divisors",
           [](auto& o) {
             for (int i = 0; i < 32; ++i) {
               o.rope_divisors.push_back(1.0F + static_cast<float>(i) * 0.25F);
             }
           }),
      make("mistral, window of 9", [](auto& o) { o.sliding_window_tokens = 9; }),
      make("qwen2",
           [](auto& o) {
             o.architecture = "qwen2";
             o.tied_embeddings = false;
           }),
      make("qwen3", [](auto& o) { o.architecture = "qwen3"; }),
  };
}

TEST(Forward, EveryArchitectureAgreesWithTheReference) {
  const std::vector<TokenId> tokens = RandomTokens(40, 1);
  for (const Variant& variant : Variants()) {
    const auto source = MakeSource(variant.options);
    const auto expected = testing::ReferenceLogits(*source, tokens);
    EXPECT_LT(RelativeError(RunDense(*source, Exact(SupportedIsas().back()), tokens), expected),
              2e-5)
        << variant.name;
  }
}

TEST(Forward, EveryFormatAndArithmeticAgreesWithTheReference) {
  const std::vector<TokenId> tokens = RandomTokens(20, 2);
  const Isa isa = SupportedIsas().back();
  for (const GgmlType format : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBf16, GgmlType::kQ8_0,
                                GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                                GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K}) {
    TinyModelOptions options;
    options.format = format;
    options.hidden_size = 256;
    options.intermediate_size = 512;
    options.num_heads = 4;
    options.num_kv_heads = 2;
    const auto source = MakeSource(options);
    const auto expected = testing::ReferenceLogits(*source, tokens);
    EXPECT_LT(RelativeError(RunDense(*source, Exact(isa), tokens), expected), 2e-5)
        << InfoOf(format).name;
    ModelOptions rounded = Exact(isa);
    rounded.kv_dtype = kv::KvDtype::kBf16;
    EXPECT_LT(RelativeError(RunDense(*source, rounded, tokens), expected), 0.02)
        << InfoOf(format).name << " with bf16 KV";
    rounded.compute = ComputeType::kBf16;
    rounded.isa = ComputeSupported(isa, ComputeType::kBf16) ? isa : Isa::kScalar;
    EXPECT_LT(RelativeError(RunDense(*source, rounded, tokens), expected), 0.05)
        << InfoOf(format).name << " in bf16";
  }
}

// All float32 ISAs give the same bits, and so do the two that have bf16 arithmetic.
TEST(Forward, EveryIsaGivesTheSameBits) {
  TinyModelOptions options;
  options.architecture = "qwen3";
  options.format = GgmlType::kQ5_1;
  const auto source = MakeSource(options);
  const std::vector<TokenId> tokens = RandomTokens(70, 3);
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
    ModelOptions plain = Exact(Isa::kScalar);
    plain.compute = compute;
    plain.kv_dtype = kv::KvDtype::kBf16;
    const Logits expected = RunDense(*source, plain, tokens);
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
      if (!IsaSupported(isa)) {
        std::printf("skipped: this CPU has no %s\n", IsaName(isa));
      } else if (ComputeSupported(isa, compute)) {
        ModelOptions other = plain;
        other.isa = isa;
        EXPECT_EQ(RunDense(*source, other, tokens), expected) << IsaName(isa);
      }
    }
  }
}

// The property everything else stands on: whatever batch a row is computed in, its logits are the
// same bits. Several requests run to their ends in random chunks of random segments, in any order
// that leaves no row without what it attends to, over shuffled blocks, with one and two threads.
TEST(Forward, ARowDoesNotDependOnItsBatch) {
  TinyModelOptions tiny;
  tiny.format = GgmlType::kQ4_1;
  tiny.num_heads = 4;
  tiny.num_kv_heads = 2;
  const auto source = MakeSource(tiny);
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Isa isa = SupportedIsas()[rng.Below(SupportedIsas().size())];
    ModelOptions options = Exact(isa);
    options.block_size_tokens = rng.Below(2) == 0 ? 16 : 32;
    options.kv_dtype = rng.Below(2) == 0 ? kv::KvDtype::kBf16 : kv::KvDtype::kF32;
    options.compute = ComputeSupported(isa, ComputeType::kBf16) && rng.Below(2) == 0
                          ? ComputeType::kBf16
                          : ComputeType::kF32;
    options.max_batch_rows = 128;
    options.max_logit_rows = 128;

    struct Sequence {
      std::vector<TokenId> tokens;
      std::vector<BlockId> blocks;
      Logits expected;
      size_t done = 0;
    };
    std::vector<Sequence> sequences(3);
    size_t num_blocks = 0;
    for (Sequence& sequence : sequences) {
      sequence.tokens = RandomTokens(20 + rng.Below(150), rng.Next());
      sequence.expected = RunDense(*source, options, sequence.tokens, 128, 1);
      sequence.blocks.resize((sequence.tokens.size() + 15) / 16);
      num_blocks += sequence.blocks.size();
    }
    std::vector<BlockId> ids(num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) {
      std::swap(ids[i - 1], ids[rng.Below(i)]);
    }
    for (Sequence& sequence : sequences) {
      for (BlockId& block : sequence.blocks) {
        block = ids.back();
        ids.pop_back();
      }
    }

    ThreadPool pool(static_cast<int>(1 + rng.Below(2)));
    const auto model = Model::Load(*source, options, pool);
    ASSERT_TRUE(model) << model.error().message;
    auto arena = AlignedBuffer::Create(num_blocks * (*model)->kv_geometry().bytes_per_block());
    ASSERT_TRUE(arena);
    std::fill_n(arena->data(), arena->size_bytes(), std::byte{0xFF});  // NaN wherever unwritten

    struct Want {
      size_t sequence;
      size_t position;
    };
    for (bool more = true; more;) {
      StepBatch batch;
      std::vector<Want> wants;
      more = false;
      for (size_t s = 0; s < sequences.size(); ++s) {
        Sequence& sequence = sequences[s];
        // One to three adjacent segments of this request in one batch.
        for (uint64_t part = 0; part <= rng.Below(3); ++part) {
          const size_t left = sequence.tokens.size() - sequence.done;
          const size_t room = 128 - batch.tokens.size();
          const size_t count = std::min(
              {left, room, static_cast<size_t>(rng.Below(4) == 0 ? 1 : 1 + rng.Below(60))});
          if (count == 0) {
            break;
          }
          const bool want = rng.Below(2) == 0;
          batch.Add(std::span(sequence.tokens).subspan(sequence.done, count),
                    static_cast<int32_t>(sequence.done), sequence.blocks, want);
          sequence.done += count;
          if (want) {
            wants.push_back({s, sequence.done - 1});
          }
        }
        more = more || sequence.done < sequence.tokens.size();
      }
      if (batch.num_rows() == 0) {
        continue;
      }
      const LogitsView logits = (*model)->Forward(batch, {arena->data(), arena->size_bytes()});
      ASSERT_EQ(static_cast<size_t>(logits.num_rows), wants.size());
      for (size_t i = 0; i < wants.size(); ++i) {
        const std::vector<float>& expected =
            sequences[wants[i].sequence].expected[wants[i].position];
        const std::span<const float> row = logits.Row(static_cast<int32_t>(i));
        ASSERT_TRUE(std::equal(row.begin(), row.end(), expected.begin(), expected.end()))
            << "request " << wants[i].sequence << " position " << wants[i].position;
      }
    }
  }
}

// KV of later positions computed before, in any order that respects causality within a layer: the
// segments of one batch may come in any order.
TEST(Forward, SegmentsOfABatchMayComeInAnyOrder) {
  const auto source = MakeSource({});
  ModelOptions options = Exact(SupportedIsas().back());
  options.max_logit_rows = 128;
  options.max_batch_rows = 128;
  const std::vector<TokenId> tokens = RandomTokens(96, 9);
  const Logits expected = RunDense(*source, options, tokens, 96);
  ThreadPool pool(2);
  const auto model = Model::Load(*source, options, pool);
  ASSERT_TRUE(model);
  std::vector<BlockId> blocks = {5, 0, 3, 1, 4, 2};
  auto arena = AlignedBuffer::Create(6 * (*model)->kv_geometry().bytes_per_block());
  ASSERT_TRUE(arena);
  StepBatch batch;
  for (const size_t begin : {64, 0, 32}) {
    batch.Add(std::span(tokens).subspan(begin, 32), static_cast<int32_t>(begin), blocks, true);
  }
  const LogitsView logits = (*model)->Forward(batch, {arena->data(), arena->size_bytes()});
  const size_t positions[] = {95, 31, 63};
  for (int32_t i = 0; i < 3; ++i) {
    const std::span<const float> row = logits.Row(i);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), expected[positions[i]].begin()));
  }
}

// Scores depend on the distance of positions alone: a prompt whose first tokens every head has
// dropped is a prompt without them.
TEST(Forward, DroppedTokensWereNeverThere) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    TinyModelOptions tiny;
    tiny.architecture = architecture;
    tiny.format = GgmlType::kF32;
    const auto source = MakeSource(tiny);
    const std::vector<TokenId> tokens = RandomTokens(150, 12);
    constexpr int32_t kDropped = 20;  // a block and a part of one
    const auto expected = testing::ReferenceLogits(*source, std::span(tokens).subspan(kDropped));
    for (const Isa isa : SupportedIsas()) {
      ModelOptions options = Exact(isa);
      options.max_logit_rows = 150;
      ThreadPool pool(1);
      const auto model = Model::Load(*source, options, pool);
      ASSERT_TRUE(model) << model.error().message;
      const kv::KvGeometry& geometry = (*model)->kv_geometry();
      const std::vector<BlockId> table = {3, 7, 1, 0, 9, 2, 4, 5, 6, 8};
      auto arena = AlignedBuffer::Create(table.size() * geometry.bytes_per_block());
      ASSERT_TRUE(arena);
      const std::span<std::byte> bytes(arena->data(), arena->size_bytes());
      StepBatch batch;
      batch.Add(std::span(tokens).first(kDropped), 0, table, false);
      (void)(*model)->Forward(batch, bytes);
      kv::BlockMasks masks(geometry, static_cast<int32_t>(table.size()));
      for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
        for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
          masks.Drop(table[0], layer, head, 0, 16);
          masks.Drop(table[1], layer, head, 0, kDropped - 16);
        }
      }
      Logits actual;
      for (const int32_t end : {70, 71, 150}) {
        const auto begin = kDropped + static_cast<int32_t>(actual.size());
        batch.Clear();
        batch.Add(
            std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
            begin, table, false);
        batch.logit_rows.resize(static_cast<size_t>(end - begin));
        std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
        batch.masks = &masks;
        const LogitsView logits = (*model)->Forward(batch, bytes);
        for (int32_t row = 0; row < logits.num_rows; ++row) {
          actual.emplace_back(logits.Row(row).begin(), logits.Row(row).end());
        }
      }
      EXPECT_LT(RelativeError(actual, expected), 1e-4) << architecture << " " << IsaName(isa);
    }
  }
}

TEST(Forward, ABatchWithoutWantedRowsReturnsNone) {
  const auto source = MakeSource({});
  const ModelOptions options = Exact(SupportedIsas().back());
  const std::vector<TokenId> tokens = RandomTokens(20, 4);
  const Logits expected = RunDense(*source, options, tokens);
  ThreadPool pool(1);
  const auto model = Model::Load(*source, options, pool);
  ASSERT_TRUE(model);
  auto arena = AlignedBuffer::Create(2 * (*model)->kv_geometry().bytes_per_block());
  ASSERT_TRUE(arena);
  const std::vector<BlockId> blocks = {0, 1};
  StepBatch batch;
  batch.Add(std::span(tokens).first(19), 0, blocks, false);
  EXPECT_EQ((*model)->Forward(batch, {arena->data(), arena->size_bytes()}).num_rows, 0);
  batch.Clear();
  batch.Add(std::span(tokens).last(1), 19, blocks, true);
  const LogitsView logits = (*model)->Forward(batch, {arena->data(), arena->size_bytes()});
  ASSERT_EQ(logits.num_rows, 1);
  EXPECT_TRUE(std::equal(expected[19].begin(), expected[19].end(), logits.Row(0).begin()));
}

// Float32 arithmetic gives the same bits from a quantised file and from its dequantised copies.
// Of one token at several positions, queries and keys of the first layer differ by their rotation
// only: their products depend on the distance of the positions alone, if both are rotated.
TEST(Forward, AnObserverSeesTheRotatedQueriesOfEveryLayer) {
  class Recorder : public ForwardObserver {
   public:
    void OnQueries(int32_t layer, std::span<const float> queries) override {
      EXPECT_EQ(layer, static_cast<int32_t>(layers.size()));
      layers.emplace_back(queries.begin(), queries.end());
    }
    std::vector<std::vector<float>> layers;
  };
  TinyModelOptions tiny;
  const auto source = MakeSource(tiny);
  ThreadPool pool(1);
  const auto model = Model::Load(*source, Exact(Isa::kScalar), pool);
  ASSERT_TRUE(model) << model.error().message;
  const kv::KvGeometry& geometry = (*model)->kv_geometry();
  auto arena = AlignedBuffer::Create(geometry.bytes_per_block());
  ASSERT_TRUE(arena);
  const std::vector<TokenId> tokens(9, 65);
  const BlockId table[] = {0};
  StepBatch batch;
  batch.Add(tokens, 0, table, true);
  const std::span<std::byte> bytes(arena->data(), arena->size_bytes());
  const LogitsView plain = (*model)->Forward(batch, bytes);
  const std::vector<float> expected(plain.Row(0).begin(), plain.Row(0).end());
  Recorder recorder;
  const LogitsView observed = (*model)->Forward(batch, bytes, &recorder);
  EXPECT_THAT(observed.Row(0), ::testing::ElementsAreArray(expected));

  ASSERT_EQ(recorder.layers.size(), static_cast<size_t>(tiny.num_layers));
  const auto head_dim = static_cast<size_t>(tiny.head_dim);
  const size_t row = static_cast<size_t>(tiny.num_heads) * head_dim;
  for (const std::vector<float>& layer : recorder.layers) {
    ASSERT_EQ(layer.size(), tokens.size() * row);
  }
  const auto product = [&](size_t query, size_t key) {
    std::vector<float> k(head_dim);
    attention::ReadPage(geometry, bytes,
                        {.block = 0,
                         .layer = 0,
                         .part = kv::KvPart::kKey,
                         .kv_head = 0,
                         .first_slot = static_cast<int32_t>(key)},
                        k);
    return std::inner_product(
        k.begin(), k.end(), recorder.layers[0].begin() + static_cast<ptrdiff_t>(query * row), 0.0F);
  };
  EXPECT_NEAR(product(3, 0), product(8, 5), 1e-4F * std::abs(product(0, 0)));
  EXPECT_NEAR(product(7, 7), product(0, 0), 1e-4F * std::abs(product(0, 0)));
  EXPECT_GT(std::abs(product(8, 0) - product(0, 0)), 1e-3F * std::abs(product(0, 0)));
}

TEST(Forward, DequantisedFilesGiveTheSameBits) {
  for (const char* architecture : {"llama", "qwen2"}) {
    TinyModelOptions tiny;
    tiny.architecture = architecture;
    tiny.format = GgmlType::kQ4_K;
    tiny.hidden_size = 256;
    tiny.intermediate_size = 256;
    tiny.num_heads = 4;
    const auto source = MakeSource(tiny);
    ASSERT_TRUE(WriteF32Gguf(*source, kvik::testing::TempPath("f32.gguf")));
    ASSERT_TRUE(WriteF32HfFolder(*source, kvik::testing::TempPath("f32_hf")));
    const std::vector<TokenId> tokens = RandomTokens(50, 5);
    ModelOptions options = Exact(SupportedIsas().back());
    options.kv_dtype = kv::KvDtype::kBf16;
    const Logits expected = RunDense(*source, options, tokens);
    for (const char* copy : {"f32.gguf", "f32_hf"}) {
      const auto other = ModelSource::Open(kvik::testing::TempPath(copy));
      ASSERT_TRUE(other) << other.error().message;
      EXPECT_EQ(RunDense(**other, options, tokens), expected) << architecture << " " << copy;
    }
  }
}

TEST(Model, TheNumericsTagNamesEverythingThatDecidesTheBits) {
  const auto source = MakeSource({});
  ThreadPool pool(1);
  const auto tag = [&](const ModelOptions& options) {
    const auto model = Model::Load(*source, options, pool);
    EXPECT_TRUE(model) << model.error().message;
    return (*model)->numerics_tag();
  };
  const ModelOptions base = Exact(Isa::kScalar);
  EXPECT_EQ(tag(base).substr(0, 21), "v1/scalar/f32/kv-f32/");
  ModelOptions other = base;
  other.block_size_tokens = 64;  // where bytes lie, not what they are
  EXPECT_EQ(tag(other), tag(base));
  other.kv_dtype = kv::KvDtype::kBf16;
  EXPECT_NE(tag(other), tag(base));
  other = base;
  other.compute = ComputeType::kBf16;
  EXPECT_NE(tag(other), tag(base));
}

TEST(Model, RefusesOptionsItCannotServe) {
  const auto source = MakeSource({});
  ThreadPool pool(1);
  const auto error = [&](auto edit) {
    ModelOptions options = Exact(Isa::kScalar);
    edit(options);
    const auto model = Model::Load(*source, options, pool);
    return model ? std::string("loaded") : model.error().message;
  };
  EXPECT_EQ(error([](auto&) {}), "loaded");
  EXPECT_THAT(error([](auto& o) { o.block_size_tokens = 8; }), HasSubstr("block of 8 tokens"));
  EXPECT_THAT(error([](auto& o) { o.max_batch_rows = 0; }), HasSubstr("batch of 0 rows"));
  EXPECT_THAT(error([](auto& o) { o.max_logit_rows = 0; }), HasSubstr("max_logit_rows"));
  EXPECT_THAT(error([](auto& o) { o.max_context_tokens = 4096; }),
              HasSubstr("context of 4096 tokens is not in [1, 2048]"));
  EXPECT_THAT(error([](auto& o) {
                o.isa = Isa::kAvx2;
                o.compute = ComputeType::kBf16;
              }),
              HasSubstr("avx2 kernels have no bf16 arithmetic"));
}

}  // namespace
}  // namespace kvik::model
