// SPDX-License-Identifier: Apache-2.0
// app/eval.h: kvik eval: what compression pipelines cost in quality, on real prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/runtime.h"
#include "base/result.h"

namespace kvik::app {

struct EvalOptions {
  RuntimeOptions runtime;  // model, arithmetic, threads, seed
  // Pipelines or names of presets; empty: the profiles below.
  std::vector<std::string> pipelines;
  std::string profiles;                    // a profile library; empty: none
  std::vector<std::string> profile_names;  // of it; empty: all, unless there are pipelines
  std::string data;                        // a file or a folder of *.jsonl
  std::string cells;                       // "qa:1K,math:128"; empty: eval::StandardCells
  int64_t positions = 2048;                // of a cell, at least; 0: every prompt there is
  int32_t continuation_tokens = 64;        // judged positions of a prompt, at most
  int32_t frame_tokens = 0;  // of a frame, at most; 0: what the preset says, else 1,536
  bool every_block = false;
  bool score_tasks = false;
  std::vector<std::string> columns = {"kl", "top1", "ppl", "error"};  // of the table
  std::string cache_folder;                                           // empty: in CacheFolder()
  uint64_t cache_bytes = uint64_t{32} << 30;
  std::string results;  // the log of results; empty: in the cache folder
  bool fresh = false;   // nothing that was measured before counts
  bool plan = false;    // only say how long it would take
  bool json = false;
  std::string svg_path;  // of plots of bits against divergence; empty: none
  std::string csv_path;  // of what they show
  bool quiet = false;    // no progress
};

// Columns there are: "kl", "top1", "ppl", "error", "task".
const std::vector<std::string>& EvalColumns();

// Cuts "a, b(c,d) -> e" at the commas outside of parentheses.
std::vector<std::string> SplitPipelines(const std::string& text);

// Writes a table or JSON (or, for a plan, the seconds it would take) to standard output; 1 when a
// pipeline failed, with its error in the result. Goes on where an ended run with the same options
// was.
Result<int> Evaluate(const EvalOptions& options);

}  // namespace kvik::app
