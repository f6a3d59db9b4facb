// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "codec/kernels/coder_kernels.h"
#include "codec/kernels/pack_inl.h"
#include "codec/kernels/rans12_avx2.h"
#include "codec/kernels/rans12_inl.h"
#include "codec/kernels/rans8_inl.h"

namespace kvik::codec {
namespace {

// Of every set of 8 bits: where its bits are, in ascending order, and for every bit how many are
// set below it.
struct BitOrders {
  alignas(64) uint8_t places[256][8];
  alignas(64) uint8_t ranks[256][8];
};
constexpr BitOrders MakeBitOrders() {
  BitOrders orders{};
  for (int mask = 0; mask < 256; ++mask) {
    uint8_t rank = 0;
    for (uint8_t bit = 0; bit < 8; ++bit) {
      orders.ranks[mask][bit] = rank;
      if ((mask >> bit & 1) != 0) {
        orders.places[mask][rank++] = bit;
      }
    }
  }
  return orders;
}
constexpr BitOrders kBitOrders = MakeBitOrders();

struct Avx2Vectors {
  static constexpr bool kVectors = true;
  static constexpr bool kSlotTables = false;
  static constexpr bool kWindows = false;
  struct Vec {
    __m256i a;  // elements 0..7
    __m256i b;  // elements 8..15
  };
  struct Mask {
    Vec elements;
    uint32_t bits;
  };

  static const uint8_t* BitOrderPlaces(uint32_t mask) { return kBitOrders.places[mask]; }
  static const uint8_t* BitOrderRanks(uint32_t mask) { return kBitOrders.ranks[mask]; }

