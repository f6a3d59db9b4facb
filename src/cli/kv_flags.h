// SPDX-License-Identifier: Apache-2.0
// cli/kv_flags.h: flags of `kvik serve` that say which role it plays and where KV comes from and
// goes to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/kv_node.h"
#include "events/config.h"

namespace CLI {
class App;
}  // namespace CLI

namespace kvik::cli {

// What the flags of all roles say.
struct KvFlags {
  std::string role = "both";
  app::KvNodeOptions node;
  bool no_store = false;
  float default_quality = 1;
  std::optional<events::PublisherConfig> events;
  std::string router;  // URL, of a node
  // URLs, of a router.
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::vector<std::string> both;
};

// `flags` must outlive parsing.
void AddKvFlags(CLI::App& command, KvFlags& flags);

// After parsing: what a flag says without any use is a usage error (throws CLI's). True: the engine
// is to have a KvNode; what follows from the role, `host` and `runtime` is filled in. It has a
// store by default unless one is named, none is wanted, or its KV is not what can be stored.
bool FinishKvFlags(const CLI::App& command, const std::string& host,
                   const app::RuntimeOptions& runtime, KvFlags& flags);

}  // namespace kvik::cli
