// SPDX-License-Identifier: Apache-2.0
// eval/coded_sequences.h: sequences that begin with the same prompt, each on KV that went through
// another coder.
//
// They lie side by side in one arena, each in blocks of its own with masks of its own, so one step
// of the model takes rows of many of them: a few dozen rows are too few to keep a processor busy.
// A sequence goes on in two branches, for the answer and for another text: they share the blocks
// that the prompt fills, and neither sees the other. What a branch gets from the model does not
// depend on what else is fed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "eval/kv_coder.h"
#include "eval/raw_prompt.h"
#include "kv/block_masks.h"
#include "kv/geometry.h"
#include "model/batch.h"
#include "model/model.h"

namespace kvik::eval {

constexpr size_t kBranches = 2;

// Tokens [first, first + tokens.size()) after the prompt, of one branch of a sequence. Borrowed.
struct FedTokens {
  size_t sequence = 0;
  size_t branch = 0;  // below kBranches
  size_t first = 0;
  std::span<const TokenId> tokens;
};

// Where the time of feeding goes.
struct FeedTimes {
  int64_t& model_us;
  int64_t& visit_us;
};

// Owned by the model's thread.
class CodedSequences {
 public:
  // Called with the logits that follow tokens[row] of feeds[feed], on the pool's threads, several
  // at a time.
  using Visit = std::function<void(size_t feed, size_t row, std::span<const float> logits)>;

  // Borrows everything. With `every_block`, blocks that fill up while tokens are fed go through the
  // coder as well. REQUIRES: the model stores KV as bf16.
  CodedSequences(model::Model& model, ThreadPool& pool, const Clock& clock, bool every_block);

  // What one sequence takes, of up to `tokens` tokens with those of the prompt.
  [[nodiscard]] size_t BytesOf(const RawPrompt& prompt, int32_t tokens) const;
  // Makes room for `count` such sequences that begin with `prompt`, which must outlive them.
  // Nothing stays of what was there. kExhausted.
  Result<void> Reset(const RawPrompt& prompt, size_t count, int32_t tokens);
  [[nodiscard]] size_t size() const { return sequences_.size(); }

  // Begins a sequence anew with the prompt as it is, and no coder.
  void BeginRaw(size_t sequence);
  // Begins a sequence anew with what `coder`, which it borrows, gives back of the prompt.
  // `coding_us` grows by the time of all coding. If the coder fails, here or later, error() says
  // so, and nothing more is done for the sequence.
  void Begin(size_t sequence, KvCoder& coder, int64_t& coding_us);
  // Both branches go back to the end of the prompt.
  void Rewind(size_t sequence);
  // Feeds tokens to sequences, as many rows at a time as the model takes. REQUIRES: no branch
  // of a sequence occurs twice; what is before the tokens has been fed.
  void Feed(std::span<const FedTokens> feeds, const FeedTimes& times, const Visit& visit);

  [[nodiscard]] const std::optional<Error>& error(size_t sequence) const {
    return sequences_[sequence].error;
  }
  // The coder gave back every bit of the prompt, and nothing is dropped.
  [[nodiscard]] bool unchanged(size_t sequence) const { return sequences_[sequence].unchanged; }
  // That went through the coder and came out of it so far, of the prompt and the first branch.
  [[nodiscard]] int64_t values(size_t sequence) const { return sequences_[sequence].values; }
  [[nodiscard]] int64_t bytes(size_t sequence) const { return sequences_[sequence].bytes; }
  // Of the prompt.
  [[nodiscard]] std::span<const DroppedTokens> dropped(size_t sequence, int32_t layer) const {
    return sequences_[sequence].prompt_dropped[static_cast<size_t>(layer)];
  }
  // What came back last, [kv_heads, tokens, head_dim]: the prompt right after Begin.
  [[nodiscard]] std::span<const Bf16> coded_rows(int32_t layer, kv::KvPart part) const {
    return coded_rows_[2 * static_cast<size_t>(layer) + static_cast<size_t>(part)];
  }

 private:
  struct Sequence {
    std::array<std::vector<BlockId>, kBranches> blocks;
    KvCoder* coder = nullptr;
    int64_t* coding_us = nullptr;
    std::vector<std::vector<DroppedTokens>> prompt_dropped;  // [layers]
    std::optional<Error> error;
    bool unchanged = false;
    int64_t values = 0;
    int64_t bytes = 0;
  };
  struct CodedLayer {
    CodedSize size;
    bool unchanged = false;
  };

  [[nodiscard]] std::span<std::byte> arena() { return {arena_.data(), arena_.size_bytes()}; }
  [[nodiscard]] size_t BlocksOf(int32_t tokens) const;
  // Blocks of the prompt that are full, which branches share.
  [[nodiscard]] size_t SharedBlocks(const RawPrompt& prompt) const;
  // The prompt, as it lies in the first branch, for the others too.
  void Fork(const Sequence& sequence);
  // Positions [first_pos, first_pos + num_tokens) of a branch through the coder and back.
  void Pass(Sequence& sequence, size_t branch, int32_t first_pos, int32_t num_tokens);
  Result<CodedLayer> PassLayer(const Sequence& sequence, size_t branch, int32_t layer,
                               int32_t first_pos, int32_t num_tokens, int thread);
  void Drop(std::span<const BlockId> blocks, int32_t layer, const DroppedTokens& dropped);

  model::Model& model_;
  ThreadPool& pool_;
  const Clock& clock_;
  bool every_block_;

  const RawPrompt* prompt_ = nullptr;
  AlignedBuffer arena_;
  std::unique_ptr<kv::BlockMasks> masks_;  // of the arena's blocks
  std::vector<Sequence> sequences_;
  std::vector<std::vector<Bf16>> coded_rows_;  // [layers][2: K, V], of the last pass
  model::StepBatch step_;
};

}  // namespace kvik::eval
