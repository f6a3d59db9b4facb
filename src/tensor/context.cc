// SPDX-License-Identifier: Apache-2.0
#include "tensor/context.h"

#include "base/check.h"
#include "tensor/kernels.h"

namespace kvik::tensor {
namespace {

constexpr Kernels kF32Kernels[] = {{&kGemmF32Scalar, &kRowScalar},
                                   {&kGemmF32Avx2, &kRowAvx2},
                                   {&kGemmF32Avx512, &kRowAvx512},
                                   {&kGemmF32Avx512, &kRowAvx512Bf16}};
constexpr Kernels kBf16Scalar = {&kGemmBf16Scalar, &kRowScalar};
constexpr Kernels kBf16Avx512Bf16 = {&kGemmBf16Avx512Bf16, &kRowAvx512Bf16};

}  // namespace

Result<Context> Context::Create(Isa isa, ComputeType compute, ThreadPool& pool) {
  const char* type = compute == ComputeType::kBf16 ? "bf16" : "f32";
  if (!IsaSupported(isa)) {
    return Err(ErrorCode::kUnsupported, "this CPU cannot run %s kernels", IsaName(isa));
  }
  if (!ComputeSupported(isa, compute)) {
    return Err(ErrorCode::kUnsupported, "%s kernels have no %s arithmetic", IsaName(isa), type);
  }
  Context context;
  context.isa_ = isa;
  context.compute_ = compute;
  context.pool_ = &pool;
  context.kernels_ = compute == ComputeType::kF32 ? &kF32Kernels[static_cast<int>(isa)]
                     : isa == Isa::kScalar        ? &kBf16Scalar
                                                  : &kBf16Avx512Bf16;
  KVIK_ASSIGN(context.scratch_,
              AlignedBuffer::Create(static_cast<size_t>(pool.num_threads()) * kScratchBytes));
  return context;
}

std::byte* Context::scratch(int thread) const {
  return scratch_.data() + static_cast<size_t>(thread) * kScratchBytes;
}

}  // namespace kvik::tensor
