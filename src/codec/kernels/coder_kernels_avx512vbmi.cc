// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels/coder_avx512.h"

namespace kvik::codec {

const CoderKernels kCoderKernelsAvx512Vbmi = {
    Isa::kAvx512Bf16,
    PackKernel<Avx512Ops>::Pack,
    PackKernel<Avx512Ops>::Unpack,
    PackKernel<Avx512Ops>::Histogram,
    PackKernel<Avx512Ops>::Largest,
    Rans8Kernel<Avx512Ops>::Encode,
    Rans12Kernel<Avx512Ops>::Encode,
    Rans8Kernel<Avx512Ops>::Decode,
    Rans12Kernel<Avx512Ops>::Decode,
};

}  // namespace kvik::codec
