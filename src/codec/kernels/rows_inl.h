// SPDX-License-Identifier: Apache-2.0
// codec/kernels/rows_inl.h: the loops of rows_kernels.h over the vector layer. Include an ISA's
// header first.
#pragma once

#include <cstring>

#include "base/simd/simd.h"
#include "codec/kernels/rows_kernels.h"

namespace kvik::codec {
namespace {

template <class V>
struct RowsOps {
  using F32 = typename V::F32;
  static constexpr size_t kLanes = simd::kLanes;

  static bool AllWithin(const Bf16* in, size_t n, float limit) {
    const F32 most = V::Set1(limit);
    const F32 one = V::Set1(1.0F);
    F32 bad = V::Zero();
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      bad = V::Select(V::Le(V::Abs(V::LoadBf16(in + i)), most), bad, one);
    }
    if (i < n) {
      Bf16 rest[kLanes] = {};
      memcpy(rest, in + i, (n - i) * sizeof(Bf16));
      bad = V::Select(V::Le(V::Abs(V::LoadBf16(rest)), most), bad, one);
    }
    return !V::Any(V::Gt(bad, V::Zero()));
  }

  static void Widen(const Bf16* in, size_t n, float* out) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      V::Store(out + i, V::LoadBf16(in + i));
    }
    if (i < n) {
      Bf16 rest[kLanes] = {};
      memcpy(rest, in + i, (n - i) * sizeof(Bf16));
      V::StoreN(out + i, V::LoadBf16(rest), n - i);
    }
  }

  static void Round(const float* in, size_t n, Bf16* out) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      V::StoreBf16(out + i, V::Load(in + i));
    }
    if (i < n) {
      Bf16 rest[kLanes];
      V::StoreBf16(rest, V::LoadN(in + i, n - i));
      memcpy(out + i, rest, (n - i) * sizeof(Bf16));
    }
  }

  static void RoundStreaming(const float* in, size_t n, Bf16* out) {
    if (reinterpret_cast<uintptr_t>(out) % 32 != 0) {
      Round(in, n, out);
      return;
    }
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      V::StreamBf16(out + i, V::Load(in + i));
    }
    Round(in + i, n - i, out + i);
  }
  static void Fence() { V::StreamFence(); }

  static constexpr RowsKernels kKernels = {AllWithin, Widen, Round, RoundStreaming, Fence};
};

}  // namespace
}  // namespace kvik::codec
