// SPDX-License-Identifier: Apache-2.0
#include "base/rotary_angles.h"

#include "base/check.h"
#include "base/rotary_angles_inl.h"

namespace kvik {
namespace {

RotaryAnglesFn FnOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kRotaryAnglesScalar;
    case Isa::kAvx2:
      return kRotaryAnglesAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return kRotaryAnglesAvx512;
  }
  KVIK_CHECK(false, "unknown ISA");
}

}  // namespace

void RotaryAngles(Isa isa, std::span<const int32_t> positions, std::span<const double> frequencies,
                  double scale, float* cosines, float* sines) {
  const RotaryAnglesFn fn = FnOf(isa);
  const size_t n = frequencies.size();
  for (size_t p = 0; p < positions.size(); ++p) {
    fn(positions[p], frequencies.data(), n, scale, cosines + p * n, sines + p * n);
  }
}

}  // namespace kvik
