// SPDX-License-Identifier: Apache-2.0
#include "app/serve.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "app/serve_pool.h"
#include "app/serve_router.h"
#include "cli/commands.h"
#include "cli/kv_flags.h"
#include "cli/number_range.h"
#include "cli/runtime_flags.h"

namespace kvik::cli {
namespace {

app::RouterServeOptions RouterOptionsOf(const app::ServeOptions& options, const KvFlags& flags) {
  app::RouterServeOptions router;
  router.http = options.http;
  router.prefill = flags.prefill;
  router.decode = flags.decode;
  router.both = flags.both;
  router.fail_without_prefill = flags.node.failure_policy == connector::FailurePolicy::kFail;
  return router;
}

app::PoolServeOptions PoolOptionsOf(const app::ServeOptions& options, const KvFlags& flags) {
  app::PoolServeOptions pool;
  pool.http = options.http;
  pool.kv_listen = flags.node.listen;
  pool.kv_link = flags.node.link;
  pool.store = flags.node.store;
  pool.events = flags.events.value_or(events::PublisherConfig());
  return pool;
}

}  // namespace

void AddServe(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::ServeOptions>();
  auto kv = std::make_shared<KvFlags>();
  CLI::App* command = root.add_subcommand("serve", "an OpenAI-compatible server");
  AddModelFlags(*command, options->runtime);
  command->get_option("--model")->required(false);  // routers and pools have none
  AddEngineFlags(*command, options->runtime);
  command->add_option("--served-model-name", options->served_names,
                      "names that requests may use (default: the model's file name)");
  command->add_option("--host", options->http.host, "address to listen on")->capture_default_str();
  command->add_option("--port", options->http.port, "0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--api-key", options->http.api_key, "what clients must send as a bearer token")
      ->envname("KVIK_API_KEY");
  command
      ->add_option("--policy-state", options->policy_state_path,
                   "a file that keeps what --policy learns: the server starts from it if it is "
                   "there, refuses one of another policy or block size, and replaces it every "
                   "five minutes and when it ends")
      ->type_name("FILE");
  CLI::Option* const watch = command->add_flag_callback(
      "--kv-cache-metrics", [options] { options->watch_residency = true; },
      "histograms of how long cached blocks live, idle and wait to be used again");
  command
      ->add_option("--kv-cache-metrics-sample", options->residency_share,
                   "share of the blocks that --kv-cache-metrics watches")
      ->needs(watch)
      ->check(Between(1e-9, 1.0))
      ->capture_default_str();
  AddKvFlags(*command, *kv);
  command->callback([options, kv, command, &action] {
    const bool moves_kv = FinishKvFlags(*command, options->http.host, options->runtime, *kv);
    if (kv->role == "router") {
      action = [options, kv] { return app::ServeRouter(RouterOptionsOf(*options, *kv)); };
      return;
    }
    if (kv->role == "pool") {
      action = [options, kv] { return app::ServePool(PoolOptionsOf(*options, *kv)); };
      return;
    }
    if (options->runtime.model.empty()) {
      throw CLI::RequiredError("--model");
    }
    if (moves_kv) {
      options->kv = kv->node;
      options->default_quality = kv->default_quality;
    }
    options->router = kv->router;
    options->events = kv->events;
    action = [options] { return app::Serve(*options); };
  });
}

}  // namespace kvik::cli
