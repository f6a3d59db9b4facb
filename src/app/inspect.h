// SPDX-License-Identifier: Apache-2.0
// app/inspect.h: kvik inspect: what is in a model and what kvik will do with it, or what is in a
// profile library or in frames.
#pragma once

#include "app/runtime.h"
#include "base/result.h"

namespace kvik::app {

struct InspectOptions {
  RuntimeOptions runtime;  // what the plan is made for
  bool json = false;
  bool tensors = false;   // lists every tensor
  bool metadata = false;  // lists the container's own key/value pairs
};

// Reads the directory of the model, not its weights. `runtime.model` may also name a profile
// library or a file of frames (app/inspect_compressed.h).
Result<int> Inspect(const InspectOptions& options);

}  // namespace kvik::app
