// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels/quant_kernels.h"

namespace kvik::codec {

const QuantKernels& QuantKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kQuantScalar;
    case Isa::kAvx2:
      return kQuantAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return kQuantAvx512;
  }
  return kQuantScalar;
}

}  // namespace kvik::codec
