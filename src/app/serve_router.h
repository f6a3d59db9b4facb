// SPDX-License-Identifier: Apache-2.0
// app/serve_router.h: kvik serve --role router: one address for many servers.
#pragma once

#include <string>
#include <vector>

#include "app/http_front.h"
#include "base/result.h"

namespace kvik::app {

struct RouterServeOptions {
  HttpFrontOptions http;
  // URLs of nodes; more may join.
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::vector<std::string> both;
  bool fail_without_prefill = false;  // --kv-failure-policy fail
};

// As Serve. No model is loaded.
Result<int> ServeRouter(const RouterServeOptions& options);

}  // namespace kvik::app
