// SPDX-License-Identifier: Apache-2.0
// tensor/unpack_inl.h: packed weights to vectors, over the vector layer. Include an ISA first.
//
// A codec turns blocks of a packed panel into operands: an operand is the weights of 16 outputs
// for a pair of inputs (k, k + 1), as two float vectors or one vector of bf16 pairs. The same
// codec feeds products from registers and fills scratch, so both see the same values.
#pragma once

#include <utility>

#include "base/simd/simd.h"
#include "tensor/packed_layout.h"

namespace kvik::tensor {
namespace {

#define KVIK_INLINE_LAMBDA __attribute__((always_inline))

template <int kValue>
struct Index {
  static constexpr int value = kValue;
};

// fn(Index<0>{}), ..., fn(Index<kN - 1>{})
template <int kN, class Fn>
KVIK_SIMD_INLINE void Unroll(const Fn& fn) {
  [&]<int... kI>(std::integer_sequence<int, kI...>) KVIK_INLINE_LAMBDA { (fn(Index<kI>{}), ...); }
  (std::make_integer_sequence<int, kN>{});
}

// fn(Index<o>{}, i) for the octets of a block: octet o of the block moved by i * kOctetBytes.
template <class Codec, class Fn>
KVIK_SIMD_INLINE void ForOctets(const Fn& fn) {
  constexpr int kOctets = Codec::kLayout.block_k / kOctet;
  if constexpr (Codec::kOctetsAlike) {
    KVIK_SIMD_UNROLL(1)
    for (size_t i = 0; i < kOctets; ++i) {
      fn(Index<0>{}, i);
    }
  } else {
    Unroll<kOctets>([&](auto octet) KVIK_INLINE_LAMBDA { fn(octet, size_t{0}); });
  }
}

// Arithmetic of one pair of inputs.
template <class V, ComputeType kCompute>
struct Arithmetic;

template <class V>
struct Arithmetic<V, ComputeType::kF32> {
  using F32 = typename V::F32;
  using X = float;
  struct Operand {
    F32 w0, w1;
  };
  KVIK_SIMD_INLINE Operand Make(F32 w0, F32 w1) { return {w0, w1}; }
  KVIK_SIMD_INLINE F32 MultiplyAdd(Operand w, const X* x, F32 acc) {
    return V::Fma(w.w1, V::Set1(x[1]), V::Fma(w.w0, V::Set1(x[0]), acc));
  }
  // Scratch is [k][16] floats, one vector a step.
  static constexpr size_t kBytesPerPair = 2 * kPanelOutputs * sizeof(float);
  static constexpr size_t kStepInputs = 1;
  struct Step {
    F32 w;
  };
  KVIK_SIMD_INLINE void Store(std::byte* p, Operand w) {
    V::Store(reinterpret_cast<float*>(p), w.w0);
    V::Store(reinterpret_cast<float*>(p) + kPanelOutputs, w.w1);
  }
  KVIK_SIMD_INLINE Step LoadStep(const std::byte* p) {
    return {V::Load(reinterpret_cast<const float*>(p))};
  }
  KVIK_SIMD_INLINE F32 MultiplyAdd(Step w, const X* x, F32 acc) {
    return V::Fma(w.w, V::Set1(*x), acc);
  }
};

template <class V>
struct Arithmetic<V, ComputeType::kBf16> {
  using F32 = typename V::F32;
  using X = Bf16;
  struct Operand {
    typename V::Bf16x32 w;
  };
  KVIK_SIMD_INLINE Operand Make(F32 w0, F32 w1) { return {V::ConcatDaz(w0, w1)}; }
  KVIK_SIMD_INLINE F32 MultiplyAdd(Operand w, const X* x, F32 acc) {
    uint32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return V::DotBf16(acc, w.w, V::Set1Pair(pair));
  }
  // Scratch is [k / 2][16] pairs, one vector a step.
  static constexpr size_t kBytesPerPair = kPanelOutputs * 2 * sizeof(Bf16);
  static constexpr size_t kStepInputs = 2;
  using Step = Operand;
  KVIK_SIMD_INLINE void Store(std::byte* p, Operand w) {
    V::StorePairs(reinterpret_cast<Bf16*>(p), w.w);
  }
  KVIK_SIMD_INLINE Step LoadStep(const std::byte* p) {
    return {V::LoadPairs(reinterpret_cast<const Bf16*>(p))};
  }
};

// Plain floats: a block is an octet, there are no scales.
template <class V, ComputeType kComputeType, PlainStorage kStorage>
struct PlainCodec {
  static constexpr ComputeType kCompute = kComputeType;
  using A = Arithmetic<V, kCompute>;
  static constexpr PackedLayout kLayout =
      PackedLayoutOf(kStorage == PlainStorage::kF32   ? WeightFormat::kF32
                     : kStorage == PlainStorage::kF16 ? WeightFormat::kF16
                                                      : WeightFormat::kBf16,
                     kCompute);
  static constexpr bool kOctetsAlike = true;
  static constexpr size_t kOctetBytes = kLayout.block_bytes;
  struct Header {};
  struct Scales {};
  KVIK_SIMD_INLINE Header LoadHeader(const std::byte*) { return {}; }
  KVIK_SIMD_INLINE Scales LoadScales(const Header&, const std::byte*) { return {}; }

