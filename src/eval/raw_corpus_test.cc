// SPDX-License-Identifier: Apache-2.0
#include "eval/raw_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "eval/kv_rows.h"
#include "eval/logits.h"
#include "eval/testing/tiny_setup.h"

namespace kvik::eval {
namespace {

struct Corpus {
  explicit Corpus(const std::string& folder, const Cell& cell = {"qa", 500}, int threads = 1,
                  int32_t max_batch_rows = 64, uint64_t max_folder_bytes = 1ULL << 30)
      : setup({}, threads, {.isa = Isa::kScalar, .max_batch_rows = max_batch_rows}),
        prompts(CellPrompts::Create(items, cell, 1, *setup.tokenizer, setup.chat_template.get())
                    .value()),
        corpus(RawCorpus::Open(*setup.model, *setup.tokenizer, prompts,
                               {.folder = folder,
                                .max_folder_bytes = max_folder_bytes,
                                .continuation_tokens = 20,
                                .query_positions = 3})
                   .value()) {}
  std::vector<EvalItem> items = testing::MadeItems(8);
  testing::TinySetup setup;
  CellPrompts prompts;
  std::unique_ptr<RawCorpus> corpus;
};

bool Same(const RawPrompt& a, const RawPrompt& b) {
  bool same = a.shape() == b.shape() && std::ranges::equal(a.tokens(), b.tokens()) &&
              std::ranges::equal(a.continuation(), b.continuation()) &&
              std::ranges::equal(a.reference(), b.reference()) &&
              std::ranges::equal(a.query_positions(), b.query_positions());
  for (int32_t layer = 0; same && layer < a.shape().num_layers; ++layer) {
    same = std::ranges::equal(a.queries(layer), b.queries(layer));
    for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
      same = same && std::ranges::equal(a.rows(layer, part), b.rows(layer, part));
    }
  }
  return same;
}

constexpr size_t kSome[] = {0, 1, 2, 3};

// One row at a time, with nothing but the model.
TEST(RawCorpus, IsWhatTheModelComputesAlone) {
  Corpus made("");
  const auto raw = made.corpus->Get(kSome);
  ASSERT_TRUE(raw) << raw.error().message;
  ASSERT_EQ(raw->size(), 4U);
  model::Model& model = *made.setup.model;
  const kv::KvGeometry& geometry = model.kv_geometry();
  auto arena = AlignedBuffer::Create(40 * geometry.bytes_per_block()).value();
  const std::span<std::byte> bytes(arena.data(), arena.size_bytes());
  std::vector<BlockId> table(40);
  std::iota(table.rbegin(), table.rend(), 0);
  for (const auto& prompt : *raw) {
    ASSERT_TRUE(prompt);
    ASSERT_GT(prompt->shape().num_continuation, 1);
    const auto expected = made.prompts.Build(static_cast<size_t>(&prompt - raw->data())).value();
    EXPECT_TRUE(std::ranges::equal(prompt->tokens(), expected->tokens));
    std::vector<TokenId> answer;
    std::vector<TokenId> all(prompt->tokens().begin(), prompt->tokens().end());
    for (size_t pos = 0; answer.size() < prompt->continuation().size(); ++pos) {
      model::StepBatch batch;
      batch.Add(std::span(all).subspan(pos, 1), static_cast<int32_t>(pos), table, true);
      const TokenId next = Argmax(model.Forward(batch, bytes).Row(0));
      if (pos + 1 >= prompt->tokens().size()) {
        answer.push_back(next);
        all.push_back(next);
      }
    }
    EXPECT_TRUE(std::ranges::equal(prompt->continuation(), answer));
    EXPECT_TRUE(prompt->continuation().size() == 21 ||
                made.setup.tokenizer->IsEnd(prompt->continuation().back()));
    for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
      for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
        std::vector<Bf16> rows(NumRowValues(geometry, prompt->shape().num_tokens));
        ReadRows(geometry, bytes, {table, layer, part, 0, prompt->shape().num_tokens}, rows);
        EXPECT_TRUE(std::ranges::equal(prompt->rows(layer, part), rows));
      }
    }
    ASSERT_EQ(prompt->shape().num_queries, 3);
    class Last : public model::ForwardObserver {
     public:
      void OnQueries(int32_t /*layer*/, std::span<const float> queries) override {
        layers.emplace_back(queries.begin(), queries.end());
      }
      std::vector<std::vector<float>> layers;
    } last;
    const auto at = static_cast<size_t>(prompt->query_positions()[2]);
    model::StepBatch batch;
    batch.Add(prompt->continuation().subspan(at, 1),
              prompt->shape().num_tokens + static_cast<int32_t>(at), table, true);
    (void)model.Forward(batch, bytes, &last);
    for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
      const std::vector<float>& queries = last.layers[static_cast<size_t>(layer)];
      EXPECT_TRUE(std::ranges::equal(prompt->queries(layer).last(queries.size()), queries));
    }
  }
}

