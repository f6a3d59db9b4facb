// SPDX-License-Identifier: Apache-2.0
// codec/stages/mean_rules.h: what center and selfcenter share: where the removal of a mean makes
// sense.
#pragma once

#include <optional>
#include <string>

#include "codec/pipeline.h"
#include "codec/stage.h"

namespace kvik::codec {

// StageModule::refuse of both.
std::optional<std::string> RefuseMeanRemoval(const StageArgs& args, const PipelineSpec& pipeline,
                                             kv::KvPart part, size_t index);

}  // namespace kvik::codec
