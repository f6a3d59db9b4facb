// SPDX-License-Identifier: Apache-2.0
// engine/testing/fake_executor.h: an Executor without a model, for tests of the engine and of what
// stands on it.
//
// Its logits are a hash of exactly the KV a token attends to (kv/testing/fake_kv.h), so a request
// that read one wrong slot says something else. ReferenceLogits computes the same without a cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "engine/executor.h"
#include "kv/testing/fake_kv.h"

namespace kvik::engine {

struct FakeExecutorOptions {
  int32_t num_blocks = 64;
  int32_t block_size_tokens = 16;
  ExecutorLimits limits{
      .vocab_size = 97, .max_batch_rows = 4096, .max_logit_rows = 64, .max_context_tokens = 4096};
  std::optional<kv::KvGeometry> geometry{};  // what it says of its blocks; there are no such bytes
};

class FakeExecutor final : public Executor {
 public:
  explicit FakeExecutor(const FakeExecutorOptions& options)
      : options_(options), kv_(options.num_blocks, options.block_size_tokens) {}

  // Called at the start of every Execute; an error makes it fail, after writing garbage.
  std::function<Result<void>(const model::StepBatch&)> before_execute;

  [[nodiscard]] ExecutorLimits limits() const override { return options_.limits; }

  [[nodiscard]] std::optional<kv::KvGeometry> kv_geometry() const override {
    return options_.geometry;
  }

  [[nodiscard]] Result<model::LogitsView> Execute(const model::StepBatch& batch) override {
    CheckBatch(batch);
    if (before_execute) {
      const auto result = before_execute(batch);
      if (!result.has_value()) {
        WriteRows(batch, /*corrupt=*/1);
        return result.error();
      }
    }
    WriteRows(batch, /*corrupt=*/0);
    logits_.clear();
    for (const int32_t row : batch.logit_rows) {
      const model::Segment& segment = SegmentOf(batch, row);
      AppendLogits(kv_.Digest(segment.block_table, PosOf(segment, row)), options_.limits.vocab_size,
                   logits_);
    }
    return model::LogitsView{logits_.data(), static_cast<int32_t>(batch.logit_rows.size()),
                             options_.limits.vocab_size};
  }

  [[nodiscard]] uint64_t BlockChecksum(BlockId block) const override {
    return kv_.BlockChecksum(block);
  }

  // The bytes, so to speak, of its blocks.
  [[nodiscard]] kv::FakeKv& kv() { return kv_; }

  // The logits after `tokens`, computed from the tokens alone.
  static std::vector<float> ReferenceLogits(std::span<const TokenId> tokens, int32_t vocab_size) {
    std::vector<float> logits;
    AppendLogits(kv::FakeKv::ReferenceDigest(tokens), vocab_size, logits);
    return logits;
  }

 private:
  static int32_t PosOf(const model::Segment& segment, int32_t row) {
    return segment.first_pos + row - segment.first_row;
  }
  static const model::Segment& SegmentOf(const model::StepBatch& batch, int32_t row) {
    for (const model::Segment& segment : batch.segments) {
      if (row >= segment.first_row && row < segment.first_row + segment.num_tokens) {
        return segment;
      }
    }
    CheckFailed(__FILE__, __LINE__, "row without a segment");
  }
  static void AppendLogits(uint64_t digest, int32_t vocab_size, std::vector<float>& logits) {
    Rng rng(digest);
    for (int32_t i = 0; i < vocab_size; ++i) {
      logits.push_back(static_cast<float>(rng.Uniform() * 8.0 - 4.0));
    }
  }
  // batch.h's contract, spelled out.
  void CheckBatch(const model::StepBatch& batch) const {
    KVIK_CHECK(batch.num_rows() >= 1 && batch.num_rows() <= options_.limits.max_batch_rows);
    KVIK_CHECK(batch.positions.size() == batch.tokens.size());
    KVIK_CHECK(static_cast<int32_t>(batch.logit_rows.size()) <= options_.limits.max_logit_rows);
    int32_t row = 0;
    for (const model::Segment& segment : batch.segments) {
      KVIK_CHECK(segment.first_row == row && segment.num_tokens >= 1);
      row += segment.num_tokens;
    }
    KVIK_CHECK(row == batch.num_rows());
  }
  void WriteRows(const model::StepBatch& batch, TokenId corrupt) {
    for (const model::Segment& segment : batch.segments) {
      for (int32_t row = segment.first_row; row < segment.first_row + segment.num_tokens; ++row) {
        KVIK_CHECK(batch.positions[static_cast<size_t>(row)] == PosOf(segment, row));
        kv_.Write(segment.block_table, PosOf(segment, row),
                  batch.tokens[static_cast<size_t>(row)] + corrupt);
      }
    }
  }

  FakeExecutorOptions options_;
  kv::FakeKv kv_;
  std::vector<float> logits_;  // [logit rows, vocab_size]
};

}  // namespace kvik::engine