  template <int kOctetIndex, class Fn>
  KVIK_SIMD_INLINE void Octet(const Scales&, const std::byte* block, const Fn& fn) {
    Unroll<4>([&](auto pair) KVIK_INLINE_LAMBDA {
      constexpr int kPair = decltype(pair)::value;
      if constexpr (kStorage == PlainStorage::kBf16Pairs) {
        fn(pair, typename A::Operand{V::LoadPairs(reinterpret_cast<const Bf16*>(block) +
                                                  kPair * 2 * kPanelOutputs)});
      } else {
        fn(pair, A::Make(Vector<2 * kPair>(block), Vector<2 * kPair + 1>(block)));
      }
    });
  }

 private:
  template <int kVector>
  KVIK_SIMD_INLINE typename V::F32 Vector(const std::byte* block) {
    constexpr size_t kOffset = kVector * kPanelOutputs;
    if constexpr (kStorage == PlainStorage::kF32) {
      return V::Load(reinterpret_cast<const float*>(block) + kOffset);
    } else if constexpr (kStorage == PlainStorage::kF16) {
      return V::LoadF16(reinterpret_cast<const F16*>(block) + kOffset);
    } else {
      return V::LoadBf16(reinterpret_cast<const Bf16*>(block) + kOffset);
    }
  }
};

// Block formats. A weight is fma(scale, q, min) with unsigned q, or scale * q with q signed by the
// lookup table; both are exact before the last rounding, so they agree.
template <class V, ComputeType kComputeType, WeightFormat kFormat>
struct QuantCodec {
  static constexpr ComputeType kCompute = kComputeType;
  using A = Arithmetic<V, kCompute>;
  using F32 = typename V::F32;
  using I32 = typename V::I32;
  static constexpr PackedLayout kLayout = PackedLayoutOf(kFormat, kCompute);
  static constexpr QuantFormat kQuant = QuantFormatOf(kFormat);
  static constexpr bool kLookup = V::kFastLookup && (kQuant.bits == 4 || kQuant.bits == 5);
  // Whether weights need a vector added: the format's minimum or -offset * scale.
  static constexpr bool kAdd = kQuant.has_min || (kQuant.offset != 0 && !kLookup);
  // Whether Octet<0> of a block moved by i * kOctetBytes is Octet<i>: a loop can do, which compiles
  // faster than an unrolled one.
  static constexpr bool kOctetsAlike = kQuant.bits == 4 || kQuant.bits == 8;
  static constexpr size_t kOctetBytes = kPanelOutputs * (kQuant.bits == 8 ? 8 : 4);
  // In kBf16 order lanes hold pairs of inputs: even vectors have outputs 0..7, odd ones 8..15.
  static constexpr int kHalves = kCompute == ComputeType::kBf16 ? 2 : 1;

  struct Header {
    F32 d, m;
  };
  struct Scales {
    F32 scale[2][kHalves];  // of the block's first and second 16 inputs
    F32 add[2][kHalves];
  };
  static constexpr int kScaleSets = kQuant.scale_k == 16 ? 2 : 1;

  KVIK_SIMD_INLINE Header LoadHeader(const std::byte* header) {
    Header h{};
    if constexpr (kLayout.header_k != 0) {
      h.d = V::LoadF16(reinterpret_cast<const F16*>(header));
      if constexpr (kQuant.has_min) {
        h.m = V::Neg(V::LoadF16(reinterpret_cast<const F16*>(header) + kPanelOutputs));
      }
    }
    return h;
  }

  KVIK_SIMD_INLINE Scales LoadScales(const Header& header, const std::byte* block) {
    Scales s{};
    Unroll<kScaleSets>([&](auto set) KVIK_INLINE_LAMBDA {
      constexpr int kSet = decltype(set)::value;
      F32 scale;
      F32 add{};
      if constexpr (kLayout.header_k == 0) {
        scale = V::LoadF16(reinterpret_cast<const F16*>(block));
        if constexpr (kQuant.has_min) {
          add = V::LoadF16(reinterpret_cast<const F16*>(block) + kPanelOutputs);
        }
      } else if constexpr (kQuant.has_min) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(block);
        scale = V::Mul(header.d, V::ToF32(V::LoadU8(bytes)));
        add = V::Mul(header.m, V::ToF32(V::LoadU8(bytes + kPanelOutputs)));
      } else {
        const auto* bytes = reinterpret_cast<const int8_t*>(block);
        scale = V::Mul(header.d, V::ToF32(V::LoadI8(bytes + kSet * kPanelOutputs)));
      }
      if constexpr (kAdd && !kQuant.has_min) {
        add = V::Mul(scale, V::Set1(static_cast<float>(-kQuant.offset)));
      }
      if constexpr (kHalves == 1) {
        s.scale[kSet][0] = scale;
        s.add[kSet][0] = add;
      } else {
        s.scale[kSet][0] = V::DupLow(scale);
        s.scale[kSet][1] = V::DupHigh(scale);
        if constexpr (kAdd) {
          s.add[kSet][0] = V::DupLow(add);
          s.add[kSet][1] = V::DupHigh(add);
        }
      }
    });
    return s;
  }

