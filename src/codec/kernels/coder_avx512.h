// SPDX-License-Identifier: Apache-2.0
// codec/kernels/coder_avx512.h: the operations of AVX-512 (F, BW, DQ, VL) and, where files are
// compiled for them, of VBMI, CD and VPOPCNTDQ that the coders' kernels are made of. For files
// compiled for these only: every one gets its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/kernels/coder_kernels.h"
#include "codec/kernels/pack_inl.h"
#include "codec/kernels/rans12_avx512.h"
#include "codec/kernels/rans12_inl.h"
#include "codec/kernels/rans8_inl.h"

namespace kvik::codec {
namespace {

struct Avx512Vectors {
  static constexpr bool kVectors = true;
  using Vec = __m512i;
  using Mask = __mmask16;

  static Vec Load(const void* from) { return _mm512_loadu_si512(from); }
  static void Store(void* to, Vec x) { _mm512_storeu_si512(to, x); }
  static Vec Set1(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static Vec Set1Bytes(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  static Vec Add(Vec a, Vec b) { return _mm512_add_epi32(a, b); }
  static Vec And(Vec a, Vec b) { return _mm512_and_si512(a, b); }
  static Vec Or(Vec a, Vec b) { return _mm512_or_si512(a, b); }
  static Vec Madd(Vec a, Vec b) { return _mm512_madd_epi16(a, b); }
  static Vec AddBytes(Vec a, Vec b) { return _mm512_add_epi8(a, b); }
  static Vec SubBytes(Vec a, Vec b) { return _mm512_sub_epi8(a, b); }
  static Vec ZeroBytesAbove(Vec a, Vec last) {
    return _mm512_maskz_mov_epi8(_mm512_cmple_epu8_mask(a, last), a);
  }
  static Vec ShiftRightBytes(Vec x, int bytes) {
    switch (bytes) {
      case 1:
        return _mm512_srli_epi32(x, 8);
      case 2:
        return _mm512_srli_epi32(x, 16);
      case 3:
        return _mm512_srli_epi32(x, 24);
      default:
        return x;
    }
  }

  // --- Steps of 16, 32, 64 symbols: byte v of element e is the symbol of lane 16 v + e -----------
  static Vec Widen(const uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void Narrow(uint8_t* to, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
  }
  template <int kVectors>
  static Vec LoadStep(const uint8_t* symbols) {
    if constexpr (kVectors == 4) {
      return Load(symbols);
    } else if constexpr (kVectors == 2) {
      return Or(Widen(symbols), _mm512_slli_epi32(Widen(symbols + 16), 8));
    } else {
      return Widen(symbols);
    }
  }
  template <int kVectors>
  static void StoreStep(uint8_t* symbols, Vec bytes) {
    if constexpr (kVectors == 4) {
      Store(symbols, bytes);
    } else {
      Narrow(symbols, bytes);
      if constexpr (kVectors == 2) {
        Narrow(symbols + 16, _mm512_srli_epi32(bytes, 8));
      }
    }
  }
  template <int kVectors>
  static Vec LowBytes(const Vec* x) {
    // 0xCA: a ? b : c, bit by bit.
    if constexpr (kVectors == 4) {
      const Vec even =
          _mm512_ternarylogic_epi32(Set1(0xFF), x[0], _mm512_slli_epi32(x[1], 8), 0xCA);
      const Vec odd = _mm512_ternarylogic_epi32(Set1(0xFF0000), _mm512_slli_epi32(x[2], 16),
                                                _mm512_slli_epi32(x[3], 24), 0xCA);
      return _mm512_ternarylogic_epi32(Set1(0xFFFF), even, odd, 0xCA);
    } else if constexpr (kVectors == 2) {
      return _mm512_ternarylogic_epi32(Set1(0xFF), x[0], _mm512_slli_epi32(x[1], 8), 0xCA);
    } else {
      return x[0];
    }
  }

  // --- Tables of 16 or 32 entries, by the low bits of an element ---------------------------------
  struct Table {
    Vec low;
    Vec high;
  };
  template <bool kWide>
  static Table LoadTable(const void* of) {
    const auto* from = static_cast<const std::byte*>(of);
    return {Load(from), kWide ? Load(from + 64) : _mm512_setzero_si512()};
  }
  template <bool kWide>
  static Vec Lookup(const Table& table, Vec index) {
    if constexpr (kWide) {
      return _mm512_permutex2var_epi32(table.low, index, table.high);
    } else {
      return _mm512_permutexvar_epi32(index, table.low);
    }
  }
  template <bool kWide>
  static __m512 LookupFloat(const Table& table, Vec index) {
    return _mm512_castsi512_ps(Lookup<kWide>(table, index));
  }

  // --- The same of bytes ------------------------------------------------------------------------
  static Vec Broadcast(const uint8_t* from) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  template <bool kWide>
  static Table LoadByteTable(const uint8_t* of) {
    return {Broadcast(of), kWide ? Broadcast(of + 16) : _mm512_setzero_si512()};
  }
  template <bool kWide>
  static Vec LookupBytes(const Table& table, Vec index) {
    const Vec low = _mm512_shuffle_epi8(table.low, index);
    if constexpr (kWide) {
      return _mm512_mask_shuffle_epi8(low, _mm512_test_epi8_mask(index, Set1Bytes(16)), table.high,
                                      index);
    } else {
      return low;
    }
  }

  // The largest index whose entry is below the slot; index 0 is not asked.
  struct SearchTable {
    Table table;
    Vec middle;
  };
  template <bool kWide>
  static SearchTable LoadSearch(const uint8_t* before) {
    return {LoadByteTable<kWide>(before), Set1Bytes(before[kWide ? 16 : 8])};
  }
  template <bool kWide>
  static Vec Search(const SearchTable& search, Vec slots) {
    Vec index = _mm512_maskz_mov_epi8(_mm512_cmplt_epu8_mask(search.middle, slots),
                                      Set1Bytes(kWide ? 16 : 8));
    if constexpr (kWide) {
      index = Refine<kWide>(search, slots, index, 8);
    }
    index = Refine<kWide>(search, slots, index, 4);
    index = Refine<kWide>(search, slots, index, 2);
    return Refine<kWide>(search, slots, index, 1);
  }
  template <bool kWide>
  static Vec Refine(const SearchTable& search, Vec slots, Vec index, uint8_t bit) {
    const Vec candidate = Or(index, Set1Bytes(bit));
    const Vec entry = LookupBytes<kWide>(search.table, candidate);
    return _mm512_mask_mov_epi8(index, _mm512_cmplt_epu8_mask(entry, slots), candidate);
  }

#ifdef __AVX512VBMI__
  static constexpr bool kSlotTables = true;
  // What every slot means: 256 bytes are 4 registers.
  struct SlotTables {
    Vec symbols[4];
    Vec freqs[4];
    Vec offsets[4];  // slot - start
  };
  static SlotTables LoadSlots(const Rans8Model& model) {
    alignas(64) uint8_t of[3][256];
    for (uint32_t index = 0, slot = 0; index < model.size; ++index) {
      for (uint8_t i = 0; i < model.freq[index]; ++i, ++slot) {
        of[0][slot] = static_cast<uint8_t>(model.base + index);
        of[1][slot] = model.freq[index];
        of[2][slot] = i;
      }
    }
    SlotTables tables;
    for (int i = 0; i < 4; ++i) {
      tables.symbols[i] = Load(of[0] + 64 * i);
      tables.freqs[i] = Load(of[1] + 64 * i);
      tables.offsets[i] = Load(of[2] + 64 * i);
    }
    return tables;
  }
  static Vec LookupSlots(const Vec* table, Vec slots, __mmask64 upper) {
    return _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(table[0], slots, table[1]),
                                  _mm512_permutex2var_epi8(table[2], slots, table[3]));
  }
  static void FindSlots(const SlotTables& tables, Vec slots, Vec* symbols, Vec* freq, Vec* offset) {
    const __mmask64 upper = _mm512_movepi8_mask(slots);
    *freq = LookupSlots(tables.freqs, slots, upper);
    *offset = LookupSlots(tables.offsets, slots, upper);
    *symbols = LookupSlots(tables.symbols, slots, upper);
  }

  // A window of what decoders read next, loaded before it is known how much of it: lanes pick from
  // it by how many others, from them on, want something too.
  static constexpr bool kWindows = true;
  static constexpr std::ptrdiff_t kByteWindow = 64;
  template <int kVectors>
  static constexpr std::ptrdiff_t kWordWindow = kVectors == 4 ? 128 : 64;

  // The states that are too small take bytes that end at p. Returns where these begin.
  template <int kVectors>
  __attribute__((always_inline)) static const uint8_t* TakeFromWindow8(Vec* x, const uint8_t* p) {
    const Vec window = Load(p - kByteWindow);
    return TakeFromWindow<kVectors, 1, kByteWindow>(x, kRans8Low, p, [&](Vec index) {
      return _mm512_maskz_permutexvar_epi8(0x1111111111111111ULL, index, window);
    });
  }
  template <int kVectors>
  __attribute__((always_inline)) static const uint8_t* TakeFromWindow12(Vec* x, const uint8_t* p) {
    if constexpr (kVectors == 4) {
      const Vec first = Load(p - 128);
      const Vec second = Load(p - 64);
      return TakeFromWindow<kVectors, 2, 64>(x, kRans12Low, p, [&](Vec index) {
        return _mm512_maskz_permutex2var_epi16(0x55555555U, first, index, second);
      });
    } else {
      const Vec window = Load(p - 64);
      return TakeFromWindow<kVectors, 2, 32>(x, kRans12Low, p, [&](Vec index) {
        return _mm512_maskz_permutexvar_epi16(0x55555555U, index, window);
      });
    }
  }
  // pick(index) gives units of kBytes of the window, which has kUnits.
  template <int kVectors, int kBytes, int kUnits, typename Pick>
  __attribute__((always_inline)) static const uint8_t* TakeFromWindow(Vec* x, uint32_t limit,
                                                                      const uint8_t* p,
                                                                      const Pick& pick) {
    // Of element e: bits e to 15.
    const Vec from_here =
        _mm512_setr_epi32(0xFFFF, 0xFFFE, 0xFFFC, 0xFFF8, 0xFFF0, 0xFFE0, 0xFFC0, 0xFF80, 0xFF00,
                          0xFE00, 0xFC00, 0xF800, 0xF000, 0xE000, 0xC000, 0x8000);
    Vec left = Set1(kUnits);  // of the window, in front of what the vectors before take
    size_t taken = 0;
    for (int v = 0; v < kVectors; ++v) {
      const Mask low = Below(x[v], limit);
      taken += static_cast<size_t>(Count(low));
      const Vec lanes = _mm512_broadcastmw_epi32(low);
      const Vec index = _mm512_sub_epi32(left, _mm512_popcnt_epi32(And(lanes, from_here)));
      left = _mm512_sub_epi32(left, _mm512_popcnt_epi32(lanes));
      x[v] = _mm512_mask_or_epi32(x[v], low, _mm512_slli_epi32(x[v], 8 * kBytes), pick(index));
    }
    return p - kBytes * taken;
  }
#else
  static constexpr bool kSlotTables = false;
  static constexpr bool kWindows = false;
#endif

  // --- States ------------------------------------------------------------------------------------
  static Mask Below(Vec x, uint32_t limit) { return _mm512_cmplt_epu32_mask(x, Set1(limit)); }
  static int Count(Mask mask) { return _mm_popcnt_u32(mask); }
  static uint8_t* EmitBytes(Vec* x, Vec limit, uint8_t* out) {
    const Mask full = _mm512_cmpge_epu32_mask(*x, limit);
    Narrow(out, _mm512_maskz_compress_epi32(full, *x));
    *x = _mm512_mask_srli_epi32(*x, full, *x, 8);
    return out + Count(full);
  }
  static Vec TakeBytes(Vec x, Mask low, const uint8_t* p) {
    return _mm512_mask_or_epi32(x, low, _mm512_slli_epi32(x, 8),
                                _mm512_maskz_expand_epi32(low, Widen(p)));
  }
  static Vec Quotient(Vec x, __m512 reciprocal) {
    return _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(x), reciprocal));
  }

