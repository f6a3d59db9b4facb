// SPDX-License-Identifier: Apache-2.0
// eval/task_score.h: how good an answer is, by the usual measure of its task. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "eval/dataset.h"

namespace kvik::eval {

enum class TaskMeasure {
  kNone,            // nothing to score by: agreement with the raw run is all there is
  kNumber,          // the number the answer ends with is that of the reference
  kContainsAnswer,  // one of the answers occurs in the text
  kRougeL,          // F1 of the longest common subsequence of words with the reference
};
const char* TaskMeasureName(TaskMeasure measure);  // "agreement", "exact number", ...

// By the item's workload and what it has.
TaskMeasure MeasureOf(const EvalItem& item);

// In [0, 1]. REQUIRES: MeasureOf(item) is not kNone.
double ScoreAnswer(const EvalItem& item, std::string_view answer);

// Below this mean score of the raw model a task says nothing about compression.
constexpr double kLeastRawScore = 0.20;

}  // namespace kvik::eval
