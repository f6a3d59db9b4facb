// SPDX-License-Identifier: Apache-2.0
// eval/logits.h: what two rows of logits say about each other. Pure functions; sums are float64 in
// a fixed order.
#pragma once

#include <span>

#include "base/types.h"

namespace kvik::eval {

// The largest, the first of equals; NaN never wins. -1 when there is no number at all.
TokenId Argmax(std::span<const float> logits);

// A row of the raw run.
struct RawRow {
  TokenId top = 0;     // the largest logit
  float margin = 0;    // to the second largest
  double log_sum = 0;  // log of the sum of exponentials
};
// Also fills in the probabilities [vocab].
RawRow DescribeRow(std::span<const float> logits, std::span<float> probabilities);

// A divergence or likelihood that is no number, or worse than this, counts as this many nats.
constexpr double kWorstNats = 100.0;

struct RowComparison {
  double kl_nats = 0;   // of the coded row from the raw one, KL(raw || coded)
  TokenId top = 0;      // of the coded row; -1 where it is all NaN
  double nll_nats = 0;  // of `target` in the coded row
};
RowComparison CompareRow(std::span<const float> raw, std::span<const float> raw_probabilities,
                         const RawRow& raw_row, std::span<const float> coded, TokenId target);

// -log of the probability of `target`.
double RowNll(std::span<const float> logits, TokenId target);

}  // namespace kvik::eval
