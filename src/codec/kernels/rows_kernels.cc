// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels/rows_kernels.h"

#include "base/check.h"

namespace kvik::codec {

const RowsKernels& RowsKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kRowsScalar;
    case Isa::kAvx2:
      return kRowsAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return kRowsAvx512;
  }
  KVIK_CHECK(false, "unknown ISA");
}

}  // namespace kvik::codec
