// SPDX-License-Identifier: Apache-2.0
// codec/arg_text.h: arguments of stages as text.
#pragma once

#include <string>

#include "codec/stage_args.h"

namespace kvik::codec {

// Numbers in the shortest form that reads back as the same double: 16, 0.02, 1e-05.
std::string ToText(const ArgValue& value);

}  // namespace kvik::codec
