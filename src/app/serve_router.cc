// SPDX-License-Identifier: Apache-2.0
#include "app/serve_router.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "app/version.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/block_holders.h"
#include "server/http.h"
#include "server/node_events.h"
#include "server/node_prober.h"
#include "server/node_table.h"
#include "server/router.h"

namespace kvik::app {
namespace {

constexpr int64_t kProbeIntervalUs = 1'000'000;
// Of pieces of prompts that the router remembers.
constexpr size_t kMaxPrefixes = size_t{1} << 18;
// Of blocks of KV that it knows to be held, about 40 bytes each.
constexpr size_t kMaxHeldBlocks = size_t{1} << 22;

}  // namespace

Result<int> ServeRouter(const RouterServeOptions& options) {
  KVIK_ASSIGN(const std::unique_ptr<HttpFront> front, HttpFront::Bind(options.http));
  const SystemClock clock;
  server::BlockHolders holders(kMaxHeldBlocks);
  server::NodeTable nodes(clock, kMaxPrefixes, &holders);
  const std::pair<const std::vector<std::string>*, server::NodeRole> named[] = {
      {&options.prefill, server::NodeRole::kPrefill},
      {&options.decode, server::NodeRole::kDecode},
      {&options.both, server::NodeRole::kBoth}};
  for (const auto& [urls, role] : named) {
    for (const std::string& url : *urls) {
      KVIK_ASSIGN(const std::string node, server::NormalUrl(url));
      if (!nodes.Join(node, role, 0)) {
        return Err(ErrorCode::kInvalidInput,
                   "%s is named twice: name each server once, with --prefill, --decode or --node",
                   node.c_str());
      }
    }
  }

  server::NodeEvents node_events(nodes, holders, clock);
  server::NodeProber prober(nodes, kProbeIntervalUs, [&node_events] { node_events.Sync(); });
  server::RouterOptions router_options;
  router_options.api_key = options.http.api_key;
  router_options.version = kVersion;
  router_options.fail_without_prefill = options.fail_without_prefill;
  router_options.id_seed = IdSeed(clock);
  router_options.follow_stats = [&node_events] { return node_events.stats(); };
  router_options.on_join = [&prober] { prober.Wake(); };
  server::Router router(std::move(router_options), nodes, clock);

  front->Serve([&router](const server::HttpRequest& request) { return router.Handle(request); });
  std::printf("kvik: routing on %s\n", front->url().c_str());
  std::fflush(stdout);
  const bool asked = front->WaitUntilAsked();
  if (asked) {
    LogInfo("finishing the running requests");
    router.Drain();
  }
  front->Finish();
  return front->Outcome(asked);
}

}  // namespace kvik::app
