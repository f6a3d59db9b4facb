// SPDX-License-Identifier: Apache-2.0
// codec/kernels/rans12_avx2.h: rANS with probabilities of 12 bits on vectors of 16 lanes, two
// registers each. For files compiled for AVX2 only: every one gets its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {
namespace {

// Adds to the operations of Vectors (codec/kernels/coder_kernels_avx2.cc) those of 12 bits.
template <class Vectors>
struct Rans12Avx2 : Vectors {
  using Vec = typename Vectors::Vec;
  static constexpr bool kVectors12 = true;

  static __m256i Set8(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  // The order in which the set lanes of 8 are taken, or which of them a lane is.
  static __m256i Order(const uint8_t* of) { return _mm256_cvtepu8_epi32(Vectors::Load64(of)); }

  // --- Encoding ----------------------------------------------------------------------------------

  // What the encoder needs of a symbol: tables of registers for up to 16 or 32, else of memory.
  template <int kRegisters>
  struct Dividers {
    explicit Dividers(const Rans12Model& model) {
      for (uint32_t s = 0; s < kEntries; ++s) {
        const uint32_t freq = s < model.size && model.freq[s] != 0 ? model.freq[s] : 1;
        freq_start[s] = freq | uint32_t{s < model.size ? model.start[s] : uint16_t{0}} << 16;
        reciprocal[s] = static_cast<float>(1.0 / freq * (1.0 - 0x1.0p-22));  // see EncodeHalf
      }
      if constexpr (kRegisters != 0) {
        freq_starts = Vectors::template LoadTable<kRegisters == 4>(freq_start);
        reciprocals = Vectors::template LoadTable<kRegisters == 4>(reciprocal);
      }
    }
    [[nodiscard]] __m256i FreqStart(__m256i symbols) const {
      if constexpr (kRegisters != 0) {
        return Vectors::template Lookup<kRegisters == 4>(freq_starts, symbols);
      } else {
        return _mm256_i32gather_epi32(reinterpret_cast<const int*>(freq_start), symbols, 4);
      }
    }
    [[nodiscard]] __m256 Reciprocal(__m256i symbols) const {
      if constexpr (kRegisters != 0) {
        return _mm256_castsi256_ps(Vectors::template Lookup<kRegisters == 4>(reciprocals, symbols));
      } else {
        return _mm256_i32gather_ps(reciprocal, symbols, 4);
      }
    }
    static constexpr uint32_t kEntries = kRegisters == 0 ? 256 : 8 * kRegisters;
    alignas(64) uint32_t freq_start[kEntries];
    alignas(64) float reciprocal[kEntries];
    typename Vectors::Table freq_starts{};
    typename Vectors::Table reciprocals{};
  };

  static uint8_t* Encode12(const Rans12Model& model, const uint8_t* symbols, size_t steps,
                           int lanes, uint32_t* states, uint8_t* out) {
    if (model.size <= 16) {
      return Encode12(Dividers<2>(model), symbols, steps, lanes, states, out);
    }
    if (model.size <= 32) {
      return Encode12(Dividers<4>(model), symbols, steps, lanes, states, out);
    }
    return Encode12(Dividers<0>(model), symbols, steps, lanes, states, out);
  }
  template <typename D>
  static uint8_t* Encode12(const D& dividers, const uint8_t* symbols, size_t steps, int lanes,
                           uint32_t* states, uint8_t* out) {
    switch (lanes) {
      case 64:
        return Encode12Steps<4>(dividers, symbols, steps, states, out);
      case 32:
        return Encode12Steps<2>(dividers, symbols, steps, states, out);
      default:
        return Encode12Steps<1>(dividers, symbols, steps, states, out);
    }
  }
  template <int kVectors, typename D>
  static uint8_t* Encode12Steps(const D& dividers, const uint8_t* symbols, size_t steps,
                                uint32_t* states, uint8_t* out) {
    Vec x[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      x[v] = Vectors::Load(states + 16 * v);
    }
    for (size_t step = steps; step-- > 0;) {
      const Vec bytes = Vectors::template LoadStep<kVectors>(symbols + step * 16 * kVectors);
      out = EncodeVectors<kVectors - 1>(dividers, bytes, x, out);
    }
    for (int v = 0; v < kVectors; ++v) {
      Vectors::Store(states + 16 * v, x[v]);
    }
    return out;
  }
  // Vector kLast, then those before it: no loop, whose states compilers would keep in memory.
  template <int kLast, typename D>
  static uint8_t* EncodeVectors(const D& dividers, const Vec& bytes, Vec* x, uint8_t* out) {
    const Vec symbols = Vectors::And(Vectors::ShiftRightBytes(bytes, kLast), Vectors::Set1(0xFF));
    out = EncodeHalf(dividers, symbols.a, &x[kLast].a, out);
    out = EncodeHalf(dividers, symbols.b, &x[kLast].b, out);
    if constexpr (kLast > 0) {
      out = EncodeVectors<kLast - 1>(dividers, bytes, x, out);
    }
    return out;
  }
  template <typename D>
  static uint8_t* EncodeHalf(const D& dividers, __m256i symbols, __m256i* x, uint8_t* out) {
    const __m256i low_word = Set8(0xFFFF);
    const __m256i freq_start = dividers.FreqStart(symbols);
    const __m256i freq = _mm256_and_si256(freq_start, low_word);
    // x < freq << 20, for frequencies below 2^12.
    const __m256i rests = _mm256_cmpgt_epi32(freq, _mm256_srli_epi32(*x, 20));
    const uint32_t full = Vectors::Bits(rests) ^ 0xFF;
    const __m256i taken = _mm256_and_si256(
        _mm256_permutevar8x32_epi32(*x, Order(Vectors::BitOrderPlaces(full))), low_word);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out),
        _mm_packus_epi32(_mm256_castsi256_si128(taken), _mm256_extracti128_si256(taken, 1)));
    out += 2 * _mm_popcnt_u32(full);
    const __m256i y = _mm256_blendv_epi8(_mm256_srli_epi32(*x, 16), *x, rests);
    // States have 32 bits and no sign: floats are made of their halves. The quotient is below 2^20,
    // so it is at most 1 too small and, with a reciprocal that is small enough, never too large:
    // then the rest is off by a divisor.
    const __m256 whole =
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(y, 16)), _mm256_set1_ps(65536.0F),
                        _mm256_cvtepi32_ps(_mm256_and_si256(y, low_word)));
    const __m256i quotient =
        _mm256_cvttps_epi32(_mm256_mul_ps(whole, dividers.Reciprocal(symbols)));
    const __m256i rest = _mm256_sub_epi32(y, _mm256_mullo_epi32(quotient, freq));
    const __m256i next =
        _mm256_add_epi32(_mm256_add_epi32(rest, _mm256_srli_epi32(freq_start, 16)),
                         _mm256_slli_epi32(quotient, static_cast<int>(kRans12Bits)));
    const __m256i off = _mm256_cmpgt_epi32(freq, rest);
    *x = _mm256_add_epi32(
        next, _mm256_andnot_si256(off, _mm256_sub_epi32(Set8(1U << kRans12Bits), freq)));
    return out;
  }

  // --- Decoding ----------------------------------------------------------------------------------

  // Whether Decode12 is worth its table of all slots for n symbols, which it always needs.
  static bool Decodes12(size_t n) { return n >= 512; }
  static bool NeedsSlots(const Rans12Model& /*model*/, size_t /*n*/) { return true; }

  static const uint8_t* Decode12(const Rans12Model& /*model*/, const uint32_t* slots,
                                 uint8_t* symbols, size_t /*n*/, size_t steps, int lanes,
                                 uint32_t* states, const uint8_t* begin, const uint8_t* p) {
    switch (lanes) {
      case 64:
        return Decode12Steps<4>(slots, symbols, steps, states, begin, p);
      case 32:
        return Decode12Steps<2>(slots, symbols, steps, states, begin, p);
      default:
        return Decode12Steps<1>(slots, symbols, steps, states, begin, p);
    }
  }
  template <int kVectors>
  static const uint8_t* Decode12Steps(const uint32_t* slots, uint8_t* symbols, size_t steps,
                                      uint32_t* states, const uint8_t* begin, const uint8_t* p) {
    Vec x[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      x[v] = Vectors::Load(states + 16 * v);
    }
    // A step takes 2 bytes a lane at most.
    constexpr std::ptrdiff_t kMost = 32 * kVectors;
    for (size_t step = 0; step < steps; ++step) {
      Vec found[kVectors];
      if (p - begin >= kMost) {
        p = DecodeVectors<kVectors, 0>(slots, x, found, p);
      } else {
        // Near the end, what a step takes is counted first.
        Vec copy[kVectors];
        size_t total = 0;
        for (int v = 0; v < kVectors; ++v) {
          found[v] = Find(slots, x[v]);
          copy[v] = Next(x[v], found[v]);
          total += 2 * static_cast<size_t>(_mm_popcnt_u32(Low(copy[v].a)) +
                                           _mm_popcnt_u32(Low(copy[v].b)));
        }
        if (total > static_cast<size_t>(p - begin)) {
          return nullptr;
        }
        p = DecodeVectors<kVectors, 0>(slots, x, found, p);
      }
      Vectors::template StoreStep<kVectors>(symbols + step * 16 * kVectors,
                                            Vectors::template LowBytes<kVectors>(found));
    }
    for (int v = 0; v < kVectors; ++v) {
      Vectors::Store(states + 16 * v, x[v]);
    }
    return p;
  }
  // Vector kFirst, then those behind it.
  template <int kVectors, int kFirst>
  static const uint8_t* DecodeVectors(const uint32_t* slots, Vec* x, Vec* found, const uint8_t* p) {
    found[kFirst] = Find(slots, x[kFirst]);
    const Vec next = Next(x[kFirst], found[kFirst]);
    const uint32_t low_a = Low(next.a);
    const uint32_t low_b = Low(next.b);
    // The words of the later half are the later ones.
    p -= 2 * static_cast<size_t>(_mm_popcnt_u32(low_b));
    x[kFirst].b = TakeWords(next.b, low_b, p);
    p -= 2 * static_cast<size_t>(_mm_popcnt_u32(low_a));
    x[kFirst].a = TakeWords(next.a, low_a, p);
    if constexpr (kFirst + 1 < kVectors) {
      return DecodeVectors<kVectors, kFirst + 1>(slots, x, found, p);
    } else {
      return p;
    }
  }
  static Vec Find(const uint32_t* slots, const Vec& x) {
    const auto* const table = reinterpret_cast<const int*>(slots);
    const __m256i mask = Set8((1U << kRans12Bits) - 1);
    return {_mm256_i32gather_epi32(table, _mm256_and_si256(x.a, mask), 4),
            _mm256_i32gather_epi32(table, _mm256_and_si256(x.b, mask), 4)};
  }
  static Vec Next(const Vec& x, const Vec& found) {
    return {Next(x.a, found.a), Next(x.b, found.b)};
  }
  static __m256i Next(__m256i x, __m256i found) {
    const __m256i freq =
        _mm256_and_si256(_mm256_srli_epi32(found, 8), Set8((1U << kRans12Bits) - 1));
    return _mm256_add_epi32(
        _mm256_mullo_epi32(_mm256_srli_epi32(x, static_cast<int>(kRans12Bits)), freq),
        _mm256_srli_epi32(found, 20));
  }
  // Which states are below 2^16.
  static __m256i LowLanes(__m256i x) {
    return _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
  }
  static uint32_t Low(__m256i x) { return Vectors::Bits(LowLanes(x)); }
  static __m256i TakeWords(__m256i x, uint32_t low, const uint8_t* p) {
    const __m256i words =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i taken = _mm256_permutevar8x32_epi32(words, Order(Vectors::BitOrderRanks(low)));
    return _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), taken), LowLanes(x));
  }
};

}  // namespace
}  // namespace kvik::codec