  template <int kOctetIndex, class Fn>
  KVIK_SIMD_INLINE void Octet(const Scales& scales, const std::byte* block, const Fn& fn) {
    const std::byte* plane = block + kLayout.scale_bytes;
    const std::byte* quants = plane + kLayout.plane_bytes;
    Unroll<2>([&](auto quad) KVIK_INLINE_LAMBDA {  // vectors 4 * quad .. 4 * quad + 3
      constexpr int kQuad = decltype(quad)::value;
      I32 word{};
      if constexpr (kQuant.bits != 8) {
        word = Word<kOctetIndex, kQuad>(plane, quants);
      }
      Unroll<2>([&](auto pair) KVIK_INLINE_LAMBDA {
        constexpr int kVector = 4 * kQuad + 2 * decltype(pair)::value;
        fn(Index<kVector / 2>{}, A::Make(Weight<kOctetIndex, kVector>(scales, word, quants),
                                         Weight<kOctetIndex, kVector + 1>(scales, word, quants)));
      });
    });
  }

 private:
  // Whether quants are taken from bytes that already hold all their bits.
  static constexpr bool kWide = kQuant.bits > 4;

  // The lanes' words for four vectors: nibbles as stored (4 bits), or bytes with the high bits put
  // beside the nibbles (the bits above are not cleared).
  template <int kOctetIndex, int kQuad>
  KVIK_SIMD_INLINE I32 Word(const std::byte* plane, const std::byte* quants) {
    I32 word = V::LoadI(reinterpret_cast<const int32_t*>(quants) + kOctetIndex * kPanelOutputs);
    if constexpr (!kWide) {
      return word;
    } else {
      constexpr int kHighBits = kQuant.bits - 4;
      constexpr int kPlaneOctets = 4 / kHighBits;  // octets that share a word of the plane
      constexpr int kBit = kHighBits * (2 * (kOctetIndex % kPlaneOctets) + kQuad);
      const I32 high = V::LoadI(reinterpret_cast<const int32_t*>(plane) +
                                kOctetIndex / kPlaneOctets * kPanelOutputs);
      return V::SelectBits(V::SetI(0x0F0F0F0F), Shift<4 * kQuad>(word), Shift<kBit - 4>(high));
    }
  }
  // Right shift; left when negative.
  template <int kBits>
  KVIK_SIMD_INLINE I32 Shift(I32 v) {
    if constexpr (kBits == 0) {
      return v;
    } else if constexpr (kBits > 0) {
      return V::template Shr<kBits>(v);
    } else {
      return V::template Shl<-kBits>(v);
    }
  }

  KVIK_SIMD_INLINE F32 Table(int first) {
    alignas(64) static constexpr float kTable[48] = {
        -16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1,  //
        0,   1,   2,   3,   4,   5,   6,   7,  8,  9,  10, 11, 12, 13, 14, 15,  //
        16,  17,  18,  19,  20,  21,  22,  23, 24, 25, 26, 27, 28, 29, 30, 31};
    return V::Load(kTable + 16 + first);
  }

  template <int kOctetIndex, int kVector>
  KVIK_SIMD_INLINE F32 Weight(const Scales& scales, I32 word, const std::byte* quants) {
    constexpr int kSet = kScaleSets == 2 ? kOctetIndex / 2 : 0;
    constexpr int kHalf = kHalves == 2 ? kVector % 2 : 0;
    constexpr int kShift = kWide ? 8 * (kVector % 4) : NibbleShift(kVector);
    constexpr int kFirst = kQuant.has_min ? 0 : -kQuant.offset;
    F32 q;
    if constexpr (kQuant.bits == 8) {
      q = V::ToF32(V::LoadI8(reinterpret_cast<const int8_t*>(quants) +
                             (kOctetIndex * static_cast<int>(kOctet) + kVector) *
                                 static_cast<int>(kPanelOutputs)));
    } else if constexpr (kLookup && kQuant.bits == 4) {
      q = V::Lookup16(Table(kFirst), Shift<kShift>(word));
    } else if constexpr (kLookup) {
      q = V::Lookup32(Table(kFirst), Table(kFirst + 16), Shift<kShift>(word));
    } else {
      q = V::ToF32(V::AndI(Shift<kShift>(word), V::SetI((1 << kQuant.bits) - 1)));
    }
    if constexpr (kAdd) {
      return V::Fma(scales.scale[kSet][kHalf], q, scales.add[kSet][kHalf]);
    } else {
      return V::Mul(scales.scale[kSet][kHalf], q);
    }
  }
};

}  // namespace
}  // namespace kvik::tensor
