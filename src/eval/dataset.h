// SPDX-License-Identifier: Apache-2.0
// eval/dataset.h: questions, texts and functions that quality is measured on, as lines of JSON.
//
// One object a line: {"workload", "prompt"} and, where there is such a thing, "reference" (a text
// a good answer could be), "context" and "title" (a passage that holds the answer), "answers" (one
// of which a good answer contains). Other members are ignored. Any file of this shape will do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvik::eval {

struct EvalItem {
  std::string workload;  // "math", "code", "qa", "summarization", "retrieval" or another label
  std::string prompt;
  std::string context;    // empty: none
  std::string title;      // of the context
  std::string reference;  // empty: none
  std::vector<std::string> answers;
};

struct EvalData {
  std::vector<EvalItem> items;  // in the order of the lines; files in the order of their names
  std::string hash;             // hexadecimal, of all bytes read
};

// `name` is what errors call the text. kInvalidInput names the line and the member.
Result<std::vector<EvalItem>> ParseEvalItems(std::string_view text, const std::string& name);

// A file, or all *.jsonl of a folder. kNotFound, kInvalidInput, kUnavailable; an empty set of items
// is kInvalidInput.
Result<EvalData> LoadEvalData(const std::string& path);

}  // namespace kvik::eval
