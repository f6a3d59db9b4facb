// SPDX-License-Identifier: Apache-2.0
// attention/kernels_inl.h: the kernels, one template over an ISA of base/simd. Included by
// kernels_*.cc only.
//
// An item is a query tile: up to kTileRows rows against a range of keys. Keys pass in tiles of
// kTileTokens; for every key tile the rows pass in micro-tiles of up to kMaxRows:
//
//   scores    S[row][key]  = -m + sum over d of q[row][d] * k[d][key], d ascending, one
//             accumulator that starts from minus the row's reference m
//   softmax   P[row][key]  = 2^S; the reference moves only when a score exceeds it by kMaxAbove,
//             so most tiles need neither a horizontal maximum nor a rescale
//   values    O[row][d]   += sum over keys of P[row][key] * v[key][d], keys ascending
//
// Everything a row computes is a function of its own query, position and keys:
//  * A key tile is visited by a row whenever any row of its micro-tile sees part of it. Keys that
//    the row itself does not see get weight +0, and a state that has met such keys only is the
//    empty state, as if the tile had not been visited.
//  * Sums over keys stop at the last key seen by any row of the micro-tile: later slots may hold
//    anything, and 0 * NaN is not 0. For the same reason the values of dropped keys are replaced by
//    zeros before they are summed.
//  * At the end of a span the state is merged into the total of the row and starts afresh.
#pragma once

#include <atomic>

#include "attention/kernels.h"
#include "attention/plan.h"
#include "base/simd/math.h"

namespace kvik::attention {
namespace {  // see base/simd/simd.h: what is compiled for an ISA stays in its object file

inline constexpr int kMaxRows = 6;                // of a micro-tile
inline constexpr int kGroups = kTileTokens / 16;  // vectors of keys in a tile
inline constexpr float kMaxAbove = 8.0F;          // weights stay below 2^kMaxAbove
inline constexpr float kEmptyMax = -__builtin_inff();

// How the operands of one multiply-add step lie in memory. A step is one value of the summed axis
// for kF32, a pair of them (4 bytes as well) for the others.
enum class Operands {
  kF32,
  kBf16Dot,    // both sides bf16, pair dot product
  kBf16AsF32,  // pages bf16, widened in registers; queries and weights float32
};

// Steps of 16 keys when keys are the summed axis.
constexpr int StepsOf16(Operands op) { return op == Operands::kF32 ? 16 : 8; }
constexpr int ValuesPerStep(Operands op) { return op == Operands::kF32 ? 1 : 2; }
// Bytes a step takes in a row of queries or weights.
constexpr size_t RowBytesPerStep(Operands op) { return op == Operands::kBf16AsF32 ? 8 : 4; }
// Bytes of a row of weights.
constexpr size_t WeightStride(Operands op) { return op == Operands::kBf16Dot ? 128 : 256; }

// A set of keys of a tile: bit i is key i.
using KeySet = uint64_t;
inline constexpr KeySet kAllKeys = ~KeySet{0};
static_assert(kTileTokens == 64);

inline int Min(int a, int b) { return a < b ? a : b; }
inline int Max(int a, int b) { return a > b ? a : b; }
// Keys [0, n), whatever n is.
inline KeySet FirstKeys(int n) {
  return n >= kTileTokens ? kAllKeys : n <= 0 ? 0 : (KeySet{1} << n) - 1;
}
inline uint32_t GroupOf(KeySet keys, int group) {
  return static_cast<uint32_t>(keys >> (16 * group) & 0xFFFF);
}

// One tile of keys. Group g is keys [16g, 16g + 16).
struct KeyTile {
  const std::byte* k[kGroups];       // [steps over d][16 keys], rows k_stride apart
  const std::byte* v[kGroups];       // [steps over keys][head_dim], rows 4 * head_dim apart
  const std::byte* next_k[kGroups];  // of the tile after this one, to be prefetched
  const std::byte* next_v[kGroups];
  size_t k_stride = 0;
  int first_pos = 0;
  KeySet kept = kAllKeys;
};

// A key tile of a kv head to be visited.
struct TileVisit {
  int head = 0;
  int first_pos = 0;
  KeySet kept = kAllKeys;  // keys that are not dropped; those that do not exist yet count as kept
};

// What is private to an item; arrays over the rows of the query tile.
struct TileState {
  const std::byte* q;  // [rows][head_dim] bf16 or float32, scaled
  float* value;        // [rows][head_dim] of the current span
  float* weight;       // [rows][16] sums of weights, one a lane
  float* start;        // [rows] what a score starts from: minus the reference m; 0 while empty
  float* limit;        // [rows] a score above it moves the reference: kMaxAbove; -inf while empty
  const int32_t* pos;  // [rows] ascending
  int head_dim;
  int window;  // 0: none
};

template <class V>
struct KernelSet {
  using F32 = typename V::F32;
  using Bf16x32 = typename V::Bf16x32;

  // Sums are held in parts of vectors, one a register: lanes do not meet, so this changes no bits.
  using P = typename V::Part;
  using Part = typename P::F32;
  static constexpr int kParts = V::kPartsPerVector;
  static constexpr int kPartLanes = 16 / kParts;
  static constexpr size_t kPartBytes = 64 / kParts;  // of bf16 pairs or float32 values

  // A micro-tile of many registers is 4 vectors wide, and its scores need not leave them.
  static constexpr bool kWide = V::kNumRegisters >= 32;
  // Otherwise this many parts, with what `rows` rows have of them: 12 sums and 4 operands fill the
  // registers of AVX2. 8 sums in flight would do to hide the latency of a multiply-add if none ever
  // came late. Values of four rows do better with 8, since their loops are short and overlap.
  static constexpr int ScoreWidth(int rows) {
    if (kWide || kParts == 1) {
      return kWide ? 4 : 1;
    }
    return rows <= 3 ? 4 : rows == 4 ? 3 : 2;
  }
  static constexpr int ValueWidth(int rows) {
    return !kWide && kParts > 1 && rows == 4 ? 2 : ScoreWidth(rows);
  }

