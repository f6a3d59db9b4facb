// SPDX-License-Identifier: Apache-2.0
// codec/kernels/quant_inl.h: the inner loops of the quantizers over the vector layer. Include an
// ISA's header first.
#pragma once

#include <cstring>

#include "base/simd/simd.h"
#include "codec/kernels/quant_kernels.h"

namespace kvik::codec {
namespace {

template <class V>
struct QuantOps {
  using F32 = typename V::F32;
  using I32 = typename V::I32;
  using Mask = typename V::Mask;
  static constexpr size_t kLanes = simd::kLanes;

  // --- pieces of a row -------------------------------------------------------------------------

  // fn(offset, n): whole vectors, then what is left of [begin, end).
  template <class Fn>
  KVIK_SIMD_INLINE void ForEach(size_t begin, size_t end, const Fn& fn) {
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      fn(i, kLanes);
    }
    if (i < end) {
      fn(i, end - i);
    }
  }
  KVIK_SIMD_INLINE F32 LoadUpTo(const float* p, size_t n) {
    return n == kLanes ? V::Load(p) : V::LoadN(p, n);
  }
  KVIK_SIMD_INLINE void StoreUpTo(float* p, F32 v, size_t n) {
    if (n == kLanes) {
      V::Store(p, v);
    } else {
      V::StoreN(p, v, n);
    }
  }
  KVIK_SIMD_INLINE I32 LoadBytesUpTo(const uint8_t* p, size_t n) {
    if (n == kLanes) {
      return V::LoadU8(p);
    }
    uint8_t bytes[kLanes] = {};
    memcpy(bytes, p, n);
    return V::LoadU8(bytes);
  }
  KVIK_SIMD_INLINE void StoreBytesUpTo(uint8_t* p, I32 v, size_t n) {
    if (n == kLanes) {
      V::StoreU8(p, v);
    } else {
      uint8_t bytes[kLanes];
      V::StoreU8(bytes, v);
      memcpy(p, bytes, n);
    }
  }

  // --- ranges ----------------------------------------------------------------------------------

  static void ColumnRange(const float* x, size_t rows, size_t channels, float* lo, float* hi) {
    size_t c = 0;
    // Four vectors of channels at a time: as many chains as cover the latency of Min and Max.
    for (; c + 4 * kLanes <= channels; c += 4 * kLanes) {
      F32 low[4];
      F32 high[4];
      for (size_t j = 0; j < 4; ++j) {
        low[j] = high[j] = V::Load(x + c + j * kLanes);
      }
      for (size_t r = 1; r < rows; ++r) {
        for (size_t j = 0; j < 4; ++j) {
          const F32 v = V::Load(x + r * channels + c + j * kLanes);
          low[j] = V::Min(low[j], v);
          high[j] = V::Max(high[j], v);
        }
      }
      for (size_t j = 0; j < 4; ++j) {
        V::Store(lo + c + j * kLanes, low[j]);
        V::Store(hi + c + j * kLanes, high[j]);
      }
    }
    ForEach(
        c, channels, [&](size_t i, size_t n) __attribute__((always_inline)) {
          F32 low = LoadUpTo(x + i, n);
          F32 high = low;
          for (size_t r = 1; r < rows; ++r) {
            const F32 v = LoadUpTo(x + r * channels + i, n);
            low = V::Min(low, v);
            high = V::Max(high, v);
          }
          V::Store(lo + i, low);
          V::Store(hi + i, high);
        });
  }

  // Of values [begin, end).
  KVIK_SIMD_INLINE void Range(const float* x, size_t begin, size_t end, float* lo, float* hi) {
    F32 low = V::Set1(x[begin]);
    F32 high = low;
    const F32 first = low;
    ForEach(
        begin, end, [&](size_t i, size_t n) __attribute__((always_inline)) {
          const F32 v =
              n == kLanes ? V::Load(x + i) : V::Select(V::FirstN(n), V::LoadN(x + i, n), first);
          low = V::Min(low, v);
          high = V::Max(high, v);
        });
    *lo = -V::ReduceMax(V::Neg(low));
    *hi = V::ReduceMax(high);
  }

