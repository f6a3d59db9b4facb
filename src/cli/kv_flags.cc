// SPDX-License-Identifier: Apache-2.0
#include "cli/kv_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "base/byte_size.h"
#include "base/host_port.h"
#include "cli/number_range.h"
#include "transfer/link_spec.h"
#include "transfer/tcp.h"

namespace kvik::cli {
namespace {

constexpr const char* kPoolListen = "127.0.0.1:7711";

using Names = std::vector<std::string_view>;
// Of the roles that have no engine: every flag that they use.
const Names kRouterFlags = {"--role",    "--host",   "--port", "--api-key",
                            "--prefill", "--decode", "--node", "--kv-failure-policy"};
// (--api-key may come from the environment, where it is meant for others; a pool guards nothing.)
const Names kPoolFlags = {"--role",
                          "--host",
                          "--port",
                          "--api-key",
                          "--kv-listen",
                          "--kv-link",
                          "--kv-store-memory",
                          "--kv-store-disk",
                          "--kv-store-encodings",
                          "--kv-events-config"};
// Only theirs.
const Names kRouterOnlyFlags = {"--prefill", "--decode", "--node"};
// What names a store: instead of the one that servers have by default.
const Names kStoreFlags = {"--pool", "--kv-store-memory", "--kv-store-disk"};
// What needs KV to come from or go to somewhere.
const Names kHowFlags = {"--kv-profile",       "--profiles",          "--default-quality",
                         "--default-workload", "--kv-failure-policy", "--kv-link"};

bool Has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool Given(const CLI::App& command, std::string_view name) {
  return command.get_option(std::string(name))->count() > 0;
}

// What is wrong with an address that KV is asked for at; empty: nothing.
std::string CheckAddress(const std::string& address, bool any_port) {
  const Result<transfer::HostPort> parsed = transfer::ParseAddress(address);
  const std::string_view port = parsed ? std::string_view(parsed->port) : std::string_view();
  if (!parsed || (!any_port && port.find_first_not_of('0') == port.npos)) {
    return "'" + address + "' is not an address: give host:port, as in " +
           (any_port ? "" : "kvik://") + "10.0.0.7:7711, or [::1]:7711 for IPv6";
  }
  return {};
}

// What `named` has twice; empty: nothing.
std::string NamedTwice(Names named) {
  std::sort(named.begin(), named.end());
  const auto twice = std::adjacent_find(named.begin(), named.end());
  return twice == named.end() ? std::string() : std::string(*twice);
}

[[noreturn]] void Useless(const std::string& flag, const std::string& why) {
  throw CLI::ValidationError(flag, why);
}

}  // namespace

void AddKvFlags(CLI::App& command, KvFlags& flags) {
  app::KvNodeOptions& node = flags.node;
  command
      .add_option("--role", flags.role,
                  "both computes prompts and answers; prefill and decode share them between two "
                  "servers; router is one address for many servers; pool keeps KV for others")
      ->check(CLI::IsMember({"both", "prefill", "decode", "router", "pool"}))
      ->capture_default_str();
  command
      .add_option_function<std::vector<std::string>>(
          "--pool",
          [&node](const std::vector<std::string>& urls) {
            for (const std::string& url : urls) {
              (url.starts_with("kvik://") ? node.pools : node.store.redis).push_back(url);
            }
          },
          "a pool of KV that is asked for every request and given what is new: kvik://host:port of "
          "--role pool, or redis://host:port[,host:port...] of a Redis server or cluster; may be "
          "repeated")
      ->type_name("URL")
      ->check([](const std::string& url) {
        if (url.starts_with("kvik://")) {
          return CheckAddress(url, /*any_port=*/false);
        }
        for (const char* scheme : {"redis://", "unix://"}) {
          if (url.starts_with(scheme)) {
            return std::string();
          }
        }
        return "'" + url + "' begins neither with kvik:// nor with redis://";
      });
  command
      .add_option_function<std::string>(
          "--kv-store-memory",
          [&node](const std::string& text) {
            node.store.memory_bytes = ParseByteSize(text).value();
          },
          "keep compressed KV in so much memory, and nowhere else unless that is named too "
          "(without "
          "this, --kv-store-disk and --pool: some of the spare memory, at most 1 GiB, and a folder "
          "in "
          "the cache folder, at most 16 GiB and a tenth of what is free; pool: 4 GiB of memory)")
      ->type_name("BYTES")
      ->check([](const std::string& text) {
        const Result<uint64_t> size = ParseByteSize(text);
        return !size        ? size.error().message
               : *size == 0 ? std::string("must not be 0; --no-kv-store keeps none")
                            : "";
      });
  command
      .add_option_function<std::string>(
          "--kv-store-disk",
          [&node](const std::string& text) {
            KVIK_CHECK(app::ParseDiskFlag(text, node.store).has_value());
          },
          "keep it in this folder, 16 GiB without a size, where it is found again after a restart")
      ->type_name("PATH[:BYTES]")
      ->check([](const std::string& text) {
        app::KvStoreOptions options;
        const Result<void> parsed = app::ParseDiskFlag(text, options);
        return parsed ? std::string() : parsed.error().message;
      });
  command
      .add_option("--kv-store-encodings", node.store.max_encodings,
                  "how many encodings of the same KV are kept; a further one replaces the one that "
                  "was used longest ago")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_flag("--no-kv-store", flags.no_store,
                "keep no KV beside the engine's own cache: what is evicted is computed again, and "
                "nothing is written to disk")
      ->excludes("--kv-store-memory")
      ->excludes("--kv-store-disk");
  command
      .add_option("--kv-profile", node.profile,
                  "how KV is compressed to be stored or moved: adaptive chooses by bandwidth, "
                  "latency and quality; raw; or a profile's name")
      ->capture_default_str();
  command
      .add_option("--profiles", node.profiles_path,
                  "a profile library of this model (kvik calibrate), as a folder or its JSON file")
      ->check(CLI::ExistingPath);
  command
      .add_option("--default-quality", flags.default_quality,
                  "the least quality of KV for requests that name none; 1 is exact, 0 takes any")
      ->check(Between(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--default-workload", node.default_workload,
                     "the kind of work of requests that name none");
  command
      .add_option_function<std::string>(
          "--kv-failure-policy",
          [&node](const std::string& name) {
            node.failure_policy = name == "fail" ? connector::FailurePolicy::kFail
                                                 : connector::FailurePolicy::kRecompute;
          },
          "what becomes of a request whose KV was promised and does not come")
      ->type_name("recompute|fail")
      ->default_str("recompute")
      ->check(CLI::IsMember({"recompute", "fail"}));
  command
      .add_option(
          "--kv-listen", node.listen,
          "where others come for KV (prefill and decode: any free port; pool: 127.0.0.1:7711)")
      ->type_name("HOST:PORT")
      ->check([](const std::string& address) { return CheckAddress(address, /*any_port=*/true); });
  command
      .add_option("--kv-link", node.link,
                  "move KV as if over another network: rate=1Gbit,delay=2ms,jitter=,loss=,resets=, "
                  "each VALUE or VALUE@TIME/VALUE@TIME")
      ->type_name("SPEC")
      ->check([](const std::string& text) {
        const Result<transfer::LinkSpec> parsed = transfer::LinkSpec::Parse(text);
        return parsed ? std::string() : parsed.error().message;
      });
  command
      .add_option_function<std::string>(
          "--kv-events-config",
          [&flags](const std::string& json) {
            flags.events = events::ParsePublisherConfig(json).value();
          },
          "publish which blocks of KV come and go, as vLLM does: a JSON object with "
          "enable_kv_cache_events, endpoint, replay_endpoint, topic, buffer_steps, hwm, "
          "max_queue_size, publisher, use_int_block_hashes (prefill, decode, and with --router: "
          "published at any free ports)")
      ->type_name("JSON")
      ->check([](const std::string& json) {
        const Result<events::PublisherConfig> parsed = events::ParsePublisherConfig(json);
        return parsed ? std::string() : parsed.error().message;
      });
  command.add_option("--router", flags.router, "be known to this router for as long as this runs")
      ->type_name("URL");
  command.add_option("--prefill", flags.prefill, "of a router: servers that compute prompts")
      ->type_name("URL");
  command.add_option("--decode", flags.decode, "of a router: servers that compute answers")
      ->type_name("URL");
  command.add_option("--node", flags.both, "of a router: servers that do both")->type_name("URL");
}

bool FinishKvFlags(const CLI::App& command, const std::string& host,
                   const app::RuntimeOptions& runtime, KvFlags& flags) {
  const bool without_engine = flags.role == "router" || flags.role == "pool";
  const Names& used = flags.role == "router" ? kRouterFlags : kPoolFlags;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool of_use = without_engine ? Has(used, name) : !Has(kRouterOnlyFlags, name);
    if (option->count() > 0 && !of_use) {
      Useless(name, "is of no use with --role " + flags.role);
    }
  }
  app::KvNodeOptions& node = flags.node;
  if (flags.role == "pool") {
    if (node.listen.empty()) {
      node.listen = kPoolListen;
    }
    if (!node.store.any()) {
      node.store.memory_bytes = uint64_t{4} << 30;
    }
    return false;
  }
  if (flags.role == "router") {
    return false;
  }
  node.role = flags.role == "prefill"  ? transfer::Role::kPrefill
              : flags.role == "decode" ? transfer::Role::kDecode
                                       : transfer::Role::kServer;
  if (node.role != transfer::Role::kServer && node.listen.empty()) {
    node.listen = JoinHostPort(host, "0");
  }
  const bool named = std::any_of(kStoreFlags.begin(), kStoreFlags.end(),
                                 [&](std::string_view name) { return Given(command, name); });
  // Only KV that another process may use can be stored.
  node.store.by_default =
      !named && !flags.no_store && runtime.prefix_caching && runtime.kv_dtype == kv::KvDtype::kBf16;
  const bool moves = named || node.store.by_default || !node.listen.empty();
  for (const std::string_view name : kHowFlags) {
    if (!moves && Given(command, name)) {
      Useless(std::string(name),
              "needs KV to be stored or moved: leave out --no-kv-store, "
              "--no-enable-prefix-caching and --kv-cache-dtype f32");
    }
  }
  for (const std::vector<std::string>& pools : {node.pools, node.store.redis}) {
    if (const std::string twice = NamedTwice({pools.begin(), pools.end()}); !twice.empty()) {
      Useless("--pool", "'" + twice + "' is given twice");
    }
  }
  if (Given(command, "--kv-store-encodings") && !node.store.any()) {
    Useless("--kv-store-encodings", "needs a store of this process: leave out --no-kv-store");
  }
  return moves;
}

}  // namespace kvik::cli
