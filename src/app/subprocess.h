// SPDX-License-Identifier: Apache-2.0
// app/subprocess.h: runs another program and waits for it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvik::app {

struct ProcessResult {
  int exit_code = 0;   // 128 + n when signal n ended it
  std::string output;  // the last 64 KiB of standard output and standard error together
};

// `argv[0]` is looked up in PATH; no shell is involved. `environment` is added to ours. `on_tick`
// is called about ten times a second while the program runs. kUnavailable: it cannot be started.
Result<ProcessResult> RunProcess(
    const std::vector<std::string>& argv,
    const std::vector<std::pair<std::string, std::string>>& environment = {},
    const std::function<void()>& on_tick = nullptr);

}  // namespace kvik::app
