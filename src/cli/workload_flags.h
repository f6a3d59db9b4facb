// SPDX-License-Identifier: Apache-2.0
// cli/workload_flags.h: flags of every command that makes up a load.
#pragma once

#include <string_view>

#include "app/bench_plan.h"

namespace CLI {
class App;
}  // namespace CLI

namespace kvik::cli {

// --workload and its content, lengths and seed. `load` must outlive parsing.
void AddWorkloadFlags(CLI::App& command, app::WorkloadOptions& load);
// A flag that would do nothing is a mistake: throws CLI::ValidationError. REQUIRES: the command
// has the flags above and was parsed.
void RefuseUnusedFlags(const CLI::App& command, std::string_view workload);

}  // namespace kvik::cli
