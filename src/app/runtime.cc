// SPDX-License-Identifier: Apache-2.0
#include "app/runtime.h"

#include <sched.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <thread>
#include <utility>

#include "app/memory.h"
#include "app/models.h"
#include "base/byte_size.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "eval/library_binding.h"
#include "model/tokenizer_source.h"

namespace kvik::app {
namespace {

constexpr uint64_t kDefaultPoolLimitBytes = uint64_t{4} << 30;
// Activations, logits and the rest of the process, kept free beside weights and cache.
constexpr uint64_t kHeadroomBytes = uint64_t{128} << 20;

int32_t MaxModelLen(const RuntimeOptions& options, const model::ModelConfig& config) {
  return options.max_model_len > 0 ? options.max_model_len : config.max_context_tokens;
}

Result<std::optional<text::ChatTemplate>> LoadTemplate(const RuntimeOptions& options,
                                                       const model::ModelSource& source) {
  std::string text = source.chat_template();
  std::string where = source.path() + ": chat template";
  if (!options.chat_template_path.empty()) {
    KVIK_ASSIGN(const MappedFile file, MappedFile::Open(options.chat_template_path));
    text.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    where = options.chat_template_path;
  }
  if (text.empty()) {
    return std::optional<text::ChatTemplate>();
  }
  Result<text::ChatTemplate> parsed = text::ChatTemplate::Parse(text);
  if (!parsed) {
    return parsed.error().Wrap(where);
  }
  return std::optional<text::ChatTemplate>(std::move(parsed).value());
}

}  // namespace

ComputeType DefaultCompute(Isa isa) {
  return isa == Isa::kAvx512Bf16 ? ComputeType::kBf16 : ComputeType::kF32;
}

int32_t DefaultThreads() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > 0) {
    return CPU_COUNT(&cpus);
  }
  return static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
}

std::optional<uint64_t> MemoryPlan::spare_bytes() const {
  if (!available_bytes) {
    return std::nullopt;
  }
  const uint64_t taken = weight_bytes + pool_bytes + kHeadroomBytes;
  return *available_bytes - std::min(*available_bytes, taken);
}

Result<MemoryPlan> PlanMemory(const RuntimeOptions& options, const model::ModelSource& source) {
  const model::ModelConfig& config = source.config();
  MemoryPlan plan;
  plan.geometry = {.num_layers = config.num_layers,
                   .num_kv_heads = config.num_kv_heads,
                   .head_dim = config.head_dim,
                   .block_size_tokens = options.block_size_tokens,
                   .dtype = options.kv_dtype};
  for (const auto& [name, weight] : source.weights()) {
    plan.weight_bytes += weight.data.size();
  }
  plan.available_bytes = AvailableMemoryBytes();
  const uint64_t block_bytes = plan.geometry.bytes_per_block();
  uint64_t blocks = 0;
  if (options.num_blocks > 0) {
    blocks = static_cast<uint64_t>(options.num_blocks);
  } else if (options.kv_memory_bytes > 0) {
    blocks = options.kv_memory_bytes / block_bytes;
    if (blocks == 0) {
      return Err(ErrorCode::kInvalidInput,
                 "--kv-memory %s holds no block: one of %d tokens takes %s",
                 FormatByteSize(options.kv_memory_bytes).c_str(), options.block_size_tokens,
                 FormatByteSize(block_bytes).c_str());
    }
  } else {
    const uint64_t available = plan.available_bytes.value_or(4 * kDefaultPoolLimitBytes);
    const uint64_t taken = plan.weight_bytes + kHeadroomBytes;
    const uint64_t spare = available > taken ? (available - taken) / 4 : 0;
    const auto block_size = static_cast<uint64_t>(options.block_size_tokens);
    const auto longest = static_cast<uint64_t>(MaxModelLen(options, config));
    const uint64_t useful = static_cast<uint64_t>(options.scheduler.max_num_seqs) *
                            ((longest + block_size - 1) / block_size);
    blocks = std::min(std::min(spare, kDefaultPoolLimitBytes) / block_bytes, useful);
    blocks = std::max<uint64_t>(blocks, 1);
  }
  if (blocks > static_cast<uint64_t>(std::numeric_limits<BlockId>::max())) {
    return Err(
        ErrorCode::kInvalidInput,
        "the KV cache would have %llu blocks, the most is %d; lower --kv-memory or --num-blocks",
        static_cast<unsigned long long>(blocks), std::numeric_limits<BlockId>::max());
  }
  plan.num_blocks = static_cast<int32_t>(blocks);
  plan.pool_bytes = blocks * block_bytes;
  const uint64_t need = plan.weight_bytes + plan.pool_bytes + kHeadroomBytes;
  if (plan.available_bytes && need > *plan.available_bytes) {
    return Err(ErrorCode::kExhausted,
               "not enough memory: weights %s, KV cache %s and %s of work space are more than the "
               "%s available; lower --kv-memory or --num-blocks",
               FormatByteSize(plan.weight_bytes).c_str(), FormatByteSize(plan.pool_bytes).c_str(),
               FormatByteSize(kHeadroomBytes).c_str(),
               FormatByteSize(*plan.available_bytes).c_str());
  }
  return plan;
}

