// SPDX-License-Identifier: Apache-2.0
// eval/calibration_kv.h: keys, values and queries of a model on real text: what calibrated tensors
// are made from.
//
// Texts are cut into pieces that a user could have sent; each is a chat's first message, as the
// model's template writes it, so that the first positions are what they are in service. Immutable
// once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/result.h"
#include "base/types.h"
#include "codec/model_facts.h"
#include "kv/geometry.h"
#include "model/model.h"
#include "model/model_source.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvik::eval {

// One prefilled sequence.
struct CalibrationSequence {
  std::vector<TokenId> tokens;
  int32_t num_tokens = 0;
  // [layers * 2]: keys and values of a layer, each [kv_heads, num_tokens, head_dim]; keys rotated.
  std::vector<std::vector<Bf16>> rows;
  std::vector<int32_t> query_positions;  // ascending
  // [layers]: [query_positions, q_heads, head_dim], rotated, not scaled.
  std::vector<std::vector<float>> queries;

  [[nodiscard]] std::span<const Bf16> Rows(int32_t layer, kv::KvPart part) const {
    return rows[static_cast<size_t>(layer) * 2 + static_cast<size_t>(part)];
  }
};

struct CalibrationKv {
  codec::ModelFacts facts;
  int32_t num_q_heads = 0;
  std::vector<CalibrationSequence> sequences;
  // [layers]: [kv_heads, head_dim, head_dim]: e' M e is how far an error e of what one query head
  // reads moves the output of the layer's attention, squared, averaged over the heads of the group.
  std::vector<std::vector<float>> output_metric;

  [[nodiscard]] int64_t num_tokens() const;
};

struct CalibrationTextInput {
  std::string name;
  std::string text;
};

struct CalibrationKvOptions {
  int32_t sequence_tokens = 1024;     // of a piece, with the template around it
  int32_t max_sequences = 16;         // spread evenly over the texts' pieces
  int32_t queries_per_sequence = 48;  // positions whose queries are kept
  uint64_t seed = 1;
};

// Token ids of the pieces that will be prefilled: at most max_sequences, and of each text the
// number of tokens in them. kInvalidInput: a text is too short for one piece.
struct CalibrationPieces {
  std::vector<std::vector<TokenId>> pieces;
  std::vector<int64_t> tokens_of_text;
};
Result<CalibrationPieces> CutCalibrationTexts(std::span<const CalibrationTextInput> texts,
                                              const CalibrationKvOptions& options,
                                              const text::Tokenizer& tokenizer,
                                              const text::ChatTemplate* chat_template);

// Prefills the pieces. `on_tokens` is told how many tokens are done. kUnsupported: the model does
// not keep KV as bf16. kExhausted.
Result<CalibrationKv> ComputeCalibrationKv(model::Model& model, const model::ModelSource& source,
                                           const codec::ModelFacts& facts,
                                           std::span<const std::vector<TokenId>> pieces,
                                           const CalibrationKvOptions& options,
                                           const std::function<void(int64_t tokens)>& on_tokens);

}  // namespace kvik::eval
