// SPDX-License-Identifier: Apache-2.0
// model/model_source.h: a model file or folder, opened and validated but not yet loaded.
//
// Two containers behind one face: GGUF (one file or a split set, named by its first part) and a
// Hugging Face folder (config.json, safetensors, tokenizer.json). Nothing in a file is trusted:
// every count, offset and shape is checked against the file before it is used, and a source that
// opened has every weight its configuration needs, in the right shape. Immutable; the weights'
// bytes are mapped, not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "model/config.h"
#include "model/gguf.h"

namespace kvik::model {

// One weight as it is stored. Names are GGUF's ("blk.0.attn_q.weight") for both containers.
struct WeightTensor {
  GgmlType type = GgmlType::kF32;
  int64_t rows = 0;  // 1 for vectors
  int64_t cols = 0;
  std::span<const std::byte> data;  // [rows, cols] in blocks of `type`; maybe not aligned
  // 0, or the head_dim of a q or k projection whose rows are in the interleaved rotary order
  // (2 i and 2 i + 1 rotate together) and belong at (i, i + head_dim / 2) of their head.
  int32_t interleaved_head_dim = 0;
};

class ModelSource {
 public:
  // `path` names a .gguf file (for a split set its -00001-of-0000N part) or a folder with
  // config.json. kNotFound, kCorrupt, kInvalidInput or kUnsupported, in one line with the file,
  // the field and what to do.
  static Result<std::unique_ptr<ModelSource>> Open(const std::string& path);

  [[nodiscard]] const ModelConfig& config() const { return parts_.config; }
  [[nodiscard]] const std::string& path() const { return parts_.path; }
  [[nodiscard]] const std::string& container() const { return parts_.container; }  // "GGUF v3"
  [[nodiscard]] const std::map<std::string, WeightTensor>& weights() const {
    return parts_.weights;
  }
  // REQUIRES: `name` is one that ExpectedWeights(config()) lists.
  [[nodiscard]] const WeightTensor& Weight(const std::string& name) const;

  // The Jinja template of chats; empty when the model has none.
  [[nodiscard]] const std::string& chat_template() const { return parts_.chat_template; }

  // The container's own key/value pairs in file order, fit for printing.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& metadata() const {
    return parts_.metadata;
  }

  // The first file of a GGUF source; null for a folder.
  [[nodiscard]] const GgufFile* gguf() const { return parts_.gguf ? &*parts_.gguf : nullptr; }

  // What a reader fills in.
  struct Parts {
    std::string path;
    std::string container;
    ModelConfig config;
    std::map<std::string, WeightTensor> weights;
    std::string chat_template;
    std::vector<std::pair<std::string, std::string>> metadata;
    std::optional<GgufFile> gguf;
    std::vector<MappedFile> files;  // keep the weights' bytes alive
  };
  // Checks the weights against the configuration and keeps the parts.
  static Result<std::unique_ptr<ModelSource>> Create(Parts parts);

 private:
  explicit ModelSource(Parts parts) : parts_(std::move(parts)) {}
  Parts parts_;
};

struct ExpectedWeight {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
};
// Every weight a model of this configuration consists of, in execution order.
std::vector<ExpectedWeight> ExpectedWeights(const ModelConfig& config);

// The readers behind Open.
Result<std::unique_ptr<ModelSource>> OpenGguf(const std::string& path);
Result<std::unique_ptr<ModelSource>> OpenHfFolder(const std::string& path);
// One GGUF file that is in memory already; `bytes` must outlive the source.
Result<std::unique_ptr<ModelSource>> ParseGguf(const std::string& path,
                                               std::span<const std::byte> bytes);

}  // namespace kvik::model
