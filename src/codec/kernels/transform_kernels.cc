// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels/transform_kernels.h"

#include "base/check.h"

namespace kvik::codec {

const TransformKernels& TransformKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kTransformScalar;
    case Isa::kAvx2:
      return kTransformAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return kTransformAvx512;
  }
  KVIK_CHECK(false, "unknown ISA");
}

}  // namespace kvik::codec
