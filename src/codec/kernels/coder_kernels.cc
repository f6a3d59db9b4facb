// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {

const CoderKernels& CoderKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kCoderKernelsScalar;
    case Isa::kAvx2:
      return kCoderKernelsAvx2;
    case Isa::kAvx512:
      return kCoderKernelsAvx512;
    case Isa::kAvx512Bf16:
      return VbmiSupported() ? kCoderKernelsAvx512Vbmi : kCoderKernelsAvx512;
  }
  return kCoderKernelsScalar;
}

}  // namespace kvik::codec
