// SPDX-License-Identifier: Apache-2.0
#include "app/replay.h"

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/number_range.h"
#include "cli/workload_flags.h"
#include "workload/cost_presets.h"
#include "workload/offline_policies.h"

namespace kvik::cli {
namespace {

template <typename... Lists>
std::string Join(const Lists&... lists) {
  std::string text;
  const auto add = [&text](const auto& list) {
    for (const std::string_view name : list) {
      text += (text.empty() ? "" : ", ") + std::string(name);
    }
  };
  (add(lists), ...);
  return text;
}

}  // namespace

void AddReplay(CLI::App& root, Action& action) {
  auto options = std::make_shared<app::ReplayCommand>();
  CLI::App* command =
      root.add_subcommand("replay", "a trace through the cache: what each eviction policy saves");
  AddWorkloadFlags(*command, options->load);
  command->add_option("--name", options->name, "of the trace in results");
  command->add_option("--qps", options->qps, "of the workload: requests a second")
      ->check(Between(1e-6, 1e6))
      ->capture_default_str();
  command
      ->add_option("--block-size", options->block_size_tokens,
                   "of the workload: tokens; a trace has its own")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command
      ->add_option("--policies", options->policies,
                   "of " + Join(kv::EvictionPolicyNames(), workload::OfflinePolicyNames()) +
                       "; lru+continuum: with an overlay, of " + Join(kv::EvictionOverlayNames()) +
                       "; asym@scan, asym@batch: another --select for one; asym@p99: its lifespan "
                       "from the whole trace (offline)")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--cache-blocks", options->cache_blocks, "sizes of the cache to try")
      ->delimiter(',')
      ->check(CLI::Range(1, 100000000))
      ->required();
  command
      ->add_option("--cost", options->cost,
                   "of prefill: " + Join(workload::CostPresetNames()) +
                       ", machine (the last model measured here; machine:TEXT: with TEXT in its "
                       "key), or A,C in microseconds a token and a token x position")
      ->capture_default_str();
  command
      ->add_option("--session-sample", options->session_sample, "keep one in so many conversations")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command
      ->add_option("--select", options->policy.selection,
                   "how victims are found: auto, scan (a pass for each), batch (a pass for all)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, kv::VictimSelection>{{"auto", kv::VictimSelection::kAuto},
                                                     {"scan", kv::VictimSelection::kScan},
                                                     {"batch", kv::VictimSelection::kBatch}}));
  command
      ->add_option("--lifespan", options->policy.lifespan_s,
                   "seconds after which a block is given up; 0: learned")
      ->check(Between(0.0, 1e9))
      ->capture_default_str();
  command->add_option("--reuse-prob", options->policy.reuse_prob, "at the lifespan")
      ->check(Between(1e-6, 0.999999))
      ->capture_default_str();
  command->add_option("--slope-ratio", options->policy.slope_ratio, "of the curve beyond it")
      ->check(Between(1.000001, 1e6))
      ->capture_default_str();
  command->add_option("--seeds", options->seeds, "workloads to take the mean of, from --seed on")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option("--policy-state", options->policy_state_path,
                   "start from what a policy learned before, here or under kvik serve")
      ->type_name("FILE");
  command
      ->add_option("--save-state", options->save_state_path,
                   "keep what the policy learned: of one policy and one size of the cache")
      ->type_name("FILE");
  command->add_option("--reference", options->reference_path,
                      "CSV with trace, cache_blocks, policy, miss_cost_pct to compare with");
  command
      ->add_option("--tier-bandwidth", options->tier.bytes_per_s,
                   "bytes a second from a slower memory, where everything is that was cached once: "
                   "policies and miss cost weigh fetching against computing")
      ->check(Between(1.0, 1e15));
  command->add_option("--tier-queue-us", options->tier.queue_us, "before a fetch begins")
      ->check(Between(0.0, 1e9))
      ->capture_default_str();
  command
      ->add_option("--tier-compression", options->tier.compression,
                   "bytes of the cache for each that is sent")
      ->check(Between(1e-3, 1e3))
      ->capture_default_str();
  command
      ->add_option("--tier-bytes-per-token", options->tier.bytes_per_token,
                   "of the cache (default: Llama-3.1-8B in 16 bits)")
      ->check(Between(1.0, 1e9))
      ->capture_default_str();
  command->add_option("--tier-decode-us", options->tier.decode_us, "a token, after the transfer")
      ->check(Between(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--hints", options->hint_accuracy,
                   "requests say whether their session goes on, and are right this often")
      ->check(Between(0.0, 1.0));
  command->add_flag("--queue", options->queue,
                    "requests wait for each other's prefill; adds the time to the first token");
  command->add_flag("--stats", options->stats,
                    "also reuse gaps of the trace, and where hits lie and what requests find");
  command->add_option("--csv", options->csv_path, "write the plots' numbers to this file");
  command->add_option("--svg", options->svg_path, "draw the plots into this file");
  CLI::Option* sweep = command->add_option(
      "--sweep", options->sweeps,
      "instead of one table: lifespan=0.5,1,2 (times the P99 of the trace's gaps), "
      "reuse-prob=0.3,0.7 or slope-ratio=10,40; may be repeated, one at a time");
  // Values hold commas.
  sweep->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* control_plane = command->add_flag(
      "--control-plane", options->control_plane,
      "no trace: what the cache's own work costs --requests requests (40) of 35,000 tokens");
  command
      ->add_flag("--cumulative", options->cumulative,
                 "of --control-plane: seconds from an empty cache on; --requests is 2400")
      ->needs(control_plane);
  command->add_flag("--json", options->json, "one JSON object a line instead of a table");
  command->add_flag_callback(
      "--quiet", [options] { options->progress = Progress::Mode::kQuiet; }, "no progress");
  command->callback([options, command, &action] {
    if (!options->load.name.empty()) {
      RefuseUnusedFlags(*command, options->load.name);
    }
    action = [options] { return app::RunReplay(*options); };
  });
}

}  // namespace kvik::cli
