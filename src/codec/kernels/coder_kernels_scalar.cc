// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels/coder_kernels.h"
#include "codec/kernels/pack_inl.h"
#include "codec/kernels/rans12_inl.h"
#include "codec/kernels/rans8_inl.h"

namespace kvik::codec {
namespace {

struct ScalarOps {
  static constexpr bool kVectors = false;
  static constexpr bool kVectors12 = false;
};

void Histogram(const uint8_t* symbols, size_t n, int /*alphabet*/, uint32_t* counts) {
  PackKernel<ScalarOps>::HistogramBytes(symbols, n, counts);
}

}  // namespace

const CoderKernels kCoderKernelsScalar = {
    Isa::kScalar,
    PackKernel<ScalarOps>::Pack,
    PackKernel<ScalarOps>::Unpack,
    Histogram,
    PackKernel<ScalarOps>::Largest,
    Rans8Kernel<ScalarOps>::Encode,
    Rans12Kernel<ScalarOps>::Encode,
    Rans8Kernel<ScalarOps>::Decode,
    Rans12Kernel<ScalarOps>::Decode,
};

}  // namespace kvik::codec
