// SPDX-License-Identifier: Apache-2.0
// eval/library_quality.h: what the profiles of a library cost in quality and save in bytes, on real
// prompts: the numbers that a library carries.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "codec/profile_library.h"
#include "eval/cell.h"
#include "eval/cell_run.h"
#include "eval/dataset.h"
#include "eval/raw_corpus.h"
#include "eval/results_log.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvik::eval {

struct LibraryQualityOptions {
  std::vector<Cell> cells;
  int64_t positions = 1024;     // of a cell, at least
  int32_t frame_tokens = 1536;  // of a frame, at most
  RawCorpusOptions corpus;
  uint64_t seed = 1;
};

// Everything a measurement needs, borrowed.
struct LibraryQualityInput {
  model::Model* model = nullptr;
  ThreadPool* pool = nullptr;
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;  // null: ChatML
  std::span<const EvalItem> items;
  ResultsLog* log = nullptr;
  const Clock* clock = nullptr;
};

// Replaces ratios and quality of every profile. A record is of a cell (a workload and a length), of
// a workload over its cells, and of kUnifiedWorkload over all; prompts count alike. Exact profiles
// get ratios only. Ratios are of the first tokens of long prompts, at kRatioTokens as far as
// prompts reach. Results that are in the log are not measured again. `on_progress` is told the
// positions judged so far, over profiles and cells. Fails as CellRun does, or as a profile does,
// with its name.
Result<void> MeasureLibraryQuality(const LibraryQualityInput& input,
                                   const LibraryQualityOptions& options,
                                   codec::ProfileLibrary& library,
                                   const std::function<void(int64_t positions)>& on_progress);

constexpr int32_t kRatioTokens[] = {128, 512, 1024, 4096, 6144};

// Raw bytes over encoded ones of the first `tokens` tokens of prompts that have as many; 0: none
// has.
Result<double> MeasureRatio(const codec::FrameCodec& codec, std::span<const RawPrompt> prompts,
                            int32_t tokens, int32_t frame_tokens);

}  // namespace kvik::eval
