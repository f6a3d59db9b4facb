// SPDX-License-Identifier: Apache-2.0
// eval/results_log.h: what was measured already, prompt by prompt, in a file that only grows.
//
// A line is a JSON object with the key of a measurement (everything that decides it: model, prompt,
// coder, options), its numbers and a checksum. Lines that are damaged or cut off are skipped: what
// they held is measured again. So a run can be ended at any time and goes on where it was.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/result.h"
#include "eval/quality.h"

namespace kvik::eval {

// Owned by one thread; several processes may append to one file.
class ResultsLog {
 public:
  // Reads what is in `path`, which is made when it does not exist, with its folder. Empty path: a
  // log in memory only. kUnavailable: cannot be read or written.
  static Result<std::unique_ptr<ResultsLog>> Open(const std::string& path);
  ~ResultsLog();
  ResultsLog(const ResultsLog&) = delete;
  ResultsLog& operator=(const ResultsLog&) = delete;

  [[nodiscard]] const PromptQuality* Find(uint64_t key) const;
  // On disk when it returns. kUnavailable, kExhausted.
  Result<void> Add(uint64_t key, const PromptQuality& quality);

  [[nodiscard]] size_t size() const { return known_.size(); }
  [[nodiscard]] size_t damaged_lines() const { return damaged_lines_; }

 private:
  ResultsLog() = default;
  std::string path_;
  std::FILE* file_ = nullptr;
  std::unordered_map<uint64_t, PromptQuality> known_;
  size_t damaged_lines_ = 0;
};

// A key from everything that decides a result.
uint64_t ResultKey(std::string_view description);

// One line without its end, and back; nothing where the line is damaged.
std::string PrintResult(uint64_t key, const PromptQuality& quality);
std::optional<std::pair<uint64_t, PromptQuality>> ParseResult(std::string_view line);

}  // namespace kvik::eval