  // fn(Int<n>()) for an n in [1, N] that is known when running.
  template <int N>
  struct Int {
    static constexpr int kValue = N;
  };
  template <int N, class Fn>
  KVIK_SIMD_INLINE void WithInt(int n, const Fn& fn) {
    if constexpr (N > 1) {
      if (n < N) {
        WithInt<N - 1>(n, fn);
        return;
      }
    }
    fn(Int<N>());
  }

  // 2^x for x <= kMaxAbove and a little more; below -125 it is 2^-125, so there are no subnormals.
  // kFast: to be rounded to bf16; less exact, and down to 0.
  template <bool kFast>
  KVIK_SIMD_INLINE F32 Weight(F32 x) {
    if constexpr (kFast) {
      return simd::Exp2DownFast<V>(x);
    }
    x = V::Max(V::Set1(-125.0F), x);  // this operand order keeps NaN
    if constexpr (V::kNumRegisters >= 32) {
      const F32 n = V::RoundEven(x);
      return V::ScalePow2(simd::Exp2Fraction<V>(V::Sub(x, n)), n);
    } else {
      // The same numbers without a scaling instruction: adding 1.5 * 2^23 rounds x to an integer
      // and leaves it in the low bits, from where it is added to the exponent.
      const F32 shifted = V::Add(x, V::Set1(12582912.0F));
      const F32 f = V::Sub(x, V::Sub(shifted, V::Set1(12582912.0F)));
      return V::FromBits(
          V::AddI(V::BitsOf(simd::Exp2Fraction<V>(f)), V::template Shl<23>(V::BitsOf(shifted))));
    }
  }

  // acc[r][n] += x[r] * y[n]; x(r) and y(n) fetch the operands. All those of the smaller side stay
  // in registers, the others come one at a time.
  template <int R, int N, class X, class Y>
  KVIK_SIMD_INLINE void Outer(Part (&acc)[R][N], const X& x, const Y& y) {
    if constexpr (kWide || N <= R) {
      Part ys[N];
      KVIK_SIMD_UNROLL(8)
      for (int n = 0; n < N; ++n) {
        ys[n] = y(n);
      }
      KVIK_SIMD_UNROLL(6)
      for (int r = 0; r < R; ++r) {
        const Part xr = x(r);
        KVIK_SIMD_UNROLL(8)
        for (int n = 0; n < N; ++n) {
          acc[r][n] = P::Fma(xr, ys[n], acc[r][n]);
        }
      }
    } else {
      Part xs[R];
      KVIK_SIMD_UNROLL(6)
      for (int r = 0; r < R; ++r) {
        xs[r] = x(r);
      }
      KVIK_SIMD_UNROLL(8)
      for (int n = 0; n < N; ++n) {
        const Part yn = y(n);
        KVIK_SIMD_UNROLL(6)
        for (int r = 0; r < R; ++r) {
          acc[r][n] = P::Fma(xs[r], yn, acc[r][n]);
        }
      }
    }
  }

  // acc[r][n] += a[r][i] * b[n][i]: one step of the summed axis. Rows of `a` are a_stride bytes
  // apart and hold scalars; b[n] + i * b_stride is a part of a vector.
  template <Operands kOp, int R, int N>
  KVIK_SIMD_INLINE void MultiplyAdd(Part (&acc)[R][N], const std::byte* a, size_t a_stride,
                                    const std::byte* const (&b)[N], size_t b_stride, int i) {
    const size_t at = static_cast<size_t>(i) * b_stride;
    if constexpr (kOp == Operands::kBf16Dot) {
      Bf16x32 y[N];
      KVIK_SIMD_UNROLL(8)
      for (int n = 0; n < N; ++n) {
        y[n] = V::LoadPairs(reinterpret_cast<const Bf16*>(b[n] + at));
      }
      KVIK_SIMD_UNROLL(6)
      for (int r = 0; r < R; ++r) {
        uint32_t bits;
        __builtin_memcpy(&bits, a + static_cast<size_t>(r) * a_stride + 4 * static_cast<size_t>(i),
                         4);
        const Bf16x32 x = V::Set1Pair(bits);
        KVIK_SIMD_UNROLL(4)
        for (int n = 0; n < N; ++n) {
          acc[r][n] = V::DotBf16(acc[r][n], x, y[n]);
        }
      }
    } else if constexpr (kOp == Operands::kF32) {
      Outer(
          acc,
          [&](int r) {
            return P::Set1(
                reinterpret_cast<const float*>(a + static_cast<size_t>(r) * a_stride)[i]);
          },
          [&](int n) { return P::Load(reinterpret_cast<const float*>(b[n] + at)); });
    } else {
      KVIK_SIMD_UNROLL(2)
      for (int half = 0; half < 2; ++half) {
        if constexpr (kParts > 1 && N > R) {
          P::template Hold<R * N>(&acc[0][0]);
        }
        Outer(
            acc,
            [&](int r) {
              return P::Set1(reinterpret_cast<const float*>(a + static_cast<size_t>(r) *
                                                                    a_stride)[2 * i + half]);
            },
            [&](int n) {
              const auto pairs = P::LoadPairs(reinterpret_cast<const Bf16*>(b[n] + at));
              // The mask of the odd half takes a register. Where there are others with 8 sums;
              // loops of fewer share a function with loops of 12, which would lose it.
              if constexpr (kParts == 1 || R * N == 8) {
                return half == 0 ? P::WidenEven(pairs) : P::WidenOdd(pairs);
              } else {
                return half == 0 ? P::WidenEven(pairs) : P::WidenOddInPlace(pairs);
              }
            });
      }
    }
  }

