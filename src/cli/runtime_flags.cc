// SPDX-License-Identifier: Apache-2.0
#include "cli/runtime_flags.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "base/byte_size.h"
#include "cli/number_range.h"
#include "kv/eviction_policy.h"

namespace kvik::cli {
namespace {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

// An option whose values are names. `set` gets the value of the name given.
template <typename T, typename Fn>
void AddChoice(CLI::App& command, const std::string& flag, const std::map<std::string, T>& values,
               const std::string& default_name, const std::string& help, const Fn& set) {
  std::string names;
  for (const auto& [name, value] : values) {
    names += (names.empty() ? "" : "|") + name;
  }
  command
      .add_option_function<std::string>(
          flag, [values, set](const std::string& name) { set(values.at(name)); }, help)
      ->type_name(names)
      ->default_str(default_name)
      ->check([values, names](const std::string& name) {
        return values.contains(name) ? std::string() : "'" + name + "' is none of " + names;
      });
}

}  // namespace

void AddArithmeticFlags(CLI::App& command, app::RuntimeOptions& options) {
  command
      .add_option("--model,-m", options.model,
                  "a .gguf file, a Hugging Face folder, or a name 'kvik pull' knows")
      ->required();
  AddChoice<std::optional<ComputeType>>(
      command, "--dtype",
      {{"auto", std::nullopt}, {"f32", ComputeType::kF32}, {"bf16", ComputeType::kBf16}}, "auto",
      "arithmetic; auto = bf16 where the CPU has it, else f32",
      [&options](std::optional<ComputeType> compute) { options.compute = compute; });
  AddChoice<kv::KvDtype>(command, "--kv-cache-dtype",
                         {{"bf16", kv::KvDtype::kBf16}, {"f32", kv::KvDtype::kF32}}, "bf16",
                         "storage of the KV cache",
                         [&options](kv::KvDtype dtype) { options.kv_dtype = dtype; });
}

void AddModelFlags(CLI::App& command, app::RuntimeOptions& options) {
  AddArithmeticFlags(command, options);
  command
      .add_option_function<std::string>(
          "--kv-memory",
          [&options](const std::string& text) {
            options.kv_memory_bytes = ParseByteSize(text).value();
          },
          "memory of the KV cache, as in 2GiB (default: what the machine can spare, up to 4 GiB)")
      ->type_name("BYTES")
      ->check([](const std::string& text) {
        const Result<uint64_t> size = ParseByteSize(text);
        return !size        ? size.error().message
               : *size == 0 ? std::string("the cache needs memory")
                            : std::string();
      });
  command
      .add_option("--num-blocks", options.num_blocks,
                  "blocks of the KV cache, instead of --kv-memory")
      ->check(CLI::Range(1, kMaxInt))
      ->excludes("--kv-memory");
  command.add_option("--block-size", options.block_size_tokens, "tokens of a KV block")
      ->check(CLI::IsMember({16, 32, 64}))
      ->capture_default_str();
  command
      .add_option("--max-model-len", options.max_model_len,
                  "prompt and answer of a request, in tokens (default: the model's context)")
      ->check(CLI::Range(1, kMaxInt));
  command.add_option("--threads", options.threads, "threads that compute (default: one per core)")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--chat-template", options.chat_template_path,
                  "a file with the chat template to use instead of the model's")
      ->check(CLI::ExistingFile);
  command.add_option("--seed", options.seed, "of requests that bring none")->capture_default_str();
}

