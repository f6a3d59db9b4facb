// SPDX-License-Identifier: Apache-2.0
// codec/kernels/rans12_avx512.h: rANS with probabilities of 12 bits on vectors of 16 lanes. For
// files compiled for AVX-512 only: every one gets its own.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {
namespace {

// Adds to the operations of Vectors (codec/kernels/coder_avx512.h) those of 12 bits.
template <class Vectors>
struct Rans12Avx512 : Vectors {
  using Vec = typename Vectors::Vec;
  using Mask = typename Vectors::Mask;
  static constexpr bool kVectors12 = true;

  // With a source, so that it does not wait for what was in the register.
  static Vec Gather(const void* table, Vec index) {
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xFFFF, index, table, 4);
  }

  // --- Encoding ----------------------------------------------------------------------------------

  // What the encoder needs of a symbol. kEntries 16, 32, 64: tables of registers; 256: of memory.
  template <uint32_t kEntries>
  struct Dividers {
    explicit Dividers(const Rans12Model& model) {
      for (uint32_t s = 0; s < kEntries; ++s) {
        const uint32_t freq = s < model.size && model.freq[s] != 0 ? model.freq[s] : 1;
        freq_start[s] = freq | uint32_t{s < model.size ? model.start[s] : uint16_t{0}} << 16;
        reciprocal[s] = static_cast<float>(1.0 / freq * (1.0 - 0x1.0p-22));
      }
    }
    [[nodiscard]] Vec FreqStart(Vec symbols) const { return Lookup(freq_start, symbols); }
    // Small enough: see EncodeVectors.
    [[nodiscard]] __m512 Reciprocal(Vec symbols, Vec freq) const {
      if constexpr (kEntries <= 64) {
        return _mm512_castsi512_ps(Lookup(reciprocal, symbols));
      } else {
        return _mm512_div_ps(_mm512_set1_ps(1.0F - 0x1.0p-22F), _mm512_cvtepi32_ps(freq));
      }
    }
    static Vec Lookup(const void* table, Vec index) {
      const auto* const from = static_cast<const std::byte*>(table);
      if constexpr (kEntries == 16) {
        return _mm512_permutexvar_epi32(index, Vectors::Load(from));
      } else if constexpr (kEntries == 32) {
        return _mm512_permutex2var_epi32(Vectors::Load(from), index, Vectors::Load(from + 64));
      } else if constexpr (kEntries == 64) {
        return _mm512_mask_blend_epi32(
            _mm512_test_epi32_mask(index, Vectors::Set1(32)),
            _mm512_permutex2var_epi32(Vectors::Load(from), index, Vectors::Load(from + 64)),
            _mm512_permutex2var_epi32(Vectors::Load(from + 128), index, Vectors::Load(from + 192)));
      } else {
        return Gather(table, index);
      }
    }
    alignas(64) uint32_t freq_start[kEntries];
    alignas(64) float reciprocal[kEntries];
  };

