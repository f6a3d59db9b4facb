// SPDX-License-Identifier: Apache-2.0
#include "eval/task_score.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "base/check.h"

namespace kvik::eval {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
// Letters, digits and every byte of other scripts.
bool IsWordByte(char c) {
  const char lower = Lower(c);
  return (lower >= 'a' && lower <= 'z') || IsDigit(c) || static_cast<unsigned char>(c) >= 0x80;
}

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    if (IsWordByte(c)) {
      word += Lower(c);
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) {
    words.push_back(std::move(word));
  }
  return words;
}

// The last number of a text, without thousands' commas and zeros behind a point: "1,250.50" is
// 1250.5. After the last #### when there is one.
std::optional<std::string> FinalNumber(std::string_view text) {
  const size_t mark = text.rfind("####");
  if (mark != std::string_view::npos) {
    std::optional<std::string> marked =
        FinalNumber(text.substr(mark + 4, std::min(text.find('\n', mark), text.size()) - mark - 4));
    if (marked) {
      return marked;
    }
  }
  size_t end = text.size();
  while (end > 0 && !IsDigit(text[end - 1])) {
    --end;
  }
  size_t begin = end;
  while (begin > 0 &&
         (IsDigit(text[begin - 1]) || text[begin - 1] == ',' || text[begin - 1] == '.')) {
    --begin;
  }
  while (begin < end && !IsDigit(text[begin])) {
    ++begin;
  }
  if (begin == end) {
    return std::nullopt;
  }
  std::string number = begin > 0 && text[begin - 1] == '-' ? "-" : "";
  for (const char c : text.substr(begin, end - begin)) {
    if (c != ',') {
      number += c;
    }
  }
  if (number.find('.') != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') {
      number.pop_back();
    }
  }
  return number;
}

// Whether `part` occurs in `whole`, word by word.
bool Contains(const std::vector<std::string>& whole, const std::vector<std::string>& part) {
  return !part.empty() &&
         std::search(whole.begin(), whole.end(), part.begin(), part.end()) != whole.end();
}

double RougeL(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  if (a.empty() || b.empty()) {
    return 0;
  }
  std::vector<size_t> row(b.size() + 1, 0);  // longest common subsequence with a's beginning
  for (const std::string& word : a) {
    size_t diagonal = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      const size_t above = row[i + 1];
      row[i + 1] = word == b[i] ? diagonal + 1 : std::max(above, row[i]);
      diagonal = above;
    }
  }
  return 2.0 * static_cast<double>(row.back()) / static_cast<double>(a.size() + b.size());
}

}  // namespace

const char* TaskMeasureName(TaskMeasure measure) {
  switch (measure) {
    case TaskMeasure::kNone:
      return "agreement";
    case TaskMeasure::kNumber:
      return "exact number";
    case TaskMeasure::kContainsAnswer:
      return "answer in the output";
    case TaskMeasure::kRougeL:
      return "ROUGE-L";
  }
  return "?";
}

TaskMeasure MeasureOf(const EvalItem& item) {
  if (item.workload == "math" && FinalNumber(item.reference)) {
    return TaskMeasure::kNumber;
  }
  if (!item.answers.empty()) {
    return TaskMeasure::kContainsAnswer;
  }
  return item.workload == "summarization" && !item.reference.empty() ? TaskMeasure::kRougeL
                                                                     : TaskMeasure::kNone;
}

double ScoreAnswer(const EvalItem& item, std::string_view answer) {
  switch (MeasureOf(item)) {
    case TaskMeasure::kNumber:
      return FinalNumber(answer) == FinalNumber(item.reference) ? 1 : 0;
    case TaskMeasure::kContainsAnswer: {
      const std::vector<std::string> words = Words(answer);
      return std::any_of(item.answers.begin(), item.answers.end(),
                         [&](const std::string& a) { return Contains(words, Words(a)); })
                 ? 1
                 : 0;
    }
    case TaskMeasure::kRougeL:
      return RougeL(Words(answer), Words(item.reference));
    case TaskMeasure::kNone:
      break;
  }
  KVIK_CHECK(false, "a task without a measure");
}

}  // namespace kvik::eval
