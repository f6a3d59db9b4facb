// SPDX-License-Identifier: Apache-2.0
// codec/stages/chain_rules.h: what transforms ask of the chain before them when they refuse a
// place.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "codec/pipeline.h"
#include "codec/stage.h"

namespace kvik::codec {

// The canonical text of the first transform before `index` that has one of the names; "" when none
// has.
std::string FirstBefore(const PipelineSpec& pipeline, kv::KvPart part, size_t index,
                        std::initializer_list<std::string_view> names);

}  // namespace kvik::codec
