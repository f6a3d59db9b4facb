// SPDX-License-Identifier: Apache-2.0
// codec/kernels/transform_inl.h: transform_kernels.h over the vector layer. Include an ISA's header
// first.
#pragma once

#include "base/simd/simd.h"
#include "codec/kernels/transform_kernels.h"

namespace kvik::codec {
namespace {  // see base/simd/simd.h

// Lane i of row k is -1 where bit k of i is set: what a lane is multiplied by when it meets the
// lane 2^k away.
alignas(64) inline constexpr float kButterflySign[4][16] = {
    {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
    {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
    {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
    {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
};

template <class V>
struct TransformOps {
  using F32 = typename V::F32;
  using I32 = typename V::I32;
  static constexpr size_t kLanes = simd::kLanes;
  static constexpr bool kManyRegisters = V::kNumRegisters >= 32;

  // fn(column, count) for columns [0, n): whole groups of four vectors get count 4 * kLanes, the
  // rest comes by vectors, the last of which may have fewer lanes. With columns outside and rows
  // inside, what is common to all rows stays in registers.
  template <class Fn>
  KVIK_SIMD_INLINE void ForColumns(size_t n, const Fn& fn) {
    size_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
      fn(c, 4 * kLanes);
    }
    for (; c + kLanes <= n; c += kLanes) {
      fn(c, kLanes);
    }
    if (c < n) {
      fn(c, n - c);
    }
  }

  static void AddRow(const float* rows, size_t num_rows, size_t n, const float* addend,
                     float* out) {
    // Rows that move towards the end are written last first, so that none is overwritten unread.
    const bool backwards = out > rows;
    ForColumns(
        n, [=](size_t c, size_t count) __attribute__((always_inline)) {
          F32 a[4];
          if (count == 4 * kLanes) {
            for (size_t v = 0; v < 4; ++v) {
              a[v] = V::Load(addend + c + v * kLanes);
            }
          } else {
            a[0] = V::LoadN(addend + c, count);
          }
          for (size_t i = 0; i < num_rows; ++i) {
            const size_t at = (backwards ? num_rows - 1 - i : i) * n + c;
            if (count == 4 * kLanes) {
              for (size_t v = 0; v < 4; ++v) {
                V::Store(out + at + v * kLanes, V::Add(V::Load(rows + at + v * kLanes), a[v]));
              }
            } else if (count == kLanes) {
              V::Store(out + at, V::Add(V::Load(rows + at), a[0]));
            } else {
              V::StoreN(out + at, V::Add(V::LoadN(rows + at, count), a[0]), count);
            }
          }
        });
  }

  static void ScaleRows(float* rows, size_t num_rows, size_t n, const float* factor) {
    ForColumns(
        n, [=](size_t c, size_t count) __attribute__((always_inline)) {
          F32 f[4];
          if (count == 4 * kLanes) {
            for (size_t v = 0; v < 4; ++v) {
              f[v] = V::Load(factor + c + v * kLanes);
            }
          } else {
            f[0] = V::LoadN(factor + c, count);
          }
          for (float* row = rows + c; row < rows + num_rows * n; row += n) {
            if (count == 4 * kLanes) {
              for (size_t v = 0; v < 4; ++v) {
                V::Store(row + v * kLanes, V::Mul(V::Load(row + v * kLanes), f[v]));
              }
            } else if (count == kLanes) {
              V::Store(row, V::Mul(V::Load(row), f[0]));
            } else {
              V::StoreN(row, V::Mul(V::LoadN(row, count), f[0]), count);
            }
          }
        });
  }

  static void SumRows(const float* rows, size_t num_rows, size_t n, float* sums) {
    ForColumns(
        n, [=](size_t c, size_t count) __attribute__((always_inline)) {
          F32 sum[4] = {V::Zero(), V::Zero(), V::Zero(), V::Zero()};
          for (const float* row = rows + c; row < rows + num_rows * n; row += n) {
            if (count == 4 * kLanes) {
              for (size_t v = 0; v < 4; ++v) {
                sum[v] = V::Add(sum[v], V::Load(row + v * kLanes));
              }
            } else {
              sum[0] = V::Add(sum[0], V::LoadN(row, count));
            }
          }
          if (count == 4 * kLanes) {
            for (size_t v = 0; v < 4; ++v) {
              V::Store(sums + c + v * kLanes, sum[v]);
            }
          } else {
            V::StoreN(sums + c, sum[0], count);
          }
        });
  }

  template <bool kBack>
  KVIK_SIMD_INLINE void Turn(F32& a, F32& b, F32 cos, F32 sin) {
    const F32 a_cos = V::Mul(a, cos);
    const F32 a_sin = V::Mul(a, sin);
    a = kBack ? V::Fma(b, sin, a_cos) : V::Fnma(b, sin, a_cos);
    b = kBack ? V::Fma(b, cos, V::Neg(a_sin)) : V::Fma(b, cos, a_sin);
  }

  template <bool kBack>
  static void Rotate(float* rows, size_t num_rows, size_t half, const float* cos,
                     const float* sin) {
    for (size_t r = 0; r < num_rows; ++r, rows += 2 * half, cos += half, sin += half) {
      float* const low = rows;
      float* const high = rows + half;
      size_t i = 0;
      for (; i + kLanes <= half; i += kLanes) {
        F32 a = V::Load(low + i);
        F32 b = V::Load(high + i);
        Turn<kBack>(a, b, V::Load(cos + i), V::Load(sin + i));
        V::Store(low + i, a);
        V::Store(high + i, b);
      }
      if (i < half) {
        const size_t rest = half - i;
        F32 a = V::LoadN(low + i, rest);
        F32 b = V::LoadN(high + i, rest);
        Turn<kBack>(a, b, V::LoadN(cos + i, rest), V::LoadN(sin + i, rest));
        V::StoreN(low + i, a, rest);
        V::StoreN(high + i, b, rest);
      }
    }
  }

  // One stage within a vector: (x, y) becomes (x + y, x - y). The products are exact.
  template <int kBit>
  KVIK_SIMD_INLINE F32 Butterfly(F32 v) {
    return V::Fma(v, V::Load(kButterflySign[kBit]), V::template SwapLanes<1 << kBit>(v));
  }

  // The transform of kCount vectors in registers.
  template <int kCount>
  KVIK_SIMD_INLINE void HadamardInRegisters(F32* v) {
    KVIK_SIMD_UNROLL(16)
    for (int i = 0; i < kCount; ++i) {
      v[i] = Butterfly<3>(Butterfly<2>(Butterfly<1>(Butterfly<0>(v[i]))));
    }
    KVIK_SIMD_UNROLL(4)
    for (int step = 1; step < kCount; step *= 2) {
      KVIK_SIMD_UNROLL(8)
      for (int pair = 0; pair < kCount / 2; ++pair) {
        const int i = pair / step * 2 * step + pair % step;
        const F32 x = v[i];
        const F32 y = v[i + step];
        v[i] = V::Add(x, y);
        v[i + step] = V::Sub(x, y);
      }
    }
  }

  template <int kCount, bool kScaleFirst, bool kScaleLast>
  KVIK_SIMD_INLINE void HadamardBlock(float* x, const float* factor) {
    F32 v[kCount];
    KVIK_SIMD_UNROLL(16)
    for (int i = 0; i < kCount; ++i) {
      v[i] = V::Load(x + i * kLanes);
      if constexpr (kScaleFirst) {
        v[i] = V::Mul(v[i], V::Load(factor + i * kLanes));
      }
    }
    HadamardInRegisters<kCount>(v);
    KVIK_SIMD_UNROLL(16)
    for (int i = 0; i < kCount; ++i) {
      V::Store(x + i * kLanes, kScaleLast ? V::Mul(v[i], V::Load(factor + i * kLanes)) : v[i]);
    }
  }

  // n = kCount * kLanes.
  template <int kCount>
  static void HadamardRows(float* rows, size_t num_rows, size_t stride, const float* factor,
                           bool scale_first) {
    for (size_t r = 0; r < num_rows; ++r, rows += stride) {
      if (scale_first) {
        HadamardBlock<kCount, true, false>(rows, factor);
      } else {
        HadamardBlock<kCount, false, true>(rows, factor);
      }
    }
  }

  // Blocks in registers, then the stages between blocks in the first-level cache.
  template <int kCount>
  static void HadamardLongRows(float* rows, size_t num_rows, size_t stride, size_t n,
                               const float* factor, bool scale_first) {
    constexpr size_t kBlock = kCount * kLanes;
    for (size_t r = 0; r < num_rows; ++r, rows += stride) {
      for (size_t c = 0; c < n; c += kBlock) {
        if (scale_first) {
          HadamardBlock<kCount, true, false>(rows + c, factor + c);
        } else {
          HadamardBlock<kCount, false, false>(rows + c, factor + c);
        }
      }
      for (size_t step = kBlock; step < n; step *= 2) {
        const bool scale = !scale_first && 2 * step == n;
        for (size_t base = 0; base < n; base += 2 * step) {
          for (size_t c = base; c < base + step; c += kLanes) {
            const F32 x = V::Load(rows + c);
            const F32 y = V::Load(rows + c + step);
            F32 sum = V::Add(x, y);
            F32 difference = V::Sub(x, y);
            if (scale) {
              sum = V::Mul(sum, V::Load(factor + c));
              difference = V::Mul(difference, V::Load(factor + c + step));
            }
            V::Store(rows + c, sum);
            V::Store(rows + c + step, difference);
          }
        }
      }
    }
  }

  // n < kLanes.
  static void HadamardShortRows(float* rows, size_t num_rows, size_t stride, size_t n,
                                const float* factor, bool scale_first) {
    const F32 f = V::LoadN(factor, n);
    for (size_t r = 0; r < num_rows; ++r, rows += stride) {
      F32 v = V::LoadN(rows, n);
      v = scale_first ? V::Mul(v, f) : v;
      v = n > 1 ? Butterfly<0>(v) : v;
      v = n > 2 ? Butterfly<1>(v) : v;
      v = n > 4 ? Butterfly<2>(v) : v;
      V::StoreN(rows, scale_first ? v : V::Mul(v, f), n);
    }
  }

  static void Hadamard(float* rows, size_t num_rows, size_t stride, size_t n, const float* factor,
                       bool scale_first) {
    constexpr int kMost = kManyRegisters ? 16 : 4;  // vectors in registers
    if (n < kLanes) {
      HadamardShortRows(rows, num_rows, stride, n, factor, scale_first);
      return;
    }
    switch (n / kLanes) {
      case 1:
        return HadamardRows<1>(rows, num_rows, stride, factor, scale_first);
      case 2:
        return HadamardRows<2>(rows, num_rows, stride, factor, scale_first);
      case 4:
        return HadamardRows<4>(rows, num_rows, stride, factor, scale_first);
      case 8:
        if constexpr (kMost >= 8) {
          return HadamardRows<8>(rows, num_rows, stride, factor, scale_first);
        }
        break;
      case 16:
        if constexpr (kMost >= 16) {
          return HadamardRows<16>(rows, num_rows, stride, factor, scale_first);
        }
        break;
      default:
        break;
    }
    HadamardLongRows<kMost>(rows, num_rows, stride, n, factor, scale_first);
  }

  // kRows rows times `count` columns from column 0 of `matrix`: kVectors whole vectors, or one of
  // `count` lanes when kPartial.
  template <int kRows, int kVectors, bool kPartial>
  KVIK_SIMD_INLINE void MultiplyTile(const float* x, size_t k, const float* matrix, size_t n,
                                     size_t count, float* out) {
    F32 sum[kRows][kVectors];
    KVIK_SIMD_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      KVIK_SIMD_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = V::Zero();
      }
    }
    for (size_t i = 0; i < k; ++i) {
      F32 m[kVectors];
      KVIK_SIMD_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        const float* const at = matrix + i * n + static_cast<size_t>(v) * kLanes;
        m[v] = kPartial ? V::LoadN(at, count) : V::Load(at);
      }
      KVIK_SIMD_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        const F32 value = V::Set1(x[static_cast<size_t>(r) * k + i]);
        KVIK_SIMD_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = V::Fma(value, m[v], sum[r][v]);
        }
      }
    }
    KVIK_SIMD_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      KVIK_SIMD_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        float* const to = out + static_cast<size_t>(r) * n + static_cast<size_t>(v) * kLanes;
        if constexpr (kPartial) {
          V::StoreN(to, sum[r][v], count);
        } else {
          V::Store(to, sum[r][v]);
        }
      }
    }
  }

  // All rows times `count` columns (or kVectors whole vectors) of `matrix`. The rows are dealt out
  // evenly to as few tiles as hold them.
  template <int kVectors, bool kPartial>
  static void MultiplyColumns(const float* x, size_t num_rows, size_t k, const float* matrix,
                              size_t n, size_t count, float* out) {
    constexpr size_t kMostRows = 6;  // with kWide vectors each: what the register file holds
    for (size_t tiles = (num_rows + kMostRows - 1) / kMostRows; tiles > 0; --tiles) {
      const size_t rows = (num_rows + tiles - 1) / tiles;
      switch (rows) {
        case 1:
          MultiplyTile<1, kVectors, kPartial>(x, k, matrix, n, count, out);
          break;
        case 2:
          MultiplyTile<2, kVectors, kPartial>(x, k, matrix, n, count, out);
          break;
        case 3:
          MultiplyTile<3, kVectors, kPartial>(x, k, matrix, n, count, out);
          break;
        case 4:
          MultiplyTile<4, kVectors, kPartial>(x, k, matrix, n, count, out);
          break;
        case 5:
          MultiplyTile<5, kVectors, kPartial>(x, k, matrix, n, count, out);
          break;
        default:
          MultiplyTile<6, kVectors, kPartial>(x, k, matrix, n, count, out);
          break;
      }
      x += rows * k;
      out += rows * n;
      num_rows -= rows;
    }
  }

  // Columns outside: some columns of the matrix stay in the first-level cache for all rows.
  static void Multiply(const float* x, size_t num_rows, size_t k, const float* matrix, size_t n,
                       float* out) {
    constexpr size_t kWide = kManyRegisters ? 4 : 1;
    size_t j = 0;
    for (; j + kWide * kLanes <= n; j += kWide * kLanes) {
      MultiplyColumns<kWide, false>(x, num_rows, k, matrix + j, n, 0, out + j);
    }
    if constexpr (kWide > 1) {
      for (; j + kLanes <= n; j += kLanes) {
        MultiplyColumns<1, false>(x, num_rows, k, matrix + j, n, 0, out + j);
      }
    }
    if (j < n) {
      MultiplyColumns<1, true>(x, num_rows, k, matrix + j, n, n - j, out + j);
    }
  }

  static float MaxAbs(const float* x, size_t n) {
    F32 most = V::Zero();
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      most = V::Max(V::Abs(V::Load(x + i)), most);
    }
    if (i < n) {
      most = V::Max(V::Abs(V::LoadN(x + i, n - i)), most);
    }
    return V::ReduceMax(most);
  }

  static void EncodeBytes(const float* x, size_t n, float step, uint8_t* codes) {
    const F32 divisor = V::Set1(step);
    for (size_t i = 0; i < n; i += kLanes) {
      const size_t count = n - i < kLanes ? n - i : kLanes;
      F32 v = V::RoundEven(V::Div(V::LoadN(x + i, count), divisor));
      v = V::Max(V::Set1(-127.0F), V::Min(V::Set1(127.0F), v));
      alignas(64) int32_t lanes[kLanes];
      V::StoreI(lanes, V::AddI(V::ToI32(v), V::SetI(128)));
      for (size_t lane = 0; lane < count; ++lane) {
        codes[i + lane] = static_cast<uint8_t>(lanes[lane]);
      }
    }
  }

  static void DecodeBytes(const uint8_t* codes, size_t n, float step, float* out) {
    const F32 factor = V::Set1(step);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const I32 code = V::SubI(V::LoadU8(codes + i), V::SetI(128));
      V::Store(out + i, V::Mul(V::ToF32(code), factor));
    }
    for (; i < n; ++i) {
      out[i] = static_cast<float>(codes[i] - 128) * step;
    }
  }

  static constexpr TransformKernels kKernels = {
      AddRow,   ScaleRows, SumRows, Rotate<false>, Rotate<true>,
      Hadamard, Multiply,  MaxAbs,  EncodeBytes,   DecodeBytes,
  };
};

}  // namespace
}  // namespace kvik::codec