  static void RowRange(const float* x, size_t rows, size_t channels, size_t group, float* lo,
                       float* hi) {
    for (size_t r = 0; r < rows; ++r, x += channels) {
      for (size_t begin = 0; begin < channels; begin += group) {
        Range(x, begin, begin + group < channels ? begin + group : channels, lo++, hi++);
      }
    }
  }

  static void MergeRange(float* lo, float* hi, const float* other_lo, const float* other_hi,
                         size_t n) {
    for (size_t i = 0; i < n; i += kLanes) {
      V::Store(lo + i, V::Min(V::Load(lo + i), V::Load(other_lo + i)));
      V::Store(hi + i, V::Max(V::Load(hi + i), V::Load(other_hi + i)));
    }
  }

  // The largest half <= v, of any size: scaled so that halves are integers.
  KVIK_SIMD_INLINE F32 DownToHalf(F32 v) {
    const I32 exponent_bits = V::SetI(0x7F800000);
    const F32 power =
        V::Max(V::FromBits(V::AndI(V::BitsOf(v), exponent_bits)), V::Set1(0x1.0p-14F));
    const F32 ulp = V::Mul(power, V::Set1(0x1.0p-10F));
    const F32 per_ulp = V::FromBits(V::SubI(V::SetI(264 << 23), V::BitsOf(power)));
    const F32 ulps = V::Mul(v, per_ulp);  // exact
    const F32 nearest = V::RoundEven(ulps);
    const F32 down = V::Select(V::Gt(nearest, ulps), V::Sub(nearest, V::Set1(1.0F)), nearest);
    return V::Mul(down, ulp);
  }
  KVIK_SIMD_INLINE F32 UpToHalf(F32 v) { return V::Neg(DownToHalf(V::Neg(v))); }

  static bool RoundRange(bool symmetric, float* lo, float* hi, size_t n) {
    const F32 largest_half = V::Set1(65504.0F);
    bool fits = true;
    for (size_t i = 0; i < n; i += kLanes) {
      const Mask used = V::FirstN(n - i < kLanes ? n - i : kLanes);
      F32 low = V::Select(used, V::Load(lo + i), V::Zero());
      F32 high = V::Select(used, V::Load(hi + i), V::Zero());
      if (symmetric) {
        high = UpToHalf(V::Max(V::Neg(low), high));
        low = V::Neg(high);
      } else {
        low = DownToHalf(low);
        high = UpToHalf(high);
      }
      // Written so that a NaN does not fit either.
      const Mask good = V::Le(V::Max(V::Abs(low), V::Abs(high)), largest_half);
      fits &= !V::Any(V::Eq(V::Select(good, V::Zero(), V::Set1(1.0F)), V::Set1(1.0F)));
      V::Store(lo + i, low);
      V::Store(hi + i, high);
    }
    return fits;
  }

