// SPDX-License-Identifier: Apache-2.0
// app/serve_pool.h: kvik serve --role pool: KV of many servers, in memory and on disk. No model.
#pragma once

#include <string>

#include "app/http_front.h"
#include "app/kv_store.h"
#include "base/result.h"
#include "events/config.h"

namespace kvik::app {

struct PoolServeOptions {
  HttpFrontOptions http;  // of /health and /metrics
  std::string kv_listen;  // "host:port" of KV; port 0 = any free one
  std::string kv_link;    // transfer::LinkSpec; empty: the network as it is
  KvStoreOptions store;
  events::PublisherConfig events;
};

// As Serve. Prints both addresses to standard output when ready.
Result<int> ServePool(const PoolServeOptions& options);

}  // namespace kvik::app
