// SPDX-License-Identifier: Apache-2.0
// cli/commands.h: the commands, each as flags that fill its options.
#pragma once

#include <functional>

#include "base/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace kvik::cli {

// What the parsed command line asks for; the value is the exit code.
using Action = std::function<Result<int>()>;

// Each adds its subcommand to `root` and, when that was given, sets `action`. Both must outlive
// parsing and running.
void AddBench(CLI::App& root, Action& action);
void AddCalibrate(CLI::App& root, Action& action);
void AddEval(CLI::App& root, Action& action);
void AddGenerate(CLI::App& root, Action& action);
void AddInspect(CLI::App& root, Action& action);
void AddPull(CLI::App& root, Action& action);
void AddReplay(CLI::App& root, Action& action);
void AddSelftest(CLI::App& root, Action& action);
void AddServe(CLI::App& root, Action& action);

}  // namespace kvik::cli
