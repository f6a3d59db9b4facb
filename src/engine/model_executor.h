// SPDX-License-Identifier: Apache-2.0
// engine/model_executor.h: runs the steps on a model, over an arena of KV blocks it owns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/aligned_buffer.h"
#include "engine/executor.h"
#include "model/model.h"

namespace kvik::engine {

class ModelExecutor final : public Executor {
 public:
  // Allocates num_blocks blocks of model.kv_geometry(). `model` must outlive the executor.
  // kExhausted says how much memory was asked for.
  static Result<std::unique_ptr<ModelExecutor>> Create(model::Model& model, int32_t num_blocks);

  [[nodiscard]] ExecutorLimits limits() const override;
  [[nodiscard]] std::optional<kv::KvGeometry> kv_geometry() const override {
    return model_.kv_geometry();
  }
  [[nodiscard]] std::span<std::byte> arena() override {
    return {arena_.data(), arena_.size_bytes()};
  }
  void Lend(std::span<const BlockId> blocks) override;
  [[nodiscard]] Result<model::LogitsView> Execute(const model::StepBatch& batch) override;
  // Touches memory of blocks that are likely to be written next. The system hands out and clears
  // pages at their first use, which would otherwise be a tenth of a prefill's time.
  bool DoIdleWork() override;
  [[nodiscard]] uint64_t BlockChecksum(BlockId block) const override;

  [[nodiscard]] size_t arena_bytes() const { return arena_.size_bytes(); }

 private:
  ModelExecutor(model::Model& model, AlignedBuffer arena)
      : model_(model), arena_(std::move(arena)) {}

  void NoteUse(BlockId block);

  model::Model& model_;
  AlignedBuffer arena_;
  size_t used_bytes_ = 0;     // no block at or beyond was ever written or lent
  size_t touched_bytes_ = 0;  // pages before have memory, unless their blocks were never used
};

}  // namespace kvik::engine
