// SPDX-License-Identifier: Apache-2.0
#include "app/serve.h"

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "app/engine_id.h"
#include "app/kv_events.h"
#include "app/policy_state_file.h"
#include "app/registration.h"
#include "app/version.h"
#include "base/byte_size.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/replace_file.h"
#include "base/sha256.h"
#include "engine/engine_loop.h"
#include "server/engine_client.h"
#include "server/http.h"
#include "server/openai_server.h"
#include "server/prompt.h"
#include "server/server_metrics.h"

namespace kvik::app {
namespace {

int64_t UnixSeconds() { return static_cast<int64_t>(std::time(nullptr)); }

// "SmolLM2-135M-Instruct.Q4_1" of a path to it.
std::string NameOf(const std::string& path) {
  std::filesystem::path file(path);
  if (!file.has_filename()) {
    file = file.parent_path();
  }
  return file.extension() == ".gguf" ? file.stem().string() : file.filename().string();
}

std::vector<std::string> ModelNames(const ServeOptions& options, const std::string& path) {
  if (!options.served_names.empty()) {
    return options.served_names;
  }
  std::vector<std::string> names = {NameOf(path)};
  if (options.runtime.model != names.front()) {
    names.push_back(options.runtime.model);
  }
  return names;
}

std::string Fingerprint(const std::string& numerics_tag) {
  return std::string("kvik-") + kVersion + "-" +
         ToHex(Sha256Of(std::as_bytes(std::span(numerics_tag)))).substr(0, 8);
}

constexpr size_t kShownDecisions = 256;

// "prefill", "decode"; a server that does both is none of them.
std::string RoleOf(transfer::Role role) {
  return role == transfer::Role::kServer ? "both" : transfer::RoleName(role);
}

// As ServeOptions::events says.
Result<events::PublisherConfig> EventsOf(const ServeOptions& options) {
  if (options.events) {
    if (options.events->enable_kv_cache_events && !options.runtime.prefix_caching) {
      return Err(ErrorCode::kInvalidInput,
                 "there are no KV events without a prefix cache: leave out "
                 "--no-enable-prefix-caching");
    }
    return *options.events;
  }
  const bool shares = options.kv && options.kv->role != transfer::Role::kServer;
  if (options.runtime.prefix_caching && (shares || !options.router.empty())) {
    return EventsAt(options.http.host);
  }
  return events::PublisherConfig();
}

// With the policy's state, if there is a file of it.
Result<RuntimeOptions> FilledIn(const ServeOptions& options,
                                const events::PublisherConfig& events) {
  RuntimeOptions runtime = options.runtime;
  runtime.residency_share = options.watch_residency ? options.residency_share : 0;
  if (options.kv) {
    runtime.needs_cost = true;
    // As long as the connector itself waits for a peer: one that is there answers within a round
    // trip and a step, one that is not is known to be gone after its first silence.
    runtime.max_answer_wait_us = connector::ConnectorOptions().lookup_patience_us;
    runtime.max_promised_wait_us = connector::ConnectorOptions().promised_patience_us;
  }
  if (events.enable_kv_cache_events) {
    runtime.announce = server::ToMinQuality(options.default_quality);
  }
  const std::string& path = options.policy_state_path;
  if (path.empty()) {
    return runtime;
  }
  Result<std::string> state = LoadPolicyState(path, runtime.policy.name, runtime.block_size_tokens);
  if (!state && state.error().code != ErrorCode::kNotFound) {
    return state.error();
  }
  KVIK_TRY(CheckReplaceable(path));
  if (state) {
    runtime.policy_state = *std::move(state);
    LogInfo("policy %s starts from %s", runtime.policy.name.c_str(), path.c_str());
  } else {
    LogInfo("policy %s starts without knowledge; it will be kept in %s",
            runtime.policy.name.c_str(), path.c_str());
  }
  return runtime;
}

}  // namespace

Result<int> Serve(const ServeOptions& options) {
  if (options.kv && !options.runtime.prefix_caching) {
    return Err(ErrorCode::kInvalidInput,
               "KV cannot be loaded without a prefix cache: leave out --no-enable-prefix-caching");
  }
  if (!options.router.empty()) {
    if (const Result<std::string> router = server::NormalUrl(options.router); !router) {
      return router.error().Wrap("--router");
    }
  }
  if (!options.router.empty() && server::IsWildcardHost(options.http.host)) {
    return Err(ErrorCode::kInvalidInput,
               "--router needs to know where this server is: give --host an address instead of %s",
               options.http.host.c_str());
  }
  KVIK_ASSIGN(const std::unique_ptr<HttpFront> front, HttpFront::Bind(options.http));
  const SystemClock clock;
  const std::string engine_id = NewEngineId(clock);
  KVIK_ASSIGN(const events::PublisherConfig events_config, EventsOf(options));
  KVIK_ASSIGN(const RuntimeOptions runtime_options, FilledIn(options, events_config));
  KVIK_ASSIGN(const std::unique_ptr<Runtime> runtime, Runtime::Create(runtime_options, clock));
  std::unique_ptr<KvEvents> kv_events;
  if (events_config.enable_kv_cache_events) {
    KvEvents::Options events_options;
    events_options.config = events_config;
    events_options.block_size_tokens = [size = options.runtime.block_size_tokens] { return size; };
    events_options.accepted = server::ToMinQuality(options.default_quality);
    events_options.numerics = kv::NumericsTag::FromDescription(runtime->model->numerics_tag());
    KVIK_ASSIGN(kv_events, KvEvents::Create(std::move(events_options)));
  }
  const model::ModelOptions& model_options = runtime->model->options();
  const std::vector<std::string> names = ModelNames(options, runtime->model_path);
  server::ServerMetrics metrics(
      names.front(), options.runtime.policy.name,
      {{"block_size", std::to_string(options.runtime.block_size_tokens)},
       {"num_gpu_blocks", std::to_string(runtime->memory.num_blocks)},
       {"cache_dtype", options.runtime.kv_dtype == kv::KvDtype::kBf16 ? "bfloat16" : "float32"},
       {"enable_prefix_caching", options.runtime.prefix_caching ? "True" : "False"},
       {"prefix_caching_hash_algo", kv::HashAlgorithmName(options.runtime.hash)},
       {"policy", options.runtime.policy.name}});
  std::unique_ptr<KvNode> kv_node;
  server::KvMetrics kv_metrics({{"engine", "0"}, {"model_name", names.front()}});
  if (options.kv) {
    KVIK_ASSIGN(kv_node, KvNode::Create(*options.kv, *runtime, clock,
                                        kv_events ? kv_events->store_sink() : nullptr));
  }
  PolicyStateSaver saver(options.policy_state_path, options.runtime.block_size_tokens, clock);
  engine::EngineLoopOptions loop_options;
  loop_options.on_stop = [&saver](engine::Engine& engine) { saver.Note(engine); };
  loop_options.on_step = [&metrics](const engine::StepReport& report) { metrics.OnStep(report); };
  if (kv_node != nullptr) {
    loop_options.connector = &kv_node->connector();
  }
  if (kv_events != nullptr) {
    loop_options.on_block_events = [&kv_events](std::vector<kv::BlockEvent> events) {
      kv_events->OnCache(std::move(events));
    };
  }
  engine::EngineLoop loop(std::move(runtime->engine), loop_options);
  const std::unique_ptr<server::EngineClient> client = server::MakeEngineClient(loop);
  const server::PromptBuilder prompts(*runtime->tokenizer,
                                      runtime->chat_template ? &*runtime->chat_template : nullptr,
                                      UnixSeconds);
  server::OpenAiServerOptions api;
  api.model_names = names;
  api.model_root = runtime->model_path;
  api.api_key = options.http.api_key;
  api.version = kVersion;
  api.fingerprint = Fingerprint(runtime->model->numerics_tag());
  api.unix_seconds = UnixSeconds;
  api.id_seed = IdSeed(clock);
  api.engine_id = engine_id;
  api.hash = runtime->hash;
  api.block_size_tokens = options.runtime.block_size_tokens;
  if (kv_events != nullptr) {
    api.events = kv_events->address();
  }
  if (kv_node != nullptr || kv_events != nullptr) {
    api.more_metrics = [&] {
      server::KvReadings readings = kv_node ? kv_node->Readings() : server::KvReadings();
      if (kv_events != nullptr) {
        readings.events = kv_events->stats();
      }
      return kv_metrics.Render(readings);
    };
  }
  if (kv_node != nullptr) {
    api.default_quality = options.default_quality;
    api.check_quality = [&kv_node](const kv::MinQuality& quality) {
      return kv_node->CheckQuality(quality);
    };
    api.role = RoleOf(options.kv->role);
    api.kv_address = kv_node->address();
    api.kv_decisions = [&kv_node] { return kv_node->connector().Decisions(kShownDecisions); };
    // A default that no request could keep to is a mistake of whoever starts the server.
    KVIK_TRY(kv_node->CheckQuality(server::ToMinQuality(options.default_quality)));
  }
  const std::string role = api.role;
  server::OpenAiServer openai(std::move(api), *client, prompts, metrics, clock);

  LogInfo("%s: %s kernels, %s arithmetic, %d threads; KV cache of %d blocks (%s, %d tokens)",
          names.front().c_str(), IsaName(runtime->isa),
          model_options.compute == ComputeType::kBf16 ? "bf16" : "f32",
          runtime->pool->num_threads(), runtime->memory.num_blocks,
          FormatByteSize(runtime->memory.pool_bytes).c_str(),
          runtime->memory.num_blocks * options.runtime.block_size_tokens);
  front->Serve([&openai](const server::HttpRequest& request) { return openai.Handle(request); });
  std::printf("kvik: serving %s on %s\n", names.front().c_str(), front->url().c_str());
  std::fflush(stdout);

  std::optional<Registration> registration;
  if (!options.router.empty()) {
    registration.emplace(options.router, front->url(), role, options.http.api_key);
  }
  const bool asked = front->WaitUntilAsked([&] { saver.SaveIfDue(loop); });
  if (registration) {
    registration->Leave();
  }
  if (asked) {
    LogInfo("finishing the running requests; a second signal cancels them");
    loop.Drain();
  }
  front->Finish([&] {
    LogInfo("cancelling the running requests");
    loop.Stop();
  });
  loop.Stop();
  saver.Save();
  if (kv_node != nullptr) {
    kv_node->Finish();
  }
  return front->Outcome(asked);
}

}  // namespace kvik::app
