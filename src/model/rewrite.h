// SPDX-License-Identifier: Apache-2.0
// model/rewrite.h: a model's weights as plain float32, in another file.
//
// Dequantisation is exact, so a model computed in float32 must say the same from its quantised file
// and from either of these, bit for bit.
#pragma once

#include <string>

#include "base/result.h"
#include "model/model_source.h"

namespace kvik::model {

// GGUF with F32 tensors and the metadata of `source` (tokenizer included). kInvalidInput when
// `source` is not GGUF; kExhausted or kUnavailable when the file cannot be written.
Result<void> WriteF32Gguf(const ModelSource& source, const std::string& path);

// A Hugging Face folder (made if it is not there): config.json, model.safetensors in F32,
// tokenizer_config.json with the chat template, but no tokenizer.json. kUnsupported when the
// configuration has no form there (rotary divisors given as a tensor).
Result<void> WriteF32HfFolder(const ModelSource& source, const std::string& folder);

// Bytes either of them will take, about.
size_t F32Bytes(const ModelSource& source);

}  // namespace kvik::model