  // --- Counts ------------------------------------------------------------------------------------
  // Counters of bytes, one vector a symbol, added up before they overflow.
  template <bool kOthers>
  static void CountWindow(const uint8_t* symbols, size_t n, int first, int width,
                          uint32_t* counts) {
    size_t i = 0;
    while (n - i >= 64) {
      const size_t end = n - i < 64 * 255 ? i + (n - i) / 64 * 64 : i + 64 * 255;
      for (int of = first; of < first + width; of += 8) {
        __m512i seen[8];
        for (auto& s : seen) {
          s = _mm512_setzero_si512();
        }
        for (size_t at = i; at < end; at += 64) {
          const __m512i x = _mm512_loadu_si512(symbols + at);
          for (int s = 0; s < 8; ++s) {
            seen[s] = _mm512_mask_add_epi8(
                seen[s], _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(static_cast<char>(of + s))),
                seen[s], _mm512_set1_epi8(1));
          }
          if (kOthers && of == first) {
            __mmask64 others = _mm512_cmpge_epu8_mask(
                _mm512_sub_epi8(x, _mm512_set1_epi8(static_cast<char>(first))),
                _mm512_set1_epi8(static_cast<char>(width)));
            for (; others != 0; others &= others - 1) {
              ++counts[symbols[at + static_cast<size_t>(__builtin_ctzll(others))]];
            }
          }
        }
        for (int s = 0; s < 8; ++s) {
          counts[of + s] += static_cast<uint32_t>(
              _mm512_reduce_add_epi64(_mm512_sad_epu8(seen[s], _mm512_setzero_si512())));
        }
      }
      i = end;
    }
    for (; i < n; ++i) {
      ++counts[symbols[i]];
    }
  }
};

using Avx512Ops = Rans12Avx512<Avx512Vectors>;

}  // namespace
}  // namespace kvik::codec
