// SPDX-License-Identifier: Apache-2.0
// model/tokenizer_source.h: the tokenizer that a model brings.
#pragma once

#include <memory>

#include "base/result.h"
#include "model/model_source.h"
#include "text/tokenizer.h"
#include "text/tokenizer_spec.h"

namespace kvik::model {

// From a GGUF file's metadata (tokenizer.ggml.*), or from a folder's tokenizer.json with the
// special tokens of tokenizer_config.json. The model's end tokens (ModelConfig::eos_tokens) end a
// generation as well. kNotFound when the model brings no tokenizer; kCorrupt or kUnsupported with
// the file and the field. One line.
Result<text::TokenizerSpec> ReadTokenizerSpec(const ModelSource& source);

// The same, built: ReadTokenizerSpec and Tokenizer::Create. kCorrupt also when it has more tokens
// than the embedding table has rows.
Result<std::unique_ptr<text::Tokenizer>> LoadTokenizer(const ModelSource& source);

}  // namespace kvik::model
