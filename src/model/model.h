// SPDX-License-Identifier: Apache-2.0
// model/model.h: a loaded model and its forward pass on the CPU.
//
// Weights are packed once at load and read-only afterwards. Scratch is allocated at load for the
// largest batch, so Forward neither allocates nor fails. Owned by one thread (the engine's), which
// also drives the thread pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/isa.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kv/geometry.h"
#include "model/batch.h"
#include "model/config.h"

namespace kvik::model {

class ModelSource;

struct ModelOptions {
  Isa isa = Isa::kScalar;                   // as SelectIsa() says
  std::optional<ComputeType> compute = {};  // none = auto: bf16 on avx512bf16, else float32
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  int32_t block_size_tokens = 16;  // 16, 32 or 64
  int32_t max_batch_rows = 512;    // StepBatch::num_rows() at most
  int32_t max_logit_rows = 64;     // StepBatch::logit_rows.size() at most
  int32_t max_context_tokens = 0;  // positions stay below; 0 = the model's own limit
};

// Sees what a forward pass computes on the way: for measuring and calibrating, not for serving.
class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  // Queries of all rows of the batch, [rows, num_heads, head_dim], after rotation and not scaled.
  // Called once a layer, in order; borrowed for the call.
  virtual void OnQueries(int32_t layer, std::span<const float> queries) = 0;
};

class Model {
 public:
  // Reads every tensor of `source` and packs it; the source is not needed afterwards. `pool` must
  // outlive the model. kCorrupt or kInvalidInput: a tensor is missing or has the wrong shape.
  // kUnsupported: the ISA lacks the compute type. kExhausted: not enough memory.
  static Result<std::unique_ptr<Model>> Load(const ModelSource& source, const ModelOptions& options,
                                             ThreadPool& pool);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const ModelConfig& config() const;
  [[nodiscard]] const ModelOptions& options() const;  // with `compute` and the context filled in
  [[nodiscard]] const kv::KvGeometry& kv_geometry() const;

  // Identity of the KV this model computes: kernel set, compute type, KV dtype, a hash of all
  // weights and of the configuration, and the numerics version. Equal tags = equal bits.
  [[nodiscard]] const std::string& numerics_tag() const;

  [[nodiscard]] size_t weight_bytes() const;   // packed weights, resident
  [[nodiscard]] size_t scratch_bytes() const;  // activations, logits

  // Computes the batch: writes K and V of every row into `kv_arena` ([num_blocks] blocks of
  // kv_geometry(), 64-byte aligned) through the segments' block tables, and returns the logits of
  // logit_rows. REQUIRES: the batch is consistent (batch.h), within the options' limits, its
  // token ids in [0, vocab_size) and its block ids within the arena. `observer` may be null; it
  // changes nothing.
  [[nodiscard]] LogitsView Forward(const StepBatch& batch, std::span<std::byte> kv_arena,
                                   ForwardObserver* observer = nullptr);

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::model
