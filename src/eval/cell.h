// SPDX-License-Identifier: Apache-2.0
// eval/cell.h: what a number of quality is about: prompts of one workload and one length.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "eval/dataset.h"

namespace kvik::eval {

struct Cell {
  std::string workload;
  // Tokens of a prompt, about: 128 stands for short prompts as they come, more for prompts built to
  // nearly that length. 0 = as the items are.
  int32_t target_tokens = 0;

  friend bool operator==(const Cell&, const Cell&) = default;
};

// "qa:1K", "math:128", "retrieval". 1K is 1,024 tokens.
std::string CellName(const Cell& cell);
// What CellName prints, and plain numbers of tokens. kInvalidInput.
Result<Cell> ParseCell(std::string_view text);
// A list with commas.
Result<std::vector<Cell>> ParseCells(std::string_view text);

// The lengths of every workload that `items` has: math and code 128 and 1K; qa 128, 1K, 6K;
// summarization 1K, 6K; any other as it is. In this order.
std::vector<Cell> StandardCells(std::span<const EvalItem> items);

}  // namespace kvik::eval
