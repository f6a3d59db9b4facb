// SPDX-License-Identifier: Apache-2.0
// codec/stages/basis_module.h: what the stages klt and qklt share.
#pragma once

#include <string>

#include "codec/stage.h"
#include "codec/stages/linear_map.h"

namespace kvik::codec {

// A transform to coefficients in the basis calibrated under the stage's own name, of which it keeps
// a share.
StageModule BasisModule(std::string name, std::string summary, BasisKind kind);

}  // namespace kvik::codec