  static __m256i Load256(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static void Store256(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
  static __m128i Load64(const void* from) {
    return _mm_loadl_epi64(static_cast<const __m128i*>(from));
  }
  static Vec Load(const void* from) {
    const auto* bytes = static_cast<const std::byte*>(from);
    return {Load256(bytes), Load256(bytes + 32)};
  }
  static void Store(void* to, Vec x) {
    auto* bytes = static_cast<std::byte*>(to);
    Store256(bytes, x.a);
    Store256(bytes + 32, x.b);
  }
  static Vec Both(__m256i x) { return {x, x}; }
  static Vec Set1(uint32_t x) { return Both(_mm256_set1_epi32(static_cast<int>(x))); }
  static Vec Set1Bytes(uint8_t x) { return Both(_mm256_set1_epi8(static_cast<char>(x))); }
  static Vec Add(Vec x, Vec y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static Vec And(Vec x, Vec y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
  static Vec Or(Vec x, Vec y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
  static Vec Xor(Vec x, Vec y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
  static Vec Madd(Vec x, Vec y) {
    return {_mm256_madd_epi16(x.a, y.a), _mm256_madd_epi16(x.b, y.b)};
  }
  static Vec AddBytes(Vec x, Vec y) {
    return {_mm256_add_epi8(x.a, y.a), _mm256_add_epi8(x.b, y.b)};
  }
  static Vec SubBytes(Vec x, Vec y) {
    return {_mm256_sub_epi8(x.a, y.a), _mm256_sub_epi8(x.b, y.b)};
  }
  static __m256i ZeroBytesAbove(__m256i x, __m256i last) {
    return _mm256_and_si256(x, _mm256_cmpeq_epi8(_mm256_max_epu8(x, last), last));
  }
  static Vec ZeroBytesAbove(Vec x, Vec last) {
    return {ZeroBytesAbove(x.a, last.a), ZeroBytesAbove(x.b, last.b)};
  }
  static Vec ShiftRightBytes(Vec x, int bytes) {
    switch (bytes) {
      case 1:
        return {_mm256_srli_epi32(x.a, 8), _mm256_srli_epi32(x.b, 8)};
      case 2:
        return {_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16)};
      case 3:
        return {_mm256_srli_epi32(x.a, 24), _mm256_srli_epi32(x.b, 24)};
      default:
        return x;
    }
  }
  template <int kBits>
  static Vec ShiftLeft(Vec x) {
    return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
  }

  // --- Steps of 16, 32, 64 symbols: byte v of element e is the symbol of lane 16 v + e -----------
  static Vec Widen(const uint8_t* from) {
    return {_mm256_cvtepu8_epi32(Load64(from)), _mm256_cvtepu8_epi32(Load64(from + 8))};
  }
  // The low bytes of 8 elements, in the low half.
  static __m128i Narrow(__m256i x) {
    const __m256i low =
        _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                   0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  }
  static void Narrow(uint8_t* to, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi64(Narrow(x.a), Narrow(x.b)));
  }
  template <int kVectors>
  static Vec LoadStep(const uint8_t* symbols) {
    if constexpr (kVectors == 4) {
      return Load(symbols);
    } else if constexpr (kVectors == 2) {
      return Or(Widen(symbols), ShiftLeft<8>(Widen(symbols + 16)));
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
        Narrow(symbols + 16, ShiftRightBytes(bytes, 1));
      }
    }
  }
  template <int kVectors>
  static Vec LowBytes(const Vec* x) {
    if constexpr (kVectors == 4) {
      const Vec low = Set1(0xFF);
      const Vec even = Or(And(x[0], low), ShiftLeft<8>(And(x[1], low)));
      const Vec odd = Or(ShiftLeft<16>(And(x[2], low)), ShiftLeft<24>(x[3]));
      return Or(even, odd);
    } else if constexpr (kVectors == 2) {
      return Or(And(x[0], Set1(0xFF)), ShiftLeft<8>(x[1]));
    } else {
      return x[0];
    }
  }

  // --- Tables of 16 or 32 entries, by the low bits of an element ---------------------------------
  struct Table {
    __m256i part[4];
  };
  template <bool kWide>
  static Table LoadTable(const void* of) {
    const auto* from = static_cast<const std::byte*>(of);
    Table table{};
    for (int i = 0; i < (kWide ? 4 : 2); ++i) {
      table.part[i] = Load256(from + 32 * i);
    }
    return table;
  }
  template <bool kWide>
  static __m256i Lookup(const Table& table, __m256i index) {
    const auto pick = [&](int i) {
      return _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(table.part[i], index));
    };
    const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    __m256 found = _mm256_blendv_ps(pick(0), pick(1), bit3);
    if constexpr (kWide) {
      found = _mm256_blendv_ps(found, _mm256_blendv_ps(pick(2), pick(3), bit3),
                               _mm256_castsi256_ps(_mm256_slli_epi32(index, 27)));
    }
    return _mm256_castps_si256(found);
  }
  template <bool kWide>
  static Vec Lookup(const Table& table, Vec index) {
    return {Lookup<kWide>(table, index.a), Lookup<kWide>(table, index.b)};
  }
  template <bool kWide>
  static Vec LookupFloat(const Table& table, Vec index) {
    return Lookup<kWide>(table, index);
  }

  // --- The same of bytes ------------------------------------------------------------------------
  struct ByteTable {
    __m256i low;
    __m256i high;
  };
  static __m256i Broadcast(const uint8_t* from) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  template <bool kWide>
  static ByteTable LoadByteTable(const uint8_t* of) {
    return {Broadcast(of), kWide ? Broadcast(of + 16) : _mm256_setzero_si256()};
  }
  template <bool kWide>
  static __m256i LookupBytes(const ByteTable& table, __m256i index) {
    const __m256i low = _mm256_shuffle_epi8(table.low, index);
    if constexpr (kWide) {
      // Bit 4 becomes the sign of its byte; what the shift carries along ends below it.
      return _mm256_blendv_epi8(low, _mm256_shuffle_epi8(table.high, index),
                                _mm256_slli_epi32(index, 3));
    } else {
      return low;
    }
  }
  template <bool kWide>
  static Vec LookupBytes(const ByteTable& table, Vec index) {
    return {LookupBytes<kWide>(table, index.a), LookupBytes<kWide>(table, index.b)};
  }

  // The largest index whose entry is below the slot; index 0 is not asked. Bytes compare signed
  // here, so both have their top bit flipped.
  struct SearchTable {
    ByteTable table;
    __m256i middle;
  };
  template <bool kWide>
  static SearchTable LoadSearch(const uint8_t* before) {
    ByteTable table = LoadByteTable<kWide>(before);
    const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
    table.low = _mm256_xor_si256(table.low, top);
    table.high = _mm256_xor_si256(table.high, top);
    return {table, _mm256_set1_epi8(static_cast<char>(before[kWide ? 16 : 8] ^ 0x80))};
  }
  template <bool kWide>
  static __m256i Search(const SearchTable& search, __m256i slots) {
    slots = _mm256_xor_si256(slots, _mm256_set1_epi8(static_cast<char>(0x80)));
    __m256i index =
        _mm256_and_si256(_mm256_cmpgt_epi8(slots, search.middle), _mm256_set1_epi8(kWide ? 16 : 8));
    if constexpr (kWide) {
      index = Refine<kWide>(search, slots, index, 8);
    }
    index = Refine<kWide>(search, slots, index, 4);
    index = Refine<kWide>(search, slots, index, 2);
    return Refine<kWide>(search, slots, index, 1);
  }
  template <bool kWide>
  static __m256i Refine(const SearchTable& search, __m256i slots, __m256i index, char bit) {
    const __m256i step = _mm256_set1_epi8(bit);
    const __m256i entry = LookupBytes<kWide>(search.table, _mm256_or_si256(index, step));
    return _mm256_or_si256(index, _mm256_and_si256(_mm256_cmpgt_epi8(slots, entry), step));
  }
  template <bool kWide>
  static Vec Search(const SearchTable& search, Vec slots) {
    return {Search<kWide>(search, slots.a), Search<kWide>(search, slots.b)};
  }

  // --- States (below 2^20: signed comparisons do) ------------------------------------------------
  static uint32_t Bits(__m256i elements) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(elements)));
  }
  static Mask Below(Vec x, uint32_t limit) {
    const Vec bound = Set1(limit);
    const Vec below = {_mm256_cmpgt_epi32(bound.a, x.a), _mm256_cmpgt_epi32(bound.b, x.b)};
    return {below, Bits(below.a) | Bits(below.b) << 8};
  }
  static int Count(const Mask& mask) { return _mm_popcnt_u32(mask.bits); }
  static uint8_t* EmitBytes(__m256i* x, __m256i limit, uint8_t* out) {
    const __m256i rests = _mm256_cmpgt_epi32(limit, *x);
    const uint32_t full = Bits(rests) ^ 0xFF;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out),
                     _mm_shuffle_epi8(Narrow(*x), Load64(kBitOrders.places[full])));
    *x = _mm256_blendv_epi8(_mm256_srli_epi32(*x, 8), *x, rests);
    return out + _mm_popcnt_u32(full);
  }
  static uint8_t* EmitBytes(Vec* x, Vec limit, uint8_t* out) {
    out = EmitBytes(&x->a, limit.a, out);
    return EmitBytes(&x->b, limit.b, out);
  }
  static __m256i TakeBytes(__m256i x, __m256i low, uint32_t bits, const uint8_t* p) {
    const __m256i bytes =
        _mm256_cvtepu8_epi32(_mm_shuffle_epi8(Load64(p), Load64(kBitOrders.ranks[bits])));
    return _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 8), bytes), low);
  }
  static Vec TakeBytes(Vec x, const Mask& low, const uint8_t* p) {
    const uint32_t first = low.bits & 0xFF;
    return {TakeBytes(x.a, low.elements.a, first, p),
            TakeBytes(x.b, low.elements.b, low.bits >> 8, p + _mm_popcnt_u32(first))};
  }
  static __m256i Quotient(__m256i x, __m256i reciprocal) {
    return _mm256_cvttps_epi32(
        _mm256_mul_ps(_mm256_cvtepi32_ps(x), _mm256_castsi256_ps(reciprocal)));
  }
  static Vec Quotient(Vec x, Vec reciprocal) {
    return {Quotient(x.a, reciprocal.a), Quotient(x.b, reciprocal.b)};
  }

  // --- Counts ------------------------------------------------------------------------------------
  // Counters of bytes, one vector a symbol, added up before they overflow.
  template <bool kOthers>
  static void CountWindow(const uint8_t* symbols, size_t n, int first, int width,
                          uint32_t* counts) {
    size_t i = 0;
    while (n - i >= 32) {
      const size_t end = n - i < 32 * 255 ? i + (n - i) / 32 * 32 : i + 32 * 255;
      for (int of = first; of < first + width; of += 8) {
        __m256i seen[8];
        for (auto& s : seen) {
          s = _mm256_setzero_si256();
        }
        for (size_t at = i; at < end; at += 32) {
          const __m256i x = Load256(symbols + at);
          for (int s = 0; s < 8; ++s) {
            seen[s] = _mm256_sub_epi8(
                seen[s], _mm256_cmpeq_epi8(x, _mm256_set1_epi8(static_cast<char>(of + s))));
          }
          if (kOthers && of == first) {
            const __m256i index = _mm256_sub_epi8(x, _mm256_set1_epi8(static_cast<char>(first)));
            const __m256i last = _mm256_set1_epi8(static_cast<char>(width - 1));
            auto others = ~static_cast<uint32_t>(
                _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(index, last), last)));
            for (; others != 0; others &= others - 1) {
              ++counts[symbols[at + static_cast<size_t>(__builtin_ctz(others))]];
            }
          }
        }
        for (int s = 0; s < 8; ++s) {
          alignas(32) uint64_t sum[4];
          _mm256_store_si256(reinterpret_cast<__m256i*>(sum),
                             _mm256_sad_epu8(seen[s], _mm256_setzero_si256()));
          counts[of + s] += static_cast<uint32_t>(sum[0] + sum[1] + sum[2] + sum[3]);
        }
      }
      i = end;
    }
    for (; i < n; ++i) {
      ++counts[symbols[i]];
    }
  }
};

using Avx2Ops = Rans12Avx2<Avx2Vectors>;

}  // namespace

const CoderKernels kCoderKernelsAvx2 = {
    Isa::kAvx2,
    PackKernel<Avx2Ops>::Pack,
    PackKernel<Avx2Ops>::Unpack,
    PackKernel<Avx2Ops>::Histogram,
    PackKernel<Avx2Ops>::Largest,
    Rans8Kernel<Avx2Ops>::Encode,
    Rans12Kernel<Avx2Ops>::Encode,
    Rans8Kernel<Avx2Ops>::Decode,
    Rans12Kernel<Avx2Ops>::Decode,
};

}  // namespace kvik::codec
