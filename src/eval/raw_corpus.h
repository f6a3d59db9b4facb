// SPDX-License-Identifier: Apache-2.0
// eval/raw_corpus.h: what the model without a codec makes of the prompts of a cell, computed once
// and kept on disk.
//
// A prompt is prefilled, answered greedily until an end token or a limit, and kept as a RawPrompt
// in a file whose name and key depend on everything that decides its content: the numerics tag, the
// prompt's tokens and the options. Files are only ever a saving: one that is missing, damaged or
// of something else is computed again, and what the size limit has no room for is not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "eval/prompts.h"
#include "eval/raw_prompt.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kvik::eval {

struct RawCorpusOptions {
  std::string folder = {};  // of all corpora; it is made. Empty: nothing is kept
  uint64_t max_folder_bytes = uint64_t{32} << 30;  // of all files in it
  int32_t continuation_tokens = 64;                // judged positions of a prompt, at most
  int32_t query_positions = 4;                     // of these, whose queries are kept, at most
};

struct RawPromptInfo {
  uint64_t key = 0;  // of everything that decides it
  int32_t num_tokens = 0;
  bool on_disk = false;  // there is a file of its name
};

struct RawCorpusCounts {
  int64_t loaded = 0;    // prompts found on disk
  int64_t computed = 0;  // prompts computed, of this many tokens
  int64_t computed_tokens = 0;
  int64_t kept = 0;     // of the computed ones
  int64_t damaged = 0;  // files that were there and could not be used
};

// Owned by one thread, that of the model.
class RawCorpus {
 public:
  // Borrows model, tokenizer and prompts. The model stores KV as bf16 (kUnsupported otherwise).
  // kUnavailable: the folder cannot be made.
  static Result<std::unique_ptr<RawCorpus>> Open(model::Model& model,
                                                 const text::Tokenizer& tokenizer,
                                                 const CellPrompts& prompts,
                                                 const RawCorpusOptions& options);

  // Candidates of the prompts; of each either the prompt or nothing: it does not fit the cell or
  // the model's context. What is missing is computed, several prompts at a time.
  Result<std::vector<std::optional<RawPrompt>>> Get(std::span<const size_t> candidates);
  // What is known of the raw prompt of a candidate before it is computed. Nothing as above.
  [[nodiscard]] Result<std::optional<RawPromptInfo>> Info(size_t candidate) const;
  // How many candidates to ask for at once: short prompts are answered together.
  [[nodiscard]] size_t batch_prompts() const;

  [[nodiscard]] const RawCorpusOptions& options() const { return options_; }
  [[nodiscard]] const RawCorpusCounts& counts() const { return counts_; }
  // Called with the tokens that were computed, now and then.
  std::function<void(int64_t tokens)> on_computed;

 private:
  struct Wanted;
  RawCorpus(model::Model& model, const text::Tokenizer& tokenizer, const CellPrompts& prompts,
            const RawCorpusOptions& options);
  [[nodiscard]] Result<std::optional<Wanted>> Want(size_t candidate) const;
  [[nodiscard]] std::optional<RawPrompt> Find(const Wanted& wanted);
  Result<void> Compute(std::span<Wanted*> batch);
  Result<void> Prefill(std::span<Wanted*> batch);
  void Answer(std::span<Wanted*> batch);
  Result<RawPrompt> Collect(const Wanted& wanted);
  void Keep(const Wanted& wanted, RawPrompt& prompt);

  model::Model& model_;
  const text::Tokenizer& tokenizer_;
  const CellPrompts& prompts_;
  RawCorpusOptions options_;
  std::string address_;        // of what the keys of all prompts share
  uint64_t folder_bytes_ = 0;  // of all files
  AlignedBuffer arena_;
  model::StepBatch step_;
  RawCorpusCounts counts_;
};

}  // namespace kvik::eval
