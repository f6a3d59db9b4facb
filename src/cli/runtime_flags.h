// SPDX-License-Identifier: Apache-2.0
// cli/runtime_flags.h: flags of every command that loads a model. Names are vLLM's where it has
// the same thing.
#pragma once

#include "app/runtime.h"

namespace CLI {
class App;
}  // namespace CLI

namespace kvik::cli {

// --model and what is computed with it. `options` must outlive parsing.
void AddArithmeticFlags(CLI::App& command, app::RuntimeOptions& options);
// These, and memory and threads.
void AddModelFlags(CLI::App& command, app::RuntimeOptions& options);
// Batching, eviction and the prefix cache.
void AddEngineFlags(CLI::App& command, app::RuntimeOptions& options);

}  // namespace kvik::cli
