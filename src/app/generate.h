// SPDX-License-Identifier: Apache-2.0
// app/generate.h: kvik generate: one prompt to text.
#pragma once

#include <string>

#include "app/runtime.h"
#include "base/result.h"
#include "server/openai_request.h"

namespace kvik::app {

struct GenerateOptions {
  RuntimeOptions runtime;
  std::string prompt;  // "-" = all of standard input
  std::string system;  // of a chat; empty = none
  bool raw = false;    // the prompt as it is, without a chat template
  bool json = false;   // one JSON object instead of the text
  bool stats = true;   // on standard error
  server::GenerationParams params;
};

// Writes the text to standard output as it comes. kInvalidInput: the prompt does not fit.
Result<int> Generate(const GenerateOptions& options);

}  // namespace kvik::app