TEST(RawCorpus, DoesNotDependOnThreadsBatchesOrWhereItComesFrom) {
  const std::string folder = kvik::testing::TempPath("corpus");
  Corpus first(folder);
  constexpr size_t kTwo[] = {0, 1};
  const auto computed = first.corpus->Get(kTwo).value();
  EXPECT_EQ(first.corpus->counts().computed, 2);
  EXPECT_EQ(first.corpus->counts().kept, 2);
  // Other threads and rows a step.
  Corpus second(folder, {"qa", 500}, 2, 41);
  const auto loaded = second.corpus->Get(kTwo).value();
  EXPECT_EQ(second.corpus->counts().loaded, 2);
  EXPECT_EQ(second.corpus->counts().computed, 0);
  Corpus third("", {"qa", 500}, 2, 41);
  for (const size_t i : kTwo) {
    EXPECT_TRUE(Same(*computed[i], *loaded[i]));
    EXPECT_TRUE(Same(*computed[i], *third.corpus->Get(std::span(&i, 1)).value()[0]));
  }
}

TEST(RawCorpus, DamagedFilesAreComputedAgainAndOthersNotFound) {
  const std::string folder = kvik::testing::TempPath("damaged");
  {
    Corpus made(folder);
    ASSERT_TRUE(made.corpus->Get(kSome));
  }
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && damaged < 2) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(5000);
      file.put('\x55');
      file.put('\x66');
      ++damaged;
    }
  }
  Corpus again(folder);
  ASSERT_TRUE(again.corpus->Get(kSome));
  EXPECT_EQ(again.corpus->counts().damaged, 2);
  EXPECT_EQ(again.corpus->counts().computed, 2);
  EXPECT_EQ(again.corpus->counts().loaded, 2);
  Corpus other(folder, {"qa", 400});
  ASSERT_TRUE(other.corpus->Get(kSome));
  EXPECT_EQ(other.corpus->counts().loaded, 0);
}

TEST(RawCorpus, NothingIsKeptBeyondTheLimit) {
  const std::string folder = kvik::testing::TempPath("limited");
  Corpus made(folder, {"qa", 500}, 1, 64, 700'000);
  ASSERT_TRUE(made.corpus->Get(kSome));
  EXPECT_EQ(made.corpus->counts().computed, 4);
  const int64_t kept = made.corpus->counts().kept;
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 4);
  uint64_t total = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    total += entry.is_regular_file() ? entry.file_size() : 0;
  }
  EXPECT_LE(total, 700'000U);
}

TEST(RawCorpus, RefusesFloat32KvAndPromptsWithoutRoom) {
  testing::TinySetup wide(
      {}, 1, {.isa = Isa::kScalar, .kv_dtype = kv::KvDtype::kF32, .max_batch_rows = 8});
  const std::vector<EvalItem> items = testing::MadeItems(2);
  const auto prompts = CellPrompts::Create(items, {"qa", 0}, 1, *wide.tokenizer, nullptr).value();
  EXPECT_EQ(RawCorpus::Open(*wide.model, *wide.tokenizer, prompts, {}).error().code,
            ErrorCode::kUnsupported);
  testing::TinySetup small({}, 1,
                           {.isa = Isa::kScalar, .max_batch_rows = 8, .max_context_tokens = 100});
  const auto corpus = RawCorpus::Open(*small.model, *small.tokenizer, prompts, {}).value();
  const size_t first[] = {0};
  EXPECT_FALSE(corpus->Get(first).value()[0]);
  EXPECT_FALSE(corpus->Info(0).value());
}

}  // namespace
}  // namespace kvik::eval
