// SPDX-License-Identifier: Apache-2.0
// base/rotary_angles.h: cosines and sines of rotary positions, as the model rotates keys by them
// and compression turns them back. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "base/isa.h"

namespace kvik {

// cosines[p * n + i] = float(cos(positions[p] * frequencies[i]) * scale), sines alike; both
// [positions, n frequencies]. The same bits on every ISA and host: double arithmetic in a fixed
// order, no library function. The error is near 1e-15 plus 1e-16 of the angle, before rounding.
// REQUIRES: isa is supported; angles are below 1e8.
void RotaryAngles(Isa isa, std::span<const int32_t> positions, std::span<const double> frequencies,
                  double scale, float* cosines, float* sines);

}  // namespace kvik
