// SPDX-License-Identifier: Apache-2.0
// model/model_source.h: a model file or folder, opened and validated but not yet loaded.
//
// Two containers behind one face: GGUF (one file or a split set, named by its first part) and a
// Hugging Face folder (config.json, safetensors, tokenizer.json). Nothing in a file is trusted:
// every count, offset and shape is checked against the file before it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "model/config.h"

namespace kvik::model {

class ModelSource {
 public:
  virtual ~ModelSource() = default;

  // `path` names a .gguf file (for a split set its -00001-of-0000N part) or a folder with
  // config.json. kNotFound, kCorrupt, kInvalidInput or kUnsupported, in one line with the file,
  // the field and what to do.
  static Result<std::unique_ptr<ModelSource>> Open(const std::string& path);

  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual const std::string& path() const = 0;
};

}  // namespace kvik::model
