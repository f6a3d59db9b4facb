// SPDX-License-Identifier: Apache-2.0
// codec/registry.h: all stages there are.
//
// Every file codec/stages/NAME_stage.cc defines
//
//   const StageModule& NAMEStage();       // in namespace kvik::codec
//
// and is found by the build: the list of stages is made from the folder's content, so a stage is
// added by adding its file.
#pragma once

#include <string_view>
#include <vector>

#include "codec/stage.h"

namespace kvik::codec {

// By kind, then by name. The same objects on every call.
const std::vector<const StageModule*>& AllStages();
const StageModule* FindStage(StageKind kind, std::string_view name);

}  // namespace kvik::codec