Result<std::unique_ptr<Runtime>> Runtime::Create(const RuntimeOptions& options,
                                                 const Clock& clock) {
  auto runtime = std::make_unique<Runtime>();
  KVIK_ASSIGN(runtime->isa, SelectIsa());
  KVIK_ASSIGN(runtime->model_path, ResolveModel(options.model));
  KVIK_ASSIGN(const std::unique_ptr<model::ModelSource> source,
              model::ModelSource::Open(runtime->model_path));
  const model::ModelConfig& config = source->config();
  if (MaxModelLen(options, config) > config.max_context_tokens) {
    return Err(ErrorCode::kInvalidInput,
               "--max-model-len %d is more than the model's context of %d", options.max_model_len,
               config.max_context_tokens);
  }
  KVIK_ASSIGN(runtime->memory, PlanMemory(options, *source));
  KVIK_ASSIGN(runtime->tokenizer, model::LoadTokenizer(*source));
  KVIK_ASSIGN(runtime->chat_template, LoadTemplate(options, *source));
  runtime->pool =
      std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : DefaultThreads());
  model::ModelOptions model_options;
  model_options.isa = runtime->isa;
  model_options.compute = options.compute;
  model_options.kv_dtype = options.kv_dtype;
  model_options.block_size_tokens = options.block_size_tokens;
  model_options.max_batch_rows = options.scheduler.max_num_batched_tokens;
  model_options.max_logit_rows = options.scheduler.max_num_seqs;
  model_options.max_context_tokens = MaxModelLen(options, config);
  KVIK_ASSIGN(runtime->model, model::Model::Load(*source, model_options, *runtime->pool));
  KVIK_ASSIGN(runtime->executor,
              engine::ModelExecutor::Create(*runtime->model, runtime->memory.num_blocks));
  engine::EngineOptions engine_options;
  engine_options.cache.num_blocks = runtime->memory.num_blocks;
  engine_options.cache.block_size_tokens = options.block_size_tokens;
  engine_options.cache.prefix_caching = options.prefix_caching;
  // Named by the weights alone: who computed a block stands apart, in its numerics.
  runtime->hash.algorithm = options.hash;
  runtime->hash.model = eval::WeightsOf(runtime->model->numerics_tag());
  engine_options.cache.hash = runtime->hash;
  engine_options.cache.numerics = runtime->model->numerics_tag();
  engine_options.cache.hits = options.hits;
  engine_options.cache.residency_share = options.residency_share;
  engine_options.cache.announce = options.announce;
  engine_options.cache.policy = options.policy;
  engine_options.cache.policy.seed = options.seed;
  engine_options.cache.policy_state = options.policy_state;
  engine_options.scheduler = options.scheduler;
  const bool weighs = options.prefix_caching && kv::PolicyUsesCost(options.policy.name);
  if (options.scheduler.tpot_slo_us > 0 || weighs || options.needs_cost) {
    runtime->cost = MachineCostModel(*runtime->executor, clock,
                                     {.source = options.cost_source,
                                      .folder = DefaultCostFolder(),
                                      .numerics = runtime->model->numerics_tag(),
                                      .threads = runtime->pool->num_threads(),
                                      .num_blocks = runtime->memory.num_blocks,
                                      .block_size_tokens = options.block_size_tokens});
    engine_options.scheduler.cost = runtime->cost;
    engine_options.cache.policy.cost = runtime->cost;
  }
  runtime->step_tokens =
      std::min(options.scheduler.chunk_max, options.scheduler.max_num_batched_tokens);
  engine_options.max_answer_wait_us = options.max_answer_wait_us;
  engine_options.max_promised_wait_us = options.max_promised_wait_us;
  engine_options.max_model_len = model_options.max_context_tokens;
  engine_options.seed = options.seed;
  KVIK_ASSIGN(runtime->engine, engine::Engine::Create(engine_options, *runtime->executor, clock));
  return runtime;
}

}  // namespace kvik::app
