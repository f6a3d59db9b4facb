// SPDX-License-Identifier: Apache-2.0
// workload/token_load.h: loads of meaningless tokens, whose lengths and shared beginnings are
// exact. Every answer is planned, too. Pure; equal options give an equal plan.
#pragma once

#include <cstdint>

#include "workload/load_plan.h"
#include "workload/long_context.h"

namespace kvik::workload {

// Independent requests.
struct RandomLoadOptions {
  int32_t requests = 100;
  int32_t input_tokens = 512;  // means
  int32_t output_tokens = 64;
  double spread = 0;  // lengths are uniform within +-spread of the mean; in [0, 1]
  // Prompts begin with one of `prefixes` beginnings of `prefix_tokens`, on top of input_tokens.
  int32_t prefix_tokens = 0;
  int32_t prefixes = 1;
  uint64_t seed = 0;
};
LoadPlan PlanRandom(const RandomLoadOptions& options);

// Requests about some of a few documents, in any order: the same text comes back at other places,
// so that only requests which begin with the same documents share.
struct SharedDocsOptions {
  int32_t requests = 100;
  int32_t documents = 8;
  int32_t documents_per_request = 3;  // different ones; <= documents
  int32_t document_tokens = 512;
  int32_t question_tokens = 32;
  int32_t output_tokens = 64;
  uint64_t seed = 0;
};
LoadPlan PlanSharedDocs(const SharedDocsOptions& options);

// Sessions of long_context.h: starts and pauses in it are the plan's.
LoadPlan PlanLongContext(const LongContextOptions& options);

}  // namespace kvik::workload
