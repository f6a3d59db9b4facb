// SPDX-License-Identifier: Apache-2.0
// app/runtime.h: everything between a model's name and a running engine, wired once for all
// commands.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "app/machine_cost.h"
#include "base/clock.h"
#include "base/isa.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "kv/block_hasher.h"
#include "kv/geometry.h"
#include "model/model.h"
#include "model/model_source.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvik::app {

struct RuntimeOptions {
  std::string model;                   // as ResolveModel takes it
  std::optional<ComputeType> compute;  // none = bf16 on avx512bf16, else float32
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  int32_t block_size_tokens = 16;
  int32_t num_blocks = 0;        // 0 = as many as kv_memory_bytes hold
  uint64_t kv_memory_bytes = 0;  // 0 = what the machine can spare, see PlanMemory
  int32_t max_model_len = 0;     // 0 = the model's context
  int32_t threads = 0;           // 0 = one per core
  sched::SchedulerOptions scheduler;
  bool prefix_caching = true;
  double residency_share = 0;              // see kv::CacheOptions
  std::optional<kv::MinQuality> announce;  // likewise
  kv::HitScope hits = kv::HitScope::kGaps;
  // name, seed (0 = `seed`), selection and curve; sizes and costs are filled in.
  kv::PolicyOptions policy;
  std::string policy_state;  // that the policy starts from; empty: nothing is known
  // Where costs come from when something needs them (the policy, scheduler.tpot_slo_us).
  CostSource cost_source = CostSource::kAuto;
  uint64_t seed = 0;  // of requests without one, and of the policy
  kv::HashAlgorithm hash = kv::HashAlgorithm::kXxh3;
  bool needs_cost = false;  // Runtime::cost is measured, whatever the policy
  // With a connector: as engine::EngineOptions.
  int64_t max_answer_wait_us = engine::EngineOptions().max_answer_wait_us;
  int64_t max_promised_wait_us = engine::EngineOptions().max_promised_wait_us;
  std::string chat_template_path;  // empty = the model's
};

// What will be resident, before anything is loaded.
struct MemoryPlan {
  kv::KvGeometry geometry;
  int32_t num_blocks = 0;
  uint64_t weight_bytes = 0;  // about: as stored
  uint64_t pool_bytes = 0;
  std::optional<uint64_t> available_bytes;  // of memory now; none = unknown

  // What is left of it beside all this and some headroom; none = unknown.
  [[nodiscard]] std::optional<uint64_t> spare_bytes() const;
};

// The KV cache gets num_blocks if given, else kv_memory_bytes if given, else a quarter of what is
// available beside the weights: at most 4 GiB and at most what max_num_seqs requests of full length
// can use. kExhausted: weights and cache do not fit into what is available, by how much, and what
// to lower.
Result<MemoryPlan> PlanMemory(const RuntimeOptions& options, const model::ModelSource& source);

// The compute type that `compute` = none stands for on this ISA.
ComputeType DefaultCompute(Isa isa);

// What --threads 0 means: the cores this process may run on.
int32_t DefaultThreads();

// Loaded and ready; members in order of dependence. `source` is closed after loading.
struct Runtime {
  // kNotFound, kCorrupt, kUnsupported, kInvalidInput or kExhausted, in one line. `clock` must
  // outlive the runtime.
  static Result<std::unique_ptr<Runtime>> Create(const RuntimeOptions& options, const Clock& clock);

  std::string model_path;
  Isa isa = Isa::kScalar;
  MemoryPlan memory;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;  // none = the model has none
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<engine::ModelExecutor> executor;
  std::unique_ptr<engine::Engine> engine;
  kv::HashOptions hash;  // of the engine's blocks
  // Measured if something needs it (as RuntimeOptions::cost_source says), else typical.
  kv::CostModel cost = kv::CostModel::Default();
  int32_t step_tokens = 0;  // prefill tokens of one request in a step, at most
};

}  // namespace kvik::app
