// SPDX-License-Identifier: Apache-2.0
// codec/search_space.h: the pipelines that a search for profiles looks at: every family of
// transforms with every family of quantizers, or the reason why not.
//
// Quality depends on transforms and quantizer only, so candidates differ in these; any coder may be
// put behind them without measuring quality again.
#pragma once

#include <string>
#include <vector>

#include "codec/pipeline.h"

namespace kvik::codec {

struct Candidate {
  PipelineSpec pipeline;   // with the coder rans
  std::string transforms;  // the family's name, e.g. "hadamard"
  std::string quantizer;   // the family's name, e.g. "mixhq"
  // The transforms come from one published method and the quantizer from another.
  bool across_methods = false;
};

// A combination that makes no sense, and why.
struct Refused {
  std::string pipeline;
  std::string reason;
};

struct SearchSpace {
  std::vector<Candidate> candidates;  // no two with the same transforms and quantizer
  std::vector<Refused> refused;
};

// A pure function of the stages there are.
SearchSpace EnumerateSearchSpace();

// The coders a candidate may be completed with, as pipeline strings have them.
const std::vector<std::string>& CodersToSearch();
// The candidate with another coder. REQUIRES: one of CodersToSearch().
PipelineSpec WithCoder(const PipelineSpec& pipeline, const std::string& coder);

}  // namespace kvik::codec