  // Lines of 64 bytes that a pass over N parts prefetches a step: as many as it reads, or one more.
  // Those it reads itself where a part is a vector; else the passes count them, and the last ones
  // may find none left.
  static constexpr int Lines(int parts) { return (parts + kParts - 1) / kParts; }

  // Scores of R rows against parts [p, p + N) of a key tile. Fetches lines [line, line + Lines(N))
  // of every row of the next tile.
  template <Operands kOp, int R, int N, bool kPrefetch>
  KVIK_SIMD_INLINE void Scores(const TileState& s, const KeyTile& t, int row, int p, int line,
                               Part (&acc)[R][N]) {
    const int steps = s.head_dim / ValuesPerStep(kOp);
    const size_t q_stride = RowBytesPerStep(kOp) * static_cast<size_t>(steps);
    const std::byte* q = s.q + static_cast<size_t>(row) * q_stride;
    const std::byte* k[N];
    KVIK_SIMD_UNROLL(4)
    for (int n = 0; n < N; ++n) {
      k[n] = t.k[(p + n) / kParts] + static_cast<size_t>((p + n) % kParts) * kPartBytes;
    }
    const std::byte* next[Lines(N)];
    for (int n = 0; n < Lines(N); ++n) {
      next[n] = t.next_k[kParts == 1 ? line + n : Min(line + n, kGroups - 1)];
    }
    if constexpr (!kWide) {
      // Keeps the compiler from holding these in registers from pass to pass: the sums need them.
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    KVIK_SIMD_UNROLL(6)
    for (int r = 0; r < R; ++r) {
      const Part start = P::Set1(s.start[row + r]);
      KVIK_SIMD_UNROLL(4)
      for (int n = 0; n < N; ++n) {
        acc[r][n] = start;
      }
    }
    for (int i = 0; i < steps; ++i) {
      if constexpr (kPrefetch) {
        for (int n = 0; n < Lines(N); ++n) {
          V::Prefetch(next[n] + static_cast<size_t>(i) * t.k_stride);
        }
      }
      MultiplyAdd<kOp>(acc, q, q_stride, k, t.k_stride, i);
    }
  }

  template <int R, int N>
  KVIK_SIMD_INLINE void StoreScores(const Part (&acc)[R][N], int p, float (*scores)[kTileTokens]) {
    KVIK_SIMD_UNROLL(6)
    for (int r = 0; r < R; ++r) {
      KVIK_SIMD_UNROLL(4)
      for (int n = 0; n < N; ++n) {
        P::Store(&scores[r][(p + n) * kPartLanes], acc[r][n]);
      }
    }
  }

  // Weights of one row, of which x holds them; adds them to the row's sum.
  template <Operands kOp>
  KVIK_SIMD_INLINE void StoreWeights(F32 (&x)[kGroups], F32 sum, float* sum_out,
                                     std::byte* weights) {
    sum = V::Add(sum, V::Add(V::Add(x[0], x[1]), V::Add(x[2], x[3])));
    V::Store(sum_out, sum);
    if constexpr (kOp == Operands::kBf16Dot) {
      Bf16* w = reinterpret_cast<Bf16*>(weights);
      V::StorePairs(w, V::ConcatDaz(x[0], x[1]));
      V::StorePairs(w + 32, V::ConcatDaz(x[2], x[3]));
    } else {
      KVIK_SIMD_UNROLL(4)
      for (int g = 0; g < kGroups; ++g) {
        V::Store(reinterpret_cast<float*>(weights) + 16 * g, x[g]);
      }
    }
  }

  // Values of parts [p, p + N) of a row's columns: value += weights * v over the first `keys` keys.
  // Fetches lines [line, line + Lines(N)) of the next tile's rows.
  // `correction` (one vector a row) scales what is there; null: 1; `fresh`: there is nothing.
  template <Operands kOp, int R, int N, bool kPrefetch>
  KVIK_SIMD_INLINE void Values(const TileState& s, const KeyTile& t, int row, int p, int line,
                               int keys, const std::byte* weights, const float (*correction)[16],
                               bool fresh) {
    constexpr size_t kWeightStride = WeightStride(kOp);
    const auto head_dim = static_cast<size_t>(s.head_dim);
    const size_t v_stride = 4 * head_dim;
    float* value = s.value + static_cast<size_t>(row) * head_dim + p * kPartLanes;
    Part acc[R][N];
    if (fresh) {
      KVIK_SIMD_UNROLL(6)
      for (int r = 0; r < R; ++r) {
        KVIK_SIMD_UNROLL(4)
        for (int n = 0; n < N; ++n) {
          acc[r][n] = P::Zero();
        }
      }
    } else {
      KVIK_SIMD_UNROLL(6)
      for (int r = 0; r < R; ++r) {
        KVIK_SIMD_UNROLL(4)
        for (int n = 0; n < N; ++n) {
          acc[r][n] = P::Load(value + static_cast<size_t>(r) * head_dim + kPartLanes * n);
        }
      }
      if (correction != nullptr) {
        KVIK_SIMD_UNROLL(6)
        for (int r = 0; r < R; ++r) {
          const Part factor = P::Load(correction[r]);  // all lanes are equal
          KVIK_SIMD_UNROLL(4)
          for (int n = 0; n < N; ++n) {
            acc[r][n] = P::Mul(acc[r][n], factor);
          }
        }
      }
    }
    const size_t column = static_cast<size_t>(p) * kPartBytes;
    size_t next[Lines(N)];
    for (int n = 0; n < Lines(N); ++n) {
      next[n] =
          64 * static_cast<size_t>(kParts == 1 ? line + n : Min(line + n, s.head_dim / 16 - 1));
    }
    for (int g = 0; g * 16 < keys; ++g) {
      const std::byte* v[N];
      KVIK_SIMD_UNROLL(4)
      for (int n = 0; n < N; ++n) {
        v[n] = t.v[g] + column + kPartBytes * static_cast<size_t>(n);
      }
      const std::byte* w = weights + static_cast<size_t>(g) * kWeightStride / kGroups;
      const int rest = keys - g * 16;  // whole steps only; an odd key follows below
      const int steps = rest >= 16 ? StepsOf16(kOp) : rest / ValuesPerStep(kOp);
      for (int i = 0; i < steps; ++i) {
        if constexpr (kPrefetch) {
          for (int n = 0; n < Lines(N); ++n) {
            V::Prefetch(t.next_v[g] + next[n] + static_cast<size_t>(i) * v_stride);
          }
        }
        MultiplyAdd<kOp>(acc, w, kWeightStride, v, v_stride, i);
      }
      if constexpr (kOp != Operands::kF32) {
        if (rest < 16 && rest % 2 != 0) {
          // The other half of this pair was never written, maybe: read it as 0.
          alignas(64) uint32_t clean[N][kPartLanes];
          const std::byte* last[N];
          for (int n = 0; n < N; ++n) {
            last[n] = reinterpret_cast<const std::byte*>(clean[n]);
            __builtin_memcpy(clean[n], v[n] + static_cast<size_t>(steps) * v_stride, kPartBytes);
            for (uint32_t& pair : clean[n]) {
              pair &= 0xFFFFU;
            }
          }
          MultiplyAdd<kOp>(acc, w + RowBytesPerStep(kOp) * static_cast<size_t>(steps),
                           kWeightStride, last, 0, 0);
        }
      }
    }
    KVIK_SIMD_UNROLL(6)
    for (int r = 0; r < R; ++r) {
      KVIK_SIMD_UNROLL(4)
      for (int n = 0; n < N; ++n) {
        P::Store(value + static_cast<size_t>(r) * head_dim + kPartLanes * n, acc[r][n]);
      }
    }
  }

  // Keys of a tile that some row at positions [low, high] sees.
  KVIK_SIMD_INLINE KeySet SeenKeys(int low, int high, int window, const KeyTile& t) {
    KeySet seen = FirstKeys(high + 1 - t.first_pos) & t.kept;
    if (window > 0) {
      seen &= ~FirstKeys(low + 1 - window - t.first_pos);
    }
    return seen;
  }

  // Softmax of R rows whose scores lie in memory: any of them may be masked or move its reference.
  // Returns whether the values so far are to be scaled by `correction`.
  template <Operands kOp, int R>
  KVIK_SIMD_INLINE bool SoftmaxFromMemory(const TileState& s, const KeyTile& t, int row, int keys,
                                          bool masked, bool fresh,
                                          const float (*scores)[kTileTokens], std::byte* weights,
                                          float (*correction)[16]) {
    const int groups = (keys + 15) / 16;
    bool corrected = false;
    for (int r = 0; r < R; ++r) {
      const int index = row + r;
      F32 x[kGroups];
      KeySet seen = kAllKeys;
      if (masked) {
        seen = SeenKeys(s.pos[index], s.pos[index], s.window, t);
        KVIK_SIMD_UNROLL(4)
        for (int g = 0; g < kGroups; ++g) {
          x[g] = V::Set1(kEmptyMax);
          if (g < groups) {
            x[g] = V::Select(V::LanesOf(GroupOf(seen, g)), V::Load(&scores[r][g * 16]), x[g]);
          }
        }
      } else {
        KVIK_SIMD_UNROLL(4)
        for (int g = 0; g < kGroups; ++g) {
          x[g] = V::Load(&scores[r][g * 16]);
        }
      }

      F32 sum = fresh ? V::Zero() : V::Load(s.weight + 16 * index);
      const F32 top = V::Max(V::Max(x[0], x[1]), V::Max(x[2], x[3]));
      if (V::Any(V::Gt(top, V::Set1(s.limit[index])))) {
        const float above = V::ReduceMax(top);
        if (!corrected) {
          corrected = true;
          for (int other = 0; other < R; ++other) {
            V::Store(correction[other], V::Set1(1.0F));
          }
        }
        // An empty state is all zeros: any factor does.
        const F32 factor = Weight<false>(V::Set1(above > 0 ? -above : 0.0F));
        V::Store(correction[r], factor);
        sum = V::Mul(sum, factor);
        s.start[index] -= above;
        s.limit[index] = kMaxAbove;
        KVIK_SIMD_UNROLL(4)
        for (int g = 0; g < kGroups; ++g) {
          x[g] = V::Sub(x[g], V::Set1(above));
        }
      }

      KVIK_SIMD_UNROLL(4)
      for (int g = 0; g < kGroups; ++g) {
        x[g] = Weight<kOp == Operands::kBf16Dot>(x[g]);
      }
      if (masked) {
        KVIK_SIMD_UNROLL(4)
        for (int g = 0; g < kGroups; ++g) {
          x[g] = V::Select(V::LanesOf(GroupOf(seen, g)), x[g], V::Zero());
        }
      }
      StoreWeights<kOp>(x, sum, s.weight + 16 * index,
                        weights + static_cast<size_t>(r) * WeightStride(kOp));
    }
    return corrected;
  }

  // Rows [row, row + R) of the query tile against the first `keys` keys of a key tile. `masked`:
  // some row does not see all 64 of them. `fresh`: the rows met no key in this span yet.
  template <Operands kOp, int R, bool kPrefetch>
  [[gnu::noinline]] static void MicroTile(const TileState& s, const KeyTile& t, int row, int keys,
                                          bool masked, bool fresh) {
    alignas(64) float scores[R][kTileTokens];
    alignas(64) std::byte weights[static_cast<size_t>(R) * WeightStride(kOp)];
    alignas(64) float correction[R][16];
    bool corrected = false;
    bool done = false;  // the weights are there

    if constexpr (kWide) {
      if (keys > 32) {
        F32 acc[R][4];
        Scores<kOp, R, 4, kPrefetch>(s, t, row, 0, 0, acc);
        // The common case stays in registers: nothing masked, no reference moves.
        bool memory = masked || fresh;
        KVIK_SIMD_UNROLL(6)
        for (int r = 0; r < R; ++r) {
          const F32 top = V::Max(V::Max(acc[r][0], acc[r][1]), V::Max(acc[r][2], acc[r][3]));
          memory |= V::Any(V::Gt(top, V::Set1(s.limit[row + r])));
        }
        if (memory) {
          StoreScores(acc, 0, scores);
        } else {
          KVIK_SIMD_UNROLL(6)
          for (int r = 0; r < R; ++r) {
            F32 x[kGroups];
            KVIK_SIMD_UNROLL(4)
            for (int g = 0; g < kGroups; ++g) {
              x[g] = Weight<kOp == Operands::kBf16Dot>(acc[r][g]);
            }
            float* sum = s.weight + 16 * (row + r);
            StoreWeights<kOp>(x, V::Load(sum), sum,
                              weights + static_cast<size_t>(r) * WeightStride(kOp));
          }
          done = true;
        }
      } else {
        F32 acc[R][2];
        Scores<kOp, R, 2, kPrefetch>(s, t, row, 0, 0, acc);
        StoreScores(acc, 0, scores);
      }
    } else {
      constexpr int kWidth = ScoreWidth(R);
      const int parts = (keys + 15) / 16 * kParts;
      for (int p = 0, line = 0, passes = (parts + kWidth - 1) / kWidth; passes > 0; --passes) {
        const int n = (parts - p + passes - 1) / passes;
        WithInt<kWidth>(n, [&](auto width) {
          constexpr int kN = decltype(width)::kValue;
          Part acc[R][kN];
          Scores<kOp, R, kN, kPrefetch>(s, t, row, p, line, acc);
          StoreScores(acc, p, scores);
        });
        p += n;
        line += Lines(n);
      }
    }
    if (!done) {
      corrected =
          SoftmaxFromMemory<kOp, R>(s, t, row, keys, masked, fresh, scores, weights, correction);
    }

    const float(*factors)[16] = corrected ? correction : nullptr;
    constexpr int kWidth = ValueWidth(R);
    const int parts = s.head_dim / kPartLanes;
    for (int p = 0, line = 0, passes = (parts + kWidth - 1) / kWidth; passes > 0; --passes) {
      const int n = (parts - p + passes - 1) / passes;
      WithInt<kWidth>(n, [&](auto width) {
        Values<kOp, R, decltype(width)::kValue, kPrefetch>(s, t, row, p, line, keys, weights,
                                                           factors, fresh);
      });
      p += n;
      line += Lines(n);
    }
  }

  using MicroTileFn = void (*)(const TileState&, const KeyTile&, int, int, bool, bool);
  template <Operands kOp, bool kPrefetch>
  static constexpr MicroTileFn kMicroTiles[kMaxRows + 1] = {nullptr,
                                                            MicroTile<kOp, 1, kPrefetch>,
                                                            MicroTile<kOp, 2, kPrefetch>,
                                                            MicroTile<kOp, 3, kPrefetch>,
                                                            MicroTile<kOp, 4, kPrefetch>,
                                                            MicroTile<kOp, 5, kPrefetch>,
                                                            MicroTile<kOp, 6, kPrefetch>};

  // What is kept of the tile of a head at first_pos <= last_pos.
  KVIK_SIMD_INLINE KeySet KeptKeys(const AttendArgs& a, int head, int first_pos, int last_pos) {
    KeySet kept = kAllKeys;
    if (a.pages.masks != nullptr) {
      const int32_t shift = a.pages.block_size_shift;
      const int block_size = 1 << shift;
      const int keys = Min(kTileTokens, last_pos + 1 - first_pos);
      for (int key = 0; key < keys; key += block_size) {
        const uint64_t* words = a.pages.masks[a.pages.block_table[(first_pos + key) >> shift]];
        if (words != nullptr) {
          const KeySet dropped =
              ~words[a.pages.mask_word + static_cast<size_t>(head)] & FirstKeys(block_size);
          kept &= ~(dropped << key);
        }
      }
    }
    return kept;
  }

  // The first visit at or after the tile of `head` at first_pos, kv heads inside: tiles of which
  // the head has dropped everything are passed over. None: its first_pos is at or above `end`.
  // REQUIRES: end <= last_pos + 1.
  static TileVisit NextVisit(const AttendArgs& a, int head, int first_pos, int end, int last_pos) {
    while (first_pos < end) {
      const KeySet kept = KeptKeys(a, head, first_pos, last_pos);
      if ((kept & FirstKeys(last_pos + 1 - first_pos)) != 0) {
        return {head, first_pos, kept};
      }
      ++head;
      if (head == a.num_kv_heads) {
        head = 0;
        first_pos += kTileTokens;
      }
    }
    return {head, first_pos, kAllKeys};
  }

  // Pointers to the keys and values of a tile. Groups past last_pos have no block, and those that
  // are dropped shall not be read: they read the first group that is neither, and what they give is
  // masked.
  KVIK_SIMD_INLINE void Locate(const AttendArgs& a, const TileVisit& visit, int last_pos,
                               bool f32_pages, const std::byte* (&k)[kGroups],
                               const std::byte* (&v)[kGroups]) {
    const int32_t shift = a.pages.block_size_shift;
    const int32_t slot_mask = (1 << shift) - 1;
    const auto head_dim = static_cast<size_t>(a.head_dim);
    const int first_group = __builtin_ctzll(visit.kept) / 16;
    for (int g = 0; g < kGroups; ++g) {
      const bool read = visit.first_pos + 16 * g <= last_pos && GroupOf(visit.kept, g) != 0;
      const int32_t pos = visit.first_pos + 16 * (read ? g : first_group);
      const size_t block =
          static_cast<size_t>(a.pages.block_table[pos >> shift]) * a.pages.block_stride_bytes +
          static_cast<size_t>(visit.head) * a.pages.page_bytes;
      const auto slot = static_cast<size_t>(pos & slot_mask);
      k[g] = a.pages.keys + block + slot * 4;
      v[g] = a.pages.values + block + slot * head_dim * (f32_pages ? 4 : 2);
    }
  }

  // Replaces groups of values with dropped keys among them, of the first `keys`, by copies with
  // zeros for those. `out`: room for a tile.
  template <Operands kOp>
  static void ZeroDropped(int head_dim, int keys, KeyTile& t, float* out) {
    constexpr int kKeys = ValuesPerStep(kOp);
    const auto columns = static_cast<size_t>(head_dim);
    for (int g = 0; 16 * g < keys; ++g) {
      const uint32_t kept = GroupOf(t.kept, g);
      if (kept == 0xFFFFU) {
        continue;
      }
      const auto* from = reinterpret_cast<const int32_t*>(t.v[g]);
      auto* to =
          reinterpret_cast<int32_t*>(out) + static_cast<size_t>(StepsOf16(kOp) * g) * columns;
      t.v[g] = reinterpret_cast<const std::byte*>(to);
      for (int key = 0; key < Min(16, keys - 16 * g); key += kKeys) {
        uint32_t mask = (kept >> key & 1U) != 0 ? 0xFFFFFFFFU : 0U;
        if constexpr (kKeys == 2) {
          mask = (mask & 0xFFFFU) | ((kept >> key & 2U) != 0 ? 0xFFFF0000U : 0U);
        }
        for (size_t d = 0; d < columns; d += 16) {
          V::StoreI(to + d, mask == 0
                                ? V::SetI(0)
                                : V::AndI(V::LoadI(from + d), V::SetI(static_cast<int32_t>(mask))));
        }
        from += columns;
        to += columns;
      }
    }
  }

  // Widens a tile of bf16 pages to float32: k [head_dim][64], v [64][head_dim].
  static void Widen(int head_dim, int keys, KeyTile& t, float* k, float* v) {
    const auto columns = static_cast<size_t>(head_dim);
    for (size_t d = 0; d < columns; d += 2) {
      for (int g = 0; g < kGroups; ++g) {
        V::Prefetch(t.next_k[g] + d / 2 * t.k_stride);
        const Bf16x32 pairs =
            V::LoadPairs(reinterpret_cast<const Bf16*>(t.k[g] + d / 2 * t.k_stride));
        V::Store(k + d * kTileTokens + 16 * g, V::WidenEven(pairs));
        V::Store(k + (d + 1) * kTileTokens + 16 * g, V::WidenOdd(pairs));
      }
    }
    for (int key = 0; key < keys; key += 2) {
      const size_t row = static_cast<size_t>(key % 16 / 2) * 4 * columns;
      float* out = v + static_cast<size_t>(key) * columns;
      for (size_t d = 0; d < columns; d += 16) {
        V::Prefetch(t.next_v[key / 16] + row + 4 * d);
        const Bf16x32 pairs =
            V::LoadPairs(reinterpret_cast<const Bf16*>(t.v[key / 16] + row + 4 * d));
        V::Store(out + d, V::WidenEven(pairs));
        V::Store(out + columns + d, V::WidenOdd(pairs));
      }
    }
    for (int g = 0; g < kGroups; ++g) {
      t.k[g] = reinterpret_cast<const std::byte*>(k + 16 * g);
      t.v[g] = reinterpret_cast<const std::byte*>(v + static_cast<size_t>(16 * g) * columns);
    }
    t.k_stride = kTileTokens * sizeof(float);
  }

  // total += state, both [head_dim] values with maximum and sum. An empty state changes nothing.
  KVIK_SIMD_INLINE void Merge(int head_dim, const float* value, float max, float sum, float* total,
                              float* total_max, float* total_sum) {
    if (max == kEmptyMax) {
      return;
    }
    if (*total_max == kEmptyMax) {
      for (int d = 0; d < head_dim; d += 16) {
        V::Store(total + d, V::Load(value + d));
      }
      *total_max = max;
      *total_sum = sum;
      return;
    }
    const float new_max = *total_max > max ? *total_max : max;
    const F32 old_factor = Weight<false>(V::Set1(*total_max - new_max));
    const F32 new_factor = Weight<false>(V::Set1(max - new_max));
    for (int d = 0; d < head_dim; d += 16) {
      V::Store(total + d,
               V::Fma(V::Load(value + d), new_factor, V::Mul(V::Load(total + d), old_factor)));
    }
    *total_max = new_max;
    // All lanes of the factors are equal: the maximum is the first one.
    *total_sum =
        __builtin_fmaf(sum, V::ReduceMax(new_factor), *total_sum * V::ReduceMax(old_factor));
  }

  // `max`: of the total, as Merge leaves it. A row that has seen nothing gives zeros.
  KVIK_SIMD_INLINE void WriteOut(int head_dim, const float* total, float max, float sum,
                                 float* out) {
    if (max == kEmptyMax) {
      for (int d = 0; d < head_dim; d += 16) {
        V::Store(out + d, V::Zero());
      }
      return;
    }
    const F32 factor = V::Div(V::Set1(1.0F), V::Set1(sum));
    for (int d = 0; d < head_dim; d += 16) {
      V::Store(out + d, V::Mul(V::Load(total + d), factor));
    }
  }

  template <Operands kOp>
  static void LoadQueries(const AttendArgs& a, std::byte* q) {
    const F32 scale = V::Set1(a.scale);
    // Of one token; rows follow each other.
    const int columns = a.num_kv_heads * a.group * a.head_dim;
    for (int t = 0; t < a.num_tokens; ++t) {
      const float* in = a.q + static_cast<size_t>(t) * a.row_stride;
      const size_t at = static_cast<size_t>(t) * static_cast<size_t>(columns);
      if constexpr (kOp == Operands::kBf16Dot) {
        Bf16* out = reinterpret_cast<Bf16*>(q) + at;
        for (int d = 0; d < columns; d += 16) {
          V::StoreBf16(out + d, V::Mul(V::Load(in + d), scale));
        }
      } else {
        float* out = reinterpret_cast<float*>(q) + at;
        for (int d = 0; d < columns; d += 16) {
          V::Store(out + d, V::Mul(V::Load(in + d), scale));
        }
      }
    }
  }

  template <Operands kOp>
  static void Attend(const AttendArgs& a) {
    const int head_rows = a.num_tokens * a.group;
    const int rows = head_rows * a.num_kv_heads;
    const auto head_dim = static_cast<size_t>(a.head_dim);
    const size_t tile_floats = static_cast<size_t>(rows) * head_dim;
    auto* rest = reinterpret_cast<float*>(a.scratch);
    const auto take = [&rest](size_t floats) {
      float* taken = rest;
      rest += (floats + 15) / 16 * 16;
      return taken;
    };
    std::byte* q = reinterpret_cast<std::byte*>(take(tile_floats));
    float* value = take(tile_floats);
    float* total = take(tile_floats);
    float* weight = take(static_cast<size_t>(rows) * 16);
    float* start = take(static_cast<size_t>(rows));
    float* limit = take(static_cast<size_t>(rows));
    float* total_max = take(static_cast<size_t>(rows));
    float* total_sum = take(static_cast<size_t>(rows));
    auto* pos = reinterpret_cast<int32_t*>(take(static_cast<size_t>(rows)));
    float* wide_k = take(kTileTokens * head_dim);
    float* wide_v = take(kTileTokens * head_dim);
    auto* fresh = reinterpret_cast<bool*>(take(static_cast<size_t>(rows)));

    LoadQueries<kOp>(a, q);
    for (int row = 0; row < rows; ++row) {
      pos[row] = a.first_pos + row % head_rows / a.group;
      total_max[row] = kEmptyMax;
      total_sum[row] = 0.0F;
    }
    const int last_pos = a.first_pos + a.num_tokens - 1;
    const int first_key = a.sliding_window > 0 ? Max(0, a.first_pos - a.sliding_window + 1) : 0;
    const int micro_tiles = (head_rows + kMaxRows - 1) / kMaxRows;  // of a kv head
    // Many rows read a tile often: worth widening it once. The sums are the same.
    const bool widen = kOp == Operands::kBf16AsF32 && micro_tiles > 2;
    const TileState state{q, value, weight, start, limit, pos, a.head_dim, a.sliding_window};

    // Past the last span there may be a tile to fetch for whoever comes next.
    const int visits_end = Min(last_pos + 1, a.end_span * kSpanTokens + kTileTokens);
    TileVisit visit =
        NextVisit(a, 0, Max(a.first_span * kSpanTokens, first_key / kTileTokens * kTileTokens),
                  visits_end, last_pos);
    for (int span = a.first_span; span < a.end_span; ++span) {
      for (int m = 0; m < micro_tiles * a.num_kv_heads; ++m) {
        fresh[m] = true;
      }
      for (int row = 0; row < rows; ++row) {
        start[row] = 0.0F;
        limit[row] = kEmptyMax;
      }
      // Key tiles outside, kv heads inside: the pages of a block's heads follow each other, so
      // memory is read in larger pieces.
      const int end = Min((span + 1) * kSpanTokens, last_pos + 1);
      while (visit.first_pos < end) {
        const int head = visit.head;
        const int first = visit.first_pos;
        const bool last_head = head + 1 == a.num_kv_heads;
        const TileVisit next =
            NextVisit(a, last_head ? 0 : head + 1, last_head ? first + kTileTokens : first,
                      visits_end, last_pos);
        KeyTile tile;
        tile.first_pos = first;
        tile.kept = visit.kept;
        tile.k_stride = size_t{4} << a.pages.block_size_shift;
        Locate(a, visit, last_pos, kOp == Operands::kF32, tile.k, tile.v);
        Locate(a, next.first_pos < visits_end ? next : visit, last_pos, kOp == Operands::kF32,
               tile.next_k, tile.next_v);
        const int tile_keys = Min(kTileTokens, last_pos + 1 - first);
        if (widen) {
          Widen(a.head_dim, tile_keys, tile, wide_k, wide_v);
        }
        if (tile.kept != kAllKeys) {
          if (widen) {
            ZeroDropped<Operands::kF32>(a.head_dim, tile_keys, tile, wide_v);
          } else {
            ZeroDropped<kOp>(a.head_dim, tile_keys, tile, wide_v);
          }
        }
        bool prefetch = !widen;
        const int head_end = (head + 1) * head_rows;
        for (int i = 0, m = head * micro_tiles, row = head * head_rows; i < micro_tiles; ++i, ++m) {
          const int n = (head_end - row) / (micro_tiles - i);
          const int low = pos[row];
          const int high = pos[row + n - 1];
          const int window = a.sliding_window;
          const KeySet seen = SeenKeys(low, high, window, tile);
          if (seen != 0) {
            const int keys = kTileTokens - __builtin_clzll(seen);
            const bool masked = tile.kept != kAllKeys || low + 1 - first < kTileTokens ||
                                (window > 0 && high - window + 1 > first);
            if (widen) {
              kMicroTiles<Operands::kF32, false>[n](state, tile, row, keys, masked, fresh[m]);
            } else if (prefetch) {
              kMicroTiles<kOp, true>[n](state, tile, row, keys, masked, fresh[m]);
            } else {
              kMicroTiles<kOp, false>[n](state, tile, row, keys, masked, fresh[m]);
            }
            fresh[m] = false;
            prefetch = false;
          }
          row += n;
        }
        visit = next;
      }
      for (int row = 0; row < rows; ++row) {
        const float* row_value = value + static_cast<size_t>(row) * head_dim;
        const bool empty = limit[row] == kEmptyMax;
        const float max = empty ? kEmptyMax : -start[row];
        const float sum = empty ? 0.0F : V::ReduceSum(V::Load(weight + 16 * row));
        if (a.states != nullptr) {
          float* out =
              a.states + (static_cast<size_t>(span - a.first_span) * static_cast<size_t>(rows) +
                          static_cast<size_t>(row)) *
                             StateFloats(a.head_dim);
          if (!empty) {
            for (size_t d = 0; d < head_dim; d += 16) {
              V::Store(out + d, V::Load(row_value + d));
            }
          }
          out[head_dim] = max;
          out[head_dim + 1] = sum;
        } else {
          Merge(a.head_dim, row_value, max, sum, total + static_cast<size_t>(row) * head_dim,
                &total_max[row], &total_sum[row]);
        }
      }
    }
    if (a.states == nullptr) {
      for (int row = 0; row < rows; ++row) {
        const int token_rows = a.num_kv_heads * a.group;
        WriteOut(a.head_dim, total + static_cast<size_t>(row) * head_dim, total_max[row],
                 total_sum[row],
                 a.out + static_cast<size_t>(row / token_rows) * a.row_stride +
                     static_cast<size_t>(row % token_rows) * head_dim);
      }
    }
  }

  static void MergeStates(const MergeArgs& a) {
    const int rows = a.num_tokens * a.group;
    const auto head_dim = static_cast<size_t>(a.head_dim);
    auto* total = reinterpret_cast<float*>(a.scratch);
    for (int row = 0; row < rows; ++row) {
      float max = kEmptyMax;
      float sum = 0.0F;
      for (int span = 0; span < a.num_spans; ++span) {
        const float* state = a.states + (static_cast<size_t>(span) * static_cast<size_t>(rows) +
                                         static_cast<size_t>(row)) *
                                            StateFloats(a.head_dim);
        Merge(a.head_dim, state, state[head_dim], state[head_dim + 1], total, &max, &sum);
      }
      WriteOut(a.head_dim, total, max, sum,
               a.out + static_cast<size_t>(row / a.group) * a.row_stride +
                   static_cast<size_t>(row % a.group) * head_dim);
    }
  }

  static void WriteF32(const WriteArgs& a) {
    const int32_t shift = a.pages.block_size_shift;
    const size_t block_size = size_t{1} << shift;
    const auto head_dim = static_cast<size_t>(a.head_dim);
    for (int t = 0; t < a.num_tokens; ++t) {
      const int pos = a.first_pos + t;
      const size_t block =
          static_cast<size_t>(a.pages.block_table[pos >> shift]) * a.pages.block_stride_bytes;
      const size_t slot = static_cast<size_t>(pos) & (block_size - 1);
      const float* k = a.k + static_cast<size_t>(t) * a.row_stride;
      const float* v = a.v + static_cast<size_t>(t) * a.row_stride;
      auto* key = reinterpret_cast<float*>(a.pages.keys + block) + slot;
      auto* value = reinterpret_cast<float*>(a.pages.values + block) + slot * head_dim;
      for (size_t d = 0; d < head_dim; ++d) {
        key[d * block_size] = k[d];
      }
      for (size_t d = 0; d < head_dim; d += 16) {
        V::Store(value + d, V::Load(v + d));
      }
    }
  }

  static void WriteBf16(const WriteArgs& a) {
    const int32_t shift = a.pages.block_size_shift;
    const size_t block_size = size_t{1} << shift;
    const auto head_dim = static_cast<size_t>(a.head_dim);
    alignas(64) Bf16 row[kMaxHeadDim];
    for (int t = 0; t < a.num_tokens; ++t) {
      const int pos = a.first_pos + t;
      const size_t block =
          static_cast<size_t>(a.pages.block_table[pos >> shift]) * a.pages.block_stride_bytes;
      const size_t slot = static_cast<size_t>(pos) & (block_size - 1);
      const float* k = a.k + static_cast<size_t>(t) * a.row_stride;
      const float* v = a.v + static_cast<size_t>(t) * a.row_stride;
      for (size_t d = 0; d < head_dim; d += 16) {
        V::StoreBf16(row + d, V::Load(k + d));
      }
      std::byte* key = a.pages.keys + block + slot * 4;
      for (size_t d = 0; d < head_dim / 2; ++d) {
        __builtin_memcpy(key + d * block_size * 4, row + 2 * d, 4);
      }
      Bf16* value = reinterpret_cast<Bf16*>(a.pages.values + block) + slot / 2 * 2 * head_dim;
      if (slot % 2 == 0 && t + 1 < a.num_tokens) {  // both halves of the pairs are ours
        for (size_t d = 0; d < head_dim; d += 16) {
          V::StorePairs(value + 2 * d, V::Pairs(V::Load(v + d), V::Load(v + a.row_stride + d)));
        }
      } else if (slot % 2 == 0 || t == 0) {
        for (size_t d = 0; d < head_dim; d += 16) {
          V::StoreBf16(row + d, V::Load(v + d));
        }
        for (size_t d = 0; d < head_dim; ++d) {
          value[2 * d + slot % 2] = row[d];
        }
      }
    }
  }

  static constexpr void (*Bf16OrNull())(const AttendArgs&) {
    if constexpr (V::kHasBf16) {
      return Attend<Operands::kBf16Dot>;
    } else {
      return nullptr;
    }
  }
  static constexpr Kernels kTable = {V::kIsa,
                                     Attend<Operands::kF32>,
                                     Attend<Operands::kBf16AsF32>,
                                     Bf16OrNull(),
                                     MergeStates,
                                     WriteF32,
                                     WriteBf16};
};

}  // namespace
}  // namespace kvik::attention
