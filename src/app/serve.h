// SPDX-License-Identifier: Apache-2.0
// app/serve.h: kvik serve: the OpenAI-compatible server.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/http_front.h"
#include "app/kv_node.h"
#include "app/runtime.h"
#include "base/result.h"
#include "events/config.h"

namespace kvik::app {

struct ServeOptions {
  RuntimeOptions runtime;
  std::vector<std::string> served_names;  // empty = the model's file name, and --model as given
  HttpFrontOptions http;
  // What the policy learns is kept here: read at the start if the file is there, replaced every few
  // minutes and at the end. Empty: forgotten at the end.
  std::string policy_state_path;
  // Histograms of how long blocks stay in the cache, of this share of them.
  bool watch_residency = false;
  double residency_share = 0.01;
  // Where KV comes from and goes to; none: nowhere. Its role is the server's.
  std::optional<KvNodeOptions> kv;
  float default_quality = 1;  // of requests that name none; below 1 needs `kv`
  std::string router;         // URL of a router to be known to; empty: none
  // Which blocks come and go is published so. None: a server that others send requests to (a role
  // that shares the work, or a router) publishes at any free ports of `host`, others nothing.
  std::optional<events::PublisherConfig> events;
};

// Serves until SIGTERM or SIGINT, then finishes the running requests; a second signal cancels them.
// The port is taken and the memory checked before the model is loaded. Prints the address to
// standard output when ready. Call it from the main thread before others are started: it blocks
// both signals in the whole process.
Result<int> Serve(const ServeOptions& options);

}  // namespace kvik::app
