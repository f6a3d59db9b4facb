// SPDX-License-Identifier: Apache-2.0
#include "engine/model_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvik::engine {

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::Create(model::Model& model,
                                                             int32_t num_blocks) {
  if (num_blocks < 1) {
    return Err(ErrorCode::kInvalidInput, "the KV cache needs at least one block, not %d",
               num_blocks);
  }
  const size_t bytes = static_cast<size_t>(num_blocks) * model.kv_geometry().bytes_per_block();
  auto arena = AlignedBuffer::Create(bytes);
  if (!arena.has_value()) {
    return arena.error().Wrap("KV cache of " + std::to_string(bytes >> 20) + " MiB");
  }
  return std::unique_ptr<ModelExecutor>(new ModelExecutor(model, std::move(arena).value()));
}

ExecutorLimits ModelExecutor::limits() const {
  const model::ModelOptions& options = model_.options();
  return ExecutorLimits{model_.config().vocab_size, options.max_batch_rows, options.max_logit_rows,
                        options.max_context_tokens};
}

Result<model::LogitsView> ModelExecutor::Execute(const model::StepBatch& batch) {
  const kv::KvGeometry& geometry = model_.kv_geometry();
  for (const model::Segment& segment : batch.segments) {
    const int32_t last = (segment.first_pos + segment.num_tokens - 1) / geometry.block_size_tokens;
    for (int32_t i = segment.first_pos / geometry.block_size_tokens; i <= last; ++i) {
      NoteUse(segment.block_table[static_cast<size_t>(i)]);
    }
  }
  return model_.Forward(batch, {arena_.data(), arena_.size_bytes()});
}

// Touching a page writes to it, so DoIdleWork stays behind what others may write at the same time.
void ModelExecutor::Lend(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    NoteUse(block);
  }
}

void ModelExecutor::NoteUse(BlockId block) {
  used_bytes_ = std::max(used_bytes_,
                         (static_cast<size_t>(block) + 1) * model_.kv_geometry().bytes_per_block());
}

bool ModelExecutor::DoIdleWork() {
  constexpr size_t kAheadBytes = size_t{1} << 30;
  constexpr size_t kSliceBytes = size_t{2} << 20;  // a huge page: about a millisecond
  const size_t end = std::min(arena_.size_bytes(), used_bytes_ + kAheadBytes);
  touched_bytes_ = std::max(touched_bytes_, used_bytes_);
  if (touched_bytes_ >= end) {
    return false;
  }
  const size_t slice_end = std::min(end, touched_bytes_ + kSliceBytes);
  TouchPages(arena_.data() + touched_bytes_, slice_end - touched_bytes_);
  touched_bytes_ = slice_end;
  return true;
}

uint64_t ModelExecutor::BlockChecksum(BlockId block) const {
  const size_t bytes = model_.kv_geometry().bytes_per_block();
  const std::byte* data = arena_.data() + static_cast<size_t>(block) * bytes;
  uint64_t sum = 0xCBF29CE484222325ULL;  // FNV-1a over 64-bit words
  for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, sizeof word);
    sum = (sum ^ word) * 0x100000001B3ULL;
  }
  return sum;
}

}  // namespace kvik::engine
