// SPDX-License-Identifier: Apache-2.0
#include "base/rotary_angles_inl.h"

namespace kvik {
extern constinit const RotaryAnglesFn kRotaryAnglesAvx2 = RotaryAnglesOfPosition;
}  // namespace kvik