void AddEngineFlags(CLI::App& command, app::RuntimeOptions& options) {
  sched::SchedulerOptions& scheduler = options.scheduler;
  command.add_option("--max-num-seqs", scheduler.max_num_seqs, "requests that run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--max-num-batched-tokens", scheduler.max_num_batched_tokens,
                  "tokens of a step, all requests together")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--chunk-max", scheduler.chunk_max, "prefill tokens of one request in a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--chunk-floor", scheduler.chunk_floor,
                  "prefill tokens of a step, however many decodes it has")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--chunk-decode-threshold", scheduler.chunk_decode_threshold,
                  "decodes beyond which prefill chunks shrink")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option_function<double>(
          "--tpot-slo-ms",
          [&scheduler](double ms) { scheduler.tpot_slo_us = static_cast<int64_t>(ms * 1000); },
          "beside decodes, prefill the largest chunk whose step is predicted to take no longer "
          "(default: chunk sizes as above)")
      ->type_name("MS")
      ->check(Between(0.001, 1e9));
  AddChoice<app::CostSource>(
      command, "--cost-model",
      {{"auto", app::CostSource::kAuto},
       {"measure", app::CostSource::kMeasure},
       {"default", app::CostSource::kDefault}},
      "auto",
      "what computing a token costs here, for --tpot-slo-ms and policies that weigh it: auto "
      "measures once (half a minute at most) and keeps the result; default takes typical costs",
      [&options](app::CostSource source) { options.cost_source = source; });
  kv::PolicyOptions& policy = options.policy;
  std::string policies;
  for (const std::string_view name : kv::EvictionPolicyNames()) {
    policies += (policies.empty() ? "" : ", ") + std::string(name);
  }
  for (const std::string_view name : kv::EvictionOverlayNames()) {
    policies += "; with +" + std::string(name) + " on top of any";
  }
  command.add_option("--policy", policy.name, "which cached block is evicted first: " + policies)
      ->check([](const std::string& name) {
        const auto made = kv::MakeEvictionPolicy({.name = name, .num_blocks = 1});
        return made.has_value() ? std::string() : made.error().message;
      })
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--lifespan",
          [&policy](const std::string& text) {
            policy.lifespan_s = text == "auto" ? 0 : std::stod(text);
          },
          "of policies with a reuse curve: how long a block stays likely to be used again; auto "
          "learns it")
      ->type_name("auto|SECONDS")
      ->default_str("auto")
      ->check([](const std::string& text) {
        double seconds = 0;
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, seconds);
        return text == "auto" || (error == std::errc() && rest == end && seconds > 0)
                   ? std::string()
                   : "'" + text + "' is neither auto nor a number of seconds";
      });
  command
      .add_option("--reuse-prob", policy.reuse_prob,
                  "of the reuse curve: the chance to be used again within the lifespan")
      ->check(Between(0.01, 0.99))
      ->capture_default_str();
  command
      .add_option("--slope-ratio", policy.slope_ratio,
                  "of the reuse curve: how much faster it falls after the lifespan")
      ->check(Between(1.001, 1e6))
      ->capture_default_str();
  AddChoice<kv::VictimSelection>(command, "--select",
                                 {{"auto", kv::VictimSelection::kAuto},
                                  {"scan", kv::VictimSelection::kScan},
                                  {"batch", kv::VictimSelection::kBatch}},
                                 "auto",
                                 "how victims are found: the policy's own structure, a scan for "
                                 "each, or all scores at once",
                                 [&policy](kv::VictimSelection s) { policy.selection = s; });
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", options.prefix_caching,
                   "reuse KV between requests (on)");
  AddChoice<kv::HitScope>(
      command, "--reuse", {{"gaps", kv::HitScope::kGaps}, {"prefix", kv::HitScope::kPrefix}},
      "gaps",
      "which cached blocks a prompt reuses: every run, or only the one from its beginning (then "
      "take --policy hazard-prefix)",
      [&options](kv::HitScope hits) { options.hits = hits; });
  AddChoice<kv::HashAlgorithm>(
      command, "--hash",
      {{"xxh3", kv::HashAlgorithm::kXxh3}, {"sha256_cbor", kv::HashAlgorithm::kSha256Cbor}}, "xxh3",
      "how blocks are named; sha256_cbor is vLLM's",
      [&options](kv::HashAlgorithm hash) { options.hash = hash; });
}

}  // namespace kvik::cli
