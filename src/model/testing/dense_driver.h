// SPDX-License-Identifier: Apache-2.0
// model/testing/dense_driver.h: a model run on one sequence without an engine: its own arena and a
// block table that counts up. For tests, and for comparing with reference values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "model/model.h"

namespace kvik::model::testing {

class DenseDriver {
 public:
  // Room for `max_tokens` positions. `model` must outlive the driver. kExhausted.
  static Result<std::unique_ptr<DenseDriver>> Create(Model& model, int32_t max_tokens);

  // Forgets all positions.
  void Reset() { position_ = 0; }
  [[nodiscard]] int32_t position() const { return position_; }

  // Computes the next tokens in chunks of at most `chunk_rows` rows and calls
  // visit(position, logits) for every one of them in order, or for the last alone.
  // REQUIRES: position() + tokens.size() <= max_tokens; chunk_rows within the model's limits.
  enum class Want { kAll, kLast };
  template <typename Visit>
  void Append(std::span<const TokenId> tokens, int32_t chunk_rows, Want want, Visit visit) {
    while (!tokens.empty()) {
      const size_t count = std::min(tokens.size(), static_cast<size_t>(chunk_rows));
      const LogitsView logits = Step(tokens.first(count), want, count == tokens.size());
      for (int32_t i = 0; i < logits.num_rows; ++i) {
        visit(position_ - logits.num_rows + i, logits.Row(i));
      }
      tokens = tokens.subspan(count);
    }
  }

 private:
  DenseDriver(Model& model, AlignedBuffer arena, std::vector<BlockId> blocks);
  LogitsView Step(std::span<const TokenId> tokens, Want want, bool is_last);

  Model& model_;
  AlignedBuffer arena_;
  std::vector<BlockId> blocks_;
  StepBatch batch_;
  int32_t position_ = 0;
};

}  // namespace kvik::model::testing
