// SPDX-License-Identifier: Apache-2.0
// app/serve_router.h: kvik serve --role router: one address for many servers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvik::app {

struct RouterServeOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0 = any free one
  std::string api_key;
  uint64_t max_body_bytes = uint64_t{32} << 20;
  // URLs of nodes; more may join.
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::vector<std::string> both;
  bool fail_without_prefill = false;  // --kv-failure-policy fail
};

// As Serve. No model is loaded.
Result<int> ServeRouter(const RouterServeOptions& options);

}  // namespace kvik::app
