// SPDX-License-Identifier: Apache-2.0
// engine/executor.h: what the engine asks of whatever computes a step.
//
// ModelExecutor (engine/model_executor.h) runs the real model; tests have a fake whose logits tell
// exactly which KV they were computed from. Called on the engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/types.h"
#include "kv/geometry.h"
#include "model/batch.h"

namespace kvik::engine {

struct ExecutorLimits {
  int32_t vocab_size = 0;
  int32_t max_batch_rows = 0;      // StepBatch::num_rows()
  int32_t max_logit_rows = 0;      // StepBatch::logit_rows.size()
  int32_t max_context_tokens = 0;  // positions stay below
};

class Executor {
 public:
  virtual ~Executor() = default;

  [[nodiscard]] virtual ExecutorLimits limits() const = 0;

  // Of its blocks; none: it has no such bytes and does not look at StepBatch::masks.
  [[nodiscard]] virtual std::optional<kv::KvGeometry> kv_geometry() const { return std::nullopt; }
  // The bytes of all blocks, for those who write or read blocks beside it; empty if there are none.
  [[nodiscard]] virtual std::span<std::byte> arena() { return {}; }
  // Somebody else will write these blocks: until they are in a batch, leave their bytes alone.
  virtual void Lend(std::span<const BlockId> /*blocks*/) {}

  // Writes K and V of every row through the block tables, then returns the logits of the wanted
  // rows, valid until the next call. On an error the blocks the batch writes hold garbage and
  // every other block is untouched.
  [[nodiscard]] virtual Result<model::LogitsView> Execute(const model::StepBatch& batch) = 0;

  // One slice, at most a few milliseconds, of work that makes later steps faster; false when there
  // is nothing left to do. Called while no request waits, so never between two steps of one.
  virtual bool DoIdleWork() { return false; }

  // A hash of the bytes of a block: the engine checks with it that sealed blocks never change
  // (EngineOptions::verify_sealed_blocks).
  [[nodiscard]] virtual uint64_t BlockChecksum(BlockId block) const = 0;
};

}  // namespace kvik::engine