  static uint8_t* Encode12(const Rans12Model& model, const uint8_t* symbols, size_t steps,
                           int lanes, uint32_t* states, uint8_t* out) {
    if (model.size <= 16) {
      return Encode12(Dividers<16>(model), symbols, steps, lanes, states, out);
    }
    if (model.size <= 32) {
      return Encode12(Dividers<32>(model), symbols, steps, lanes, states, out);
    }
    if (model.size <= 64) {
      return Encode12(Dividers<64>(model), symbols, steps, lanes, states, out);
    }
    return Encode12(Dividers<256>(model), symbols, steps, lanes, states, out);
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
  static uint8_t* EncodeVectors(const D& dividers, Vec bytes, Vec* x, uint8_t* out) {
    const Vec of = Vectors::And(Vectors::ShiftRightBytes(bytes, kLast), Vectors::Set1(0xFF));
    const Vec freq_start = dividers.FreqStart(of);
    const Vec freq = Vectors::And(freq_start, Vectors::Set1(0xFFFF));
    // x >= freq << 20, for frequencies below 2^12.
    const Mask full = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x[kLast], 20), freq);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x[kLast])));
    out += 2 * Vectors::Count(full);
    const Vec y = _mm512_mask_srli_epi32(x[kLast], full, x[kLast], 16);
    // The quotient is below 2^20, so floats make it at most 1 too small and, with a reciprocal that
    // is small enough, never too large: then the rest is off by a divisor.
    const Vec quotient =
        _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepu32_ps(y), dividers.Reciprocal(of, freq)));
    const Vec rest = _mm512_sub_epi32(y, _mm512_mullo_epi32(quotient, freq));
    const Mask off = _mm512_cmpge_epu32_mask(rest, freq);
    const Vec next = Vectors::Add(Vectors::Add(rest, _mm512_srli_epi32(freq_start, 16)),
                                  _mm512_slli_epi32(quotient, static_cast<int>(kRans12Bits)));
    x[kLast] = _mm512_mask_add_epi32(next, off, next,
                                     _mm512_sub_epi32(Vectors::Set1(1U << kRans12Bits), freq));
    if constexpr (kLast > 0) {
      out = EncodeVectors<kLast - 1>(dividers, bytes, x, out);
    }
    return out;
  }

  // --- Decoding ----------------------------------------------------------------------------------

  // Of symbols that have slots, SlotSearch can tell apart so many.
  static constexpr uint32_t kSearched = 64;

  // What slots mean, by a search over the starts of up to 2^kBits symbols, of 32 slots at a time,
  // in words. States depend on it from step to step, so what counts is how soon the answer is
  // there: every fourth start is compared with side by side, then the three that are left.
  template <int kBits>
  struct SlotSearch {
    static constexpr int kEntries = 1 << kBits;

    struct Table {
      Vec low;
      Vec high;
    };

    explicit SlotSearch(const Rans12Model& model) {
      alignas(64) uint16_t of_symbols[64] = {};
      alignas(64) uint16_t of_freqs[64] = {};
      alignas(64) uint16_t of_starts[64] = {};
      // As compared with slots, which are scaled by 16: 15 above it and more are behind the start.
      uint16_t before[64 + 4];
      for (uint16_t& start : before) {
        start = 0xFFFF;
      }
      size_t entries = 0;
      for (uint32_t s = 0; s < model.size; ++s) {
        if (model.freq[s] != 0) {
          of_symbols[entries] = static_cast<uint16_t>(s);
          of_freqs[entries] = model.freq[s];
          of_starts[entries] = model.start[s];
          before[entries++] = static_cast<uint16_t>(16 * model.start[s] - 15);
        }
      }
      symbol = LoadTable(of_symbols);
      freq = LoadTable(of_freqs);
      starts = LoadTable(of_starts);
      for (int i = 0; i < kEntries / 4 - 1; ++i) {
        coarse[i] = _mm512_set1_epi16(static_cast<int16_t>(before[(i + 1) * 4]));
      }
      for (int i = 0; i < 3; ++i) {
        alignas(64) uint16_t next[64];
        std::memcpy(next, before + i + 1, sizeof(next));
        fine[i] = LoadTable(next);
      }
    }

    static Table LoadTable(const uint16_t* of) {
      return {Vectors::Load(of), kBits > 5 ? Vectors::Load(of + 32) : _mm512_setzero_si512()};
    }
    static Vec Lookup(const Table& table, Vec index) {
      if constexpr (kBits > 5) {
        return _mm512_permutex2var_epi16(table.low, index, table.high);
      } else {
        return _mm512_permutexvar_epi16(index, table.low);
      }
    }

    // words: the low words of states.
    void Find(Vec words, Vec* symbols, Vec* of_freq, Vec* offset) const {
      const Vec slots = _mm512_slli_epi16(words, 4);
      const Vec first = Passed<kEntries / 4 - 1>(
          slots, [&](int i) { return coarse[i]; }, _mm512_set1_epi16(4));
      const Vec index = _mm512_add_epi16(
          first, Passed<3>(
                     slots, [&](int i) { return Lookup(fine[i], first); }, _mm512_set1_epi16(1)));
      *symbols = Lookup(symbol, index);
      *of_freq = Lookup(freq, index);
      *offset =
          _mm512_sub_epi16(Vectors::And(words, _mm512_set1_epi16(0xFFF)), Lookup(starts, index));
    }

    // `each` times how many of the kCount starts(kFirst), ... are not behind the slot. By halves:
    // the compiler keeps no loop of it.
    template <int kCount, int kFirst = 0, typename Starts>
    static Vec Passed(Vec slots, const Starts& starts, Vec each) {
      if constexpr (kCount == 1) {
        return _mm512_min_epu16(_mm512_subs_epu16(slots, starts(kFirst)), each);
      } else {
        constexpr int kHalf = kCount / 2;
        return _mm512_add_epi16(Passed<kHalf, kFirst>(slots, starts, each),
                                Passed<kCount - kHalf, kFirst + kHalf>(slots, starts, each));
      }
    }

    Table symbol;
    Table freq;
    Table starts;
    Vec coarse[kEntries / 4 - 1];
    Table fine[3];
  };

  // Whether Decode12 is the way to decode n symbols.
  static bool Decodes12(size_t /*n*/) { return true; }
  // Whether Decode12 needs a table of all slots for n symbols: gathers are as fast as a search
  // among many symbols, but the table has to be filled.
  static bool NeedsSlots(const Rans12Model& model, size_t n) {
    return n >= 8192 || Present(model) > kSearched;
  }
  // Symbols that come at all.
  static uint32_t Present(const Rans12Model& model) {
    uint32_t present = 0;
    for (uint32_t s = 0; s < model.size; ++s) {
      present += model.freq[s] != 0 ? 1 : 0;
    }
    return present;
  }

  // Decodes whole steps of n symbols. Null when the bytes [begin, p) run out. `slots`: as FillSlots
  // of Rans12Kernel makes them, if it needs them.
  static const uint8_t* Decode12(const Rans12Model& model, const uint32_t* slots, uint8_t* symbols,
                                 size_t n, size_t steps, int lanes, uint32_t* states,
                                 const uint8_t* begin, const uint8_t* p) {
    if (NeedsSlots(model, n)) {
      return Decode12<SlotMemory>({slots}, symbols, steps, lanes, states, begin, p);
    }
    const uint32_t present = Present(model);
    if (present <= 16) {
      return Decode12<SlotSearch<4>>(SlotSearch<4>(model), symbols, steps, lanes, states, begin, p);
    }
    if (present <= 32) {
      return Decode12<SlotSearch<5>>(SlotSearch<5>(model), symbols, steps, lanes, states, begin, p);
    }
    return Decode12<SlotSearch<6>>(SlotSearch<6>(model), symbols, steps, lanes, states, begin, p);
  }
  struct SlotMemory {
    const uint32_t* slots;
  };

  template <typename Slots>
  static const uint8_t* Decode12(const Slots& slots, uint8_t* symbols, size_t steps, int lanes,
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
  template <int kVectors, typename Slots>
  static const uint8_t* Decode12Steps(const Slots& slots, uint8_t* symbols, size_t steps,
                                      uint32_t* states, const uint8_t* begin, const uint8_t* p) {
    Vec x[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      x[v] = Vectors::Load(states + 16 * v);
    }
    size_t step = 0;
    if constexpr (Vectors::kWindows) {
      for (; step < steps && p - begin >= Vectors::template kWordWindow<kVectors>; ++step) {
        Advance<kVectors>(slots, x, symbols + step * 16 * kVectors);
        p = Vectors::template TakeFromWindow12<kVectors>(x, p);
      }
    }
    for (; step < steps; ++step) {
      Advance<kVectors>(slots, x, symbols + step * 16 * kVectors);
      Mask low[kVectors];
      int wanted[kVectors];
      int total = 0;
      for (int v = 0; v < kVectors; ++v) {
        low[v] = Vectors::Below(x[v], kRans12Low);
        wanted[v] = 2 * Vectors::Count(low[v]);
        total += wanted[v];
      }
      if (total > p - begin) {
        return nullptr;
      }
      for (int v = 0; v < kVectors; ++v) {
        p -= wanted[v];
        const Vec words =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        x[v] = _mm512_mask_or_epi32(x[v], low[v], _mm512_slli_epi32(x[v], 16),
                                    _mm512_maskz_expand_epi32(low[v], words));
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      Vectors::Store(states + 16 * v, x[v]);
    }
    return p;
  }

  // The symbols of a step, and the states without them.
  template <int kVectors>
  __attribute__((always_inline)) static void Advance(const SlotMemory& memory, Vec* x,
                                                     uint8_t* symbols) {
    const Vec slot_mask = Vectors::Set1((1U << kRans12Bits) - 1);
    Vec found[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      found[v] = Gather(memory.slots, Vectors::And(x[v], slot_mask));
      x[v] = Next(x[v], Vectors::And(_mm512_srli_epi32(found[v], 8), slot_mask),
                  _mm512_srli_epi32(found[v], 20));
    }
    Vectors::template StoreStep<kVectors>(symbols, Vectors::template LowBytes<kVectors>(found));
  }
  template <int kVectors, int kBits>
  __attribute__((always_inline)) static void Advance(const SlotSearch<kBits>& search, Vec* x,
                                                     uint8_t* symbols) {
    // Two vectors of states make one of words.
    constexpr int kPairs = (kVectors + 1) / 2;
    Vec found[kPairs];
    found[0] = AdvancePair<kVectors, kPairs>(search, x);
    if constexpr (kPairs > 1) {
      found[1] = AdvancePair<kVectors, kPairs>(search, x + 1);
    }
    if constexpr (kVectors == 4) {
      // Bytes 0 and 2 of an element and 1 and 3: those of vectors 0, 2 and 1, 3.
      Vectors::Store(symbols, Vectors::Or(found[0], _mm512_slli_epi32(found[1], 8)));
    } else {
      Vectors::Narrow(symbols, found[0]);
      if constexpr (kVectors == 2) {
        Vectors::Narrow(symbols + 16, _mm512_srli_epi32(found[0], 16));
      }
    }
  }
  // The symbols of x[0] and, in the high words, x[kPairs].
  template <int kVectors, int kPairs, int kBits>
  __attribute__((always_inline)) static Vec AdvancePair(const SlotSearch<kBits>& search, Vec* x) {
    const Vec low_word = Vectors::Set1(0xFFFF);
    Vec words = x[0];
    if constexpr (kVectors > 1) {
      // 0xCA: a ? b : c, bit by bit.
      words = _mm512_ternarylogic_epi32(low_word, x[0], _mm512_slli_epi32(x[kPairs], 16), 0xCA);
    }
    Vec symbols;
    Vec freq;
    Vec offset;
    search.Find(words, &symbols, &freq, &offset);
    x[0] = Next(x[0], Vectors::And(freq, low_word), Vectors::And(offset, low_word));
    if constexpr (kVectors > 1) {
      x[kPairs] = Next(x[kPairs], _mm512_srli_epi32(freq, 16), _mm512_srli_epi32(offset, 16));
    }
    return symbols;
  }
  static Vec Next(Vec x, Vec freq, Vec offset) {
    return Vectors::Add(
        _mm512_mullo_epi32(_mm512_srli_epi32(x, static_cast<int>(kRans12Bits)), freq), offset);
  }
};

}  // namespace
}  // namespace kvik::codec