  static void ToHalves(const float* x, size_t n, F16* out) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      V::StoreF16(out + i, V::Load(x + i));
    }
    if (i < n) {
      F16 halves[kLanes];
      V::StoreF16(halves, V::LoadN(x + i, n - i));
      memcpy(out + i, halves, (n - i) * sizeof(F16));
    }
  }

  static bool FromHalves(const F16* x, size_t n, float* out) {
    F32 worst = V::Zero();
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const F32 v = V::LoadF16(x + i);
      worst = V::FromBits(V::OrI(V::BitsOf(worst), NotFinite(v)));
      V::Store(out + i, v);
    }
    if (i < n) {
      F16 halves[kLanes] = {};
      memcpy(halves, x + i, (n - i) * sizeof(F16));
      const F32 v = V::LoadF16(halves);
      worst = V::FromBits(V::OrI(V::BitsOf(worst), NotFinite(v)));
      V::Store(out + i, v);
    }
    return !V::Any(V::Eq(worst, V::Set1(1.0F)));
  }
  // The bits of 1 where v is not finite, else 0.
  KVIK_SIMD_INLINE I32 NotFinite(F32 v) {
    const I32 exponent_bits = V::SetI(0x7F800000);
    return V::BitsOf(V::Select(V::EqI(V::AndI(V::BitsOf(v), exponent_bits), exponent_bits),
                               V::Set1(1.0F), V::Zero()));
  }

  static void Grid(const float* lo, const float* hi, size_t n, float levels, float* step,
                   float* inv) {
    const F32 intervals = V::Set1(levels - 1.0F);
    for (size_t i = 0; i < n; i += kLanes) {
      const F32 range = V::Sub(V::Load(hi + i), V::Load(lo + i));
      const Mask some = V::Gt(range, V::Zero());
      V::Store(step + i, V::Select(some, V::Div(range, intervals), V::Zero()));
      V::Store(inv + i, V::Select(some, V::Div(intervals, range), V::Zero()));
    }
  }

  // --- uniform ---------------------------------------------------------------------------------

  static void QuantizeColumns(const float* x, size_t rows, size_t channels, const float* lo,
                              const float* inv, uint8_t* symbols) {
    ForEach(
        0, channels, [&](size_t c, size_t n) __attribute__((always_inline)) {
          const F32 low = V::Load(lo + c);
          const F32 factor = V::Load(inv + c);
          for (size_t r = 0; r < rows; ++r) {
            const F32 v = LoadUpTo(x + r * channels + c, n);
            StoreBytesUpTo(symbols + r * channels + c, V::ToI32(V::Mul(V::Sub(v, low), factor)), n);
          }
        });
  }

  // fn(first channel, end, index of the group) for all groups of all rows.
  template <class Fn>
  KVIK_SIMD_INLINE void ForEachGroup(size_t rows, size_t channels, size_t group, const Fn& fn) {
    size_t g = 0;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t begin = 0; begin < channels; begin += group) {
        const size_t end = begin + group < channels ? begin + group : channels;
        fn(r * channels + begin, r * channels + end, g++);
      }
    }
  }

  static void QuantizeRows(const float* x, size_t rows, size_t channels, size_t group,
                           const float* lo, const float* inv, uint8_t* symbols) {
    ForEachGroup(
        rows, channels,
        group, [&](size_t begin, size_t end, size_t g) __attribute__((always_inline)) {
          const F32 low = V::Set1(lo[g]);
          const F32 factor = V::Set1(inv[g]);
          ForEach(
              begin, end, [&](size_t i, size_t n) __attribute__((always_inline)) {
                const F32 v = LoadUpTo(x + i, n);
                StoreBytesUpTo(symbols + i, V::ToI32(V::Mul(V::Sub(v, low), factor)), n);
              });
        });
  }

  static void DequantizeColumns(const uint8_t* symbols, size_t rows, size_t channels,
                                const float* lo, const float* step, float* x) {
    ForEach(
        0, channels, [&](size_t c, size_t n) __attribute__((always_inline)) {
          const F32 low = V::Load(lo + c);
          const F32 width = V::Load(step + c);
          for (size_t r = 0; r < rows; ++r) {
            const F32 q = V::ToF32(LoadBytesUpTo(symbols + r * channels + c, n));
            StoreUpTo(x + r * channels + c, V::Fma(q, width, low), n);
          }
        });
  }

  static void DequantizeRows(const uint8_t* symbols, size_t rows, size_t channels, size_t group,
                             const float* lo, const float* step, float* x) {
    ForEachGroup(
        rows, channels,
        group, [&](size_t begin, size_t end, size_t g) __attribute__((always_inline)) {
          const F32 low = V::Set1(lo[g]);
          const F32 width = V::Set1(step[g]);
          ForEach(
              begin, end, [&](size_t i, size_t n) __attribute__((always_inline)) {
                const F32 q = V::ToF32(LoadBytesUpTo(symbols + i, n));
                StoreUpTo(x + i, V::Fma(q, width, low), n);
              });
        });
  }

  // --- fp8 -------------------------------------------------------------------------------------

  // sign * 128 + exponent * 8 + mantissa
  KVIK_SIMD_INLINE I32 ToE4m3(F32 v) {
    const F32 magnitude = V::Min(V::Abs(v), V::Set1(448.0F));
    const F32 power =
        V::Max(V::FromBits(V::AndI(V::BitsOf(magnitude), V::SetI(0x7F800000))), V::Set1(0x1.0p-6F));
    // 8 / power, so that numbers of that exponent become integers in [8, 16].
    const F32 scale = V::FromBits(V::SubI(V::SetI(257 << 23), V::BitsOf(power)));
    const I32 eighths = V::ToI32(V::Mul(magnitude, scale));
    // (exponent + 6) * 8 + eighths: 16 eighths carry into the next exponent, fewer than 8 are
    // subnormal.
    const I32 above = V::SubI(V::template Shr<20>(V::BitsOf(power)), V::SetI((127 - 6) * 8));
    const I32 sign = V::AndI(V::template Shr<24>(V::BitsOf(v)), V::SetI(0x80));
    return V::OrI(V::AddI(above, eighths), sign);
  }
  KVIK_SIMD_INLINE void StoreE4m3(I32 code, uint8_t* exponents, uint8_t* rest, size_t n) {
    StoreBytesUpTo(exponents, V::AndI(V::template Shr<3>(code), V::SetI(15)), n);
    StoreBytesUpTo(
        rest, V::OrI(V::AndI(code, V::SetI(7)), V::AndI(V::template Shr<4>(code), V::SetI(8))), n);
  }
  KVIK_SIMD_INLINE F32 LoadE4m3(const uint8_t* exponents, const uint8_t* rest, size_t n) {
    const I32 low = LoadBytesUpTo(rest, n);
    const I32 bits = V::OrI(V::template Shl<23>(LoadBytesUpTo(exponents, n)),
                            V::template Shl<20>(V::AndI(low, V::SetI(7))));
    const I32 sign = V::template Shl<28>(V::AndI(low, V::SetI(8)));
    // As a float the fields mean 2^-120 times too little, subnormal numbers included.
    return V::FromBits(V::OrI(V::BitsOf(V::Mul(V::FromBits(bits), V::Set1(0x1.0p120F))), sign));
  }

  static void Fp8Columns(const float* x, size_t rows, size_t channels, const float* inv,
                         uint8_t* exponents, uint8_t* rest) {
    ForEach(
        0, channels, [&](size_t c, size_t n) __attribute__((always_inline)) {
          const F32 factor = V::Load(inv + c);
          for (size_t r = 0; r < rows; ++r) {
            const size_t i = r * channels + c;
            StoreE4m3(ToE4m3(V::Mul(LoadUpTo(x + i, n), factor)), exponents + i, rest + i, n);
          }
        });
  }

  static void Fp8Rows(const float* x, size_t rows, size_t channels, size_t group, const float* inv,
                      uint8_t* exponents, uint8_t* rest) {
    ForEachGroup(
        rows, channels,
        group, [&](size_t begin, size_t end, size_t g) __attribute__((always_inline)) {
          const F32 factor = V::Set1(inv[g]);
          ForEach(
              begin, end, [&](size_t i, size_t n) __attribute__((always_inline)) {
                StoreE4m3(ToE4m3(V::Mul(LoadUpTo(x + i, n), factor)), exponents + i, rest + i, n);
              });
        });
  }

  static void Unfp8Columns(const uint8_t* exponents, const uint8_t* rest, size_t rows,
                           size_t channels, const float* scale, float* x) {
    ForEach(
        0, channels, [&](size_t c, size_t n) __attribute__((always_inline)) {
          const F32 factor = V::Load(scale + c);
          for (size_t r = 0; r < rows; ++r) {
            const size_t i = r * channels + c;
            StoreUpTo(x + i, V::Mul(LoadE4m3(exponents + i, rest + i, n), factor), n);
          }
        });
  }

  static void Unfp8Rows(const uint8_t* exponents, const uint8_t* rest, size_t rows, size_t channels,
                        size_t group, const float* scale, float* x) {
    ForEachGroup(
        rows, channels,
        group, [&](size_t begin, size_t end, size_t g) __attribute__((always_inline)) {
          const F32 factor = V::Set1(scale[g]);
          ForEach(
              begin, end, [&](size_t i, size_t n) __attribute__((always_inline)) {
                StoreUpTo(x + i, V::Mul(LoadE4m3(exponents + i, rest + i, n), factor), n);
              });
        });
  }

  // --- bf16 ------------------------------------------------------------------------------------

  static void SplitBf16(const float* x, size_t n, uint8_t* exponents, uint8_t* rest) {
    ForEach(
        0, n, [&](size_t i, size_t count) __attribute__((always_inline)) {
          Bf16 rounded[kLanes];
          V::StoreBf16(rounded, LoadUpTo(x + i, count));
          const I32 bits = V::BitsOf(V::LoadBf16(rounded));
          StoreBytesUpTo(exponents + i, V::template Shr<23>(bits), count);
          StoreBytesUpTo(rest + i,
                         V::OrI(V::AndI(V::template Shr<24>(bits), V::SetI(0x80)),
                                V::AndI(V::template Shr<16>(bits), V::SetI(0x7F))),
                         count);
        });
  }

  static void MergeBf16(const uint8_t* exponents, const uint8_t* rest, size_t n, float* x) {
    ForEach(
        0, n, [&](size_t i, size_t count) __attribute__((always_inline)) {
          const I32 low = LoadBytesUpTo(rest + i, count);
          const I32 bits = V::OrI(V::template Shl<23>(LoadBytesUpTo(exponents + i, count)),
                                  V::OrI(V::template Shl<16>(V::AndI(low, V::SetI(0x7F))),
                                         V::template Shl<24>(V::AndI(low, V::SetI(0x80)))));
          StoreUpTo(x + i, V::FromBits(bits), count);
        });
  }

  // --- entropy-constrained ---------------------------------------------------------------------

  static void ColumnSquares(const float* x, size_t rows, size_t channels, float* sums) {
    ForEach(
        0, channels, [&](size_t c, size_t n) __attribute__((always_inline)) {
          F32 sum = V::Zero();
          for (size_t r = 0; r < rows; ++r) {
            const F32 v = LoadUpTo(x + r * channels + c, n);
            sum = V::Fma(v, v, sum);
          }
          V::Store(sums + c, sum);
        });
  }

  // Entries of the classes of channels [0, n) at `classes`.
  KVIK_SIMD_INLINE F32 OfClasses(const float* table, I32 classes) {
    return V::Lookup32(V::Load(table), V::Load(table + kLanes), classes);
  }

  static void EcsqQuantize(const float* x, size_t rows, size_t channels, float inverse_step,
                           const EcsqTables& tables, const uint8_t* classes,
                           uint8_t* const* symbols) {
    const I32 sign_bit = V::SetI(INT32_MIN);
    const F32 inv = V::Set1(inverse_step);
    ForEach(
        0, channels, [&](size_t c, size_t n) __attribute__((always_inline)) {
          const I32 index = LoadBytesUpTo(classes + c, n);
          const I32 theta = V::BitsOf(OfClasses(tables.theta, index));
          const F32 limit = OfClasses(tables.limit, index);
          const F32 lower = V::Neg(limit);
          const I32 zero = V::SubI(V::ToI32(limit), V::SetI(1));
          const I32 mask = V::SubI(V::ToI32(V::Add(limit, limit)), V::SetI(1));
          const auto symbols_of = [&](size_t r) __attribute__((always_inline)) {
            const F32 y = V::Mul(LoadUpTo(x + r * channels + c, n), inv);
            const F32 moved = V::Sub(y, V::FromBits(V::SelectBits(sign_bit, V::BitsOf(y), theta)));
            const F32 bounded = V::Min(V::Max(moved, lower), limit);
            // -limit becomes symbol -1 and limit the escape, which the mask makes the same.
            return V::AndI(V::AddI(V::ToI32(bounded), zero), mask);
          };
          const auto four = [&](size_t r) __attribute__((always_inline)) {
            return V::OrI(V::OrI(symbols_of(r), V::template Shl<8>(symbols_of(r + 1))),
                          V::OrI(V::template Shl<16>(symbols_of(r + 2)),
                                 V::template Shl<24>(symbols_of(r + 3))));
          };
          uint8_t spare[kLanes];  // of channels that do not exist
          uint8_t* to[kLanes];
          size_t r = 0;
          for (; r + kLanes <= rows; r += kLanes) {
            const I32 quads[4] = {four(r), four(r + 4), four(r + 8), four(r + 12)};
            for (size_t i = 0; i < kLanes; ++i) {
              to[i] = i < n ? symbols[c + i] + r : spare;
            }
            V::StoreQuads(to, quads);
          }
          for (; r < rows; ++r) {
            uint8_t bytes[kLanes];
            V::StoreU8(bytes, symbols_of(r));
            for (size_t i = 0; i < n; ++i) {
              symbols[c + i][r] = bytes[i];
            }
          }
        });
  }

  static void EcsqDequantize(const uint8_t* const* symbols, size_t rows, size_t channels,
                             float step, const EcsqTables& tables, const uint8_t* classes,
                             float* x) {
    const I32 sign_bit = V::SetI(INT32_MIN);
    const I32 low_byte = V::SetI(0xFF);
    ForEach(
        0, channels, [&](size_t c, size_t n) __attribute__((always_inline)) {
          const I32 index = LoadBytesUpTo(classes + c, n);
          const F32 slope = V::Mul(OfClasses(tables.slope, index), V::Set1(step));
          const F32 offset = V::Mul(OfClasses(tables.offset, index), V::Set1(step));
          const I32 zero = V::SubI(V::ToI32(OfClasses(tables.limit, index)), V::SetI(1));
          const auto put = [&](size_t r, I32 symbol) __attribute__((always_inline)) {
            const F32 q = V::ToF32(V::SubI(symbol, zero));
            const F32 magnitude = V::Abs(q);
            const F32 value =
                V::Select(V::Gt(magnitude, V::Zero()), V::Fma(magnitude, slope, offset), V::Zero());
            StoreUpTo(x + r * channels + c,
                      V::FromBits(V::SelectBits(sign_bit, V::BitsOf(q), V::BitsOf(value))), n);
          };
          const uint8_t spare[kLanes] = {};
          const uint8_t* from[kLanes];
          size_t r = 0;
          for (; r + kLanes <= rows; r += kLanes) {
            for (size_t i = 0; i < kLanes; ++i) {
              from[i] = i < n ? symbols[c + i] + r : spare;
            }
            I32 quads[4];
            V::LoadQuads(from, quads);
            for (size_t j = 0; j < 4; ++j) {
              put(r + 4 * j, V::AndI(quads[j], low_byte));
              put(r + 4 * j + 1, V::AndI(V::template Shr<8>(quads[j]), low_byte));
              put(r + 4 * j + 2, V::AndI(V::template Shr<16>(quads[j]), low_byte));
              put(r + 4 * j + 3, V::template Shr<24>(quads[j]));
            }
          }
          for (; r < rows; ++r) {
            uint8_t bytes[kLanes] = {};
            for (size_t i = 0; i < n; ++i) {
              bytes[i] = symbols[c + i][r];
            }
            put(r, V::LoadU8(bytes));
          }
        });
  }

  static constexpr QuantKernels kKernels = {
      .column_range = ColumnRange,
      .row_range = RowRange,
      .merge_range = MergeRange,
      .round_range = RoundRange,
      .to_halves = ToHalves,
      .from_halves = FromHalves,
      .grid = Grid,
      .quantize_columns = QuantizeColumns,
      .quantize_rows = QuantizeRows,
      .dequantize_columns = DequantizeColumns,
      .dequantize_rows = DequantizeRows,
      .fp8_columns = Fp8Columns,
      .fp8_rows = Fp8Rows,
      .unfp8_columns = Unfp8Columns,
      .unfp8_rows = Unfp8Rows,
      .split_bf16 = SplitBf16,
      .merge_bf16 = MergeBf16,
      .column_squares = ColumnSquares,
      .ecsq_quantize = EcsqQuantize,
      .ecsq_dequantize = EcsqDequantize,
  };
};

}  // namespace
}  // namespace kvik::codec
