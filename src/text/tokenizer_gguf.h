// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_gguf.h: what the tokenizer keys of a GGUF file mean.
//
// The module reads no files: whoever reads the metadata fills in GgufTokenizer as it is written
// there, absent keys left unset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace kvik::text {

// Keys below `tokenizer.ggml.`.
struct GgufTokenizer {
  std::string model;                          // model: gpt2, llama
  std::string pre;                            // pre: qwen2, smollm, llama-bpe, ...
  std::vector<std::string> tokens;            // tokens
  std::vector<int32_t> token_types;           // token_type; may be empty
  std::vector<float> scores;                  // scores; may be empty
  std::vector<std::string> merges;            // merges: "left right"
  std::optional<int64_t> bos_id = {};         // bos_token_id
  std::optional<int64_t> eos_id = {};         // eos_token_id
  std::optional<int64_t> eot_id = {};         // eot_token_id
  std::optional<int64_t> eom_id = {};         // eom_token_id
  std::optional<int64_t> unk_id = {};         // unknown_token_id
  std::optional<int64_t> pad_id = {};         // padding_token_id
  std::optional<bool> add_bos = {};           // add_bos_token
  std::optional<bool> add_eos = {};           // add_eos_token
  std::optional<bool> add_space_prefix = {};  // add_space_prefix
};

// kCorrupt: counts that differ, ids out of range, a merge that is not two pieces.
// kUnsupported: an unknown `model` or `pre`, named in the message.
Result<TokenizerSpec> SpecFromGguf(GgufTokenizer fields);

}  // namespace kvik::text
