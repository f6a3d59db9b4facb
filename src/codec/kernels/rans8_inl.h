// SPDX-License-Identifier: Apache-2.0
// codec/kernels/rans8_inl.h: rANS with probabilities of 8 bits, the part every ISA compiles for
// itself. `Ops` is a type of an unnamed namespace and makes every function local to its file; with
// Ops::kVectors it has the operations on vectors of 16 lanes that VectorEncode and VectorDecode ask
// for.
//
// What makes it fast: a step has no branch, a state's slot is looked up by a binary search over the
// bytes of all lanes at once, and every table fits a register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {

template <typename Ops>
struct Rans8Kernel {
  // The symbol of a step that `lane` codes.
  static int PositionOf(int lane, int lanes) {
    return lanes == kMaxLanes ? 4 * (lane % 16) + lane / 16 : lane;
  }

  // --- One symbol at a time ----------------------------------------------------------------------

  static uint8_t Index(const Rans8Model& model, uint8_t symbol) {
    const auto index = static_cast<uint8_t>(symbol - model.base);
    return index < model.size ? index : uint8_t{0};
  }

  // A step of `present` symbols, at most one a lane.
  static uint8_t* EncodeStep(const Rans8Model& model, const uint8_t* symbols, int present,
                             int lanes, uint32_t* states, uint8_t* out) {
    for (int first = (lanes - 1) / 16 * 16; first >= 0; first -= 16) {
      const int end = first + 16 < lanes ? first + 16 : lanes;
      for (int lane = first; lane < end; ++lane) {
        const int at = PositionOf(lane, lanes);
        if (at >= present) {
          continue;
        }
        const uint8_t index = Index(model, symbols[at]);
        const uint32_t freq = model.freq[index];
        uint32_t x = states[lane];
        if (x >= freq << 12) {
          *out++ = static_cast<uint8_t>(x);
          x >>= 8;
        }
        states[lane] = ((x / freq) << kRans8Bits) + x % freq + model.start[index];
      }
    }
    return out;
  }

  // Null when the bytes [begin, p) run out.
  static const uint8_t* DecodeStep(const Rans8Model& model, uint8_t* symbols, int present,
                                   int lanes, uint32_t* states, const uint8_t* begin,
                                   const uint8_t* p) {
    for (int first = 0; first < lanes; first += 16) {
      const int end = first + 16 < lanes ? first + 16 : lanes;
      for (int lane = end - 1; lane >= first; --lane) {
        const int at = PositionOf(lane, lanes);
        if (at >= present) {
          continue;
        }
        uint32_t x = states[lane];
        const uint32_t slot = x & 0xFF;
        int index = 0;
        while (index + 1 < model.size && slot - model.start[index] >= model.freq[index]) {
          ++index;
        }
        symbols[at] = static_cast<uint8_t>(model.base + index);
        x = model.freq[index] * (x >> kRans8Bits) + slot - model.start[index];
        if (x < kRans8Low) {
          if (p == begin) {
            return nullptr;
          }
          x = (x << 8) | *--p;
        }
        states[lane] = x;
      }
    }
    return p;
  }

  // What a decoder needs of a slot.
  struct Slot {
    uint8_t symbol;
    uint8_t freq;
    uint16_t offset;  // from the symbol's first slot
  };
  static void FillSlots(const Rans8Model& model, Slot* slots) {
    for (uint32_t index = 0; index < model.size; ++index) {
      for (uint32_t i = 0; i < model.freq[index]; ++i) {
        slots[model.start[index] + i] = {static_cast<uint8_t>(model.base + index),
                                         model.freq[index], static_cast<uint16_t>(i)};
      }
    }
  }

  struct Divider {  // x / freq = (x * reciprocal) >> 32 for x < 2^20
    uint64_t reciprocal;
    uint32_t freq;
    uint32_t start;
  };
  static void FillDividers(const Rans8Model& model, Divider* dividers) {
    for (int index = 0; index < kRans8Symbols; ++index) {
      const uint32_t freq = index < model.size ? model.freq[index] : 0;
      // Rounded up: off by less than 2^20 / 2^32 of a unit, and no quotient is that close below a
      // whole one.
      dividers[index] = {freq == 0 ? 0 : ((uint64_t{1} << 32) + freq - 1) / freq, freq,
                         model.start[index]};
    }
  }

  template <int kLanes>
  static uint8_t* ScalarEncode(const Rans8Source& source, size_t steps, uint32_t* states,
                               uint8_t* out) {
    Divider dividers[kRans8Symbols];
    FillDividers(*source.model, dividers);
    uint32_t x[kLanes];
    std::memcpy(x, states, sizeof(x));
    for (size_t step = steps; step-- > 0;) {
      const uint8_t* symbols = source.symbols + step * kLanes;
      for (int first = (kLanes - 1) / 16 * 16; first >= 0; first -= 16) {
        for (int lane = first; lane < first + 16 && lane < kLanes; ++lane) {
          const Divider& d = dividers[Index(*source.model, symbols[PositionOf(lane, kLanes)])];
          // No branches, and nothing a compiler makes some of: they could not be predicted. Few
          // lanes wait for their states: the quotient of what is left is that of all, shifted.
          *out = static_cast<uint8_t>(x[lane]);
          const uint32_t full = ((d.freq << 12) - 1 - x[lane]) >> 31;
          out += full;
          const auto quotient = static_cast<uint32_t>((x[lane] * d.reciprocal) >> 32) >> (8 * full);
          const uint32_t y = x[lane] >> (8 * full);
          x[lane] = y + d.start + quotient * (256 - d.freq);
        }
      }
    }
    std::memcpy(states, x, sizeof(x));
    return out;
  }

  template <int kLanes>
  static const uint8_t* ScalarDecode(const Rans8Target& target, size_t steps, uint32_t* states,
                                     const uint8_t* begin, const uint8_t* p) {
    Slot slots[256];
    FillSlots(*target.model, slots);
    uint32_t x[kLanes];
    std::memcpy(x, states, sizeof(x));
    size_t step = 0;
    for (; step < steps && p - begin >= kLanes; ++step) {
      uint8_t* symbols = target.symbols + step * kLanes;
      for (int first = 0; first < kLanes; first += 16) {
        for (int lane = (first + 16 < kLanes ? first + 16 : kLanes) - 1; lane >= first; --lane) {
          const Slot slot = slots[x[lane] & 0xFF];
          symbols[PositionOf(lane, kLanes)] = slot.symbol;
          const uint32_t y = slot.freq * (x[lane] >> kRans8Bits) + slot.offset;
          // The byte is there before it is known to be wanted.
          const uint32_t more = y << 8 | p[-1];
          const uint32_t low = (y - kRans8Low) >> 31;
          p -= low;
          x[lane] = y + ((more - y) & (0U - low));
        }
      }
    }
    std::memcpy(states, x, sizeof(x));
    for (; step < steps; ++step) {
      p = DecodeStep(*target.model, target.symbols + step * kLanes, kLanes, kLanes, states, begin,
                     p);
      if (p == nullptr) {
        return nullptr;
      }
    }
    return p;
  }

  // --- Vectors of 16 lanes -----------------------------------------------------------------------

  template <int kVectors>
  static uint8_t* VectorEncode(const Rans8Source& source, size_t steps, uint32_t* states,
                               uint8_t* out) {
    const Rans8Model& model = *source.model;
    // q = x / freq by a product of floats: with a reciprocal that is not too small whole quotients
    // are reached, and the next one is at least 1 / 255 away while the error is below 2^-9.
    alignas(64) uint32_t steps_of[kRans8Symbols];  // 256 - freq, start << 16
    alignas(64) uint32_t limits[kRans8Symbols];    // freq << 12
    alignas(64) float reciprocals[kRans8Symbols];
    for (int i = 0; i < kRans8Symbols; ++i) {
      const uint32_t freq = i < model.size && model.freq[i] != 0 ? model.freq[i] : 1;
      steps_of[i] = (256 - freq) | uint32_t{model.start[i]} << 16;
      limits[i] = freq << 12;
      reciprocals[i] = (1.0F / static_cast<float>(freq)) * (1.0F + 0x1.0p-22F);
    }
    return model.size <= 16 ? VectorEncodeSteps<kVectors, false>(source, steps, steps_of, limits,
                                                                 reciprocals, states, out)
                            : VectorEncodeSteps<kVectors, true>(source, steps, steps_of, limits,
                                                                reciprocals, states, out);
  }

  template <int kVectors, bool kWide>
  static uint8_t* VectorEncodeSteps(const Rans8Source& source, size_t steps,
                                    const uint32_t* steps_of, const uint32_t* limits,
                                    const float* reciprocals, uint32_t* states, uint8_t* out) {
    using Vec = typename Ops::Vec;
    constexpr int kLanes = 16 * kVectors;
    const auto step_table = Ops::template LoadTable<kWide>(steps_of);
    const auto limit_table = Ops::template LoadTable<kWide>(limits);
    const auto reciprocal_table = Ops::template LoadTable<kWide>(reciprocals);
    const Vec base = Ops::Set1Bytes(source.model->base);
    const Vec last = Ops::Set1Bytes(static_cast<uint8_t>(source.model->size - 1));
    const Vec one = Ops::Set1(0x10000);
    Vec x[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      x[v] = Ops::Load(states + 16 * v);
    }
    for (size_t step = steps; step-- > 0;) {
      Vec bytes = Ops::template LoadStep<kVectors>(source.symbols + step * kLanes);
      bytes = Ops::SubBytes(bytes, base);
      bytes = Ops::ZeroBytesAbove(bytes, last);
      for (int v = kVectors - 1; v >= 0; --v) {
        const Vec index = Ops::ShiftRightBytes(bytes, v);
        const Vec step_of = Ops::template Lookup<kWide>(step_table, index);
        const Vec limit = Ops::template Lookup<kWide>(limit_table, index);
        const auto reciprocal = Ops::template LookupFloat<kWide>(reciprocal_table, index);
        out = Ops::EmitBytes(&x[v], limit, out);
        const Vec quotient = Ops::Quotient(x[v], reciprocal);
        x[v] = Ops::Add(x[v], Ops::Madd(Ops::Or(quotient, one), step_of));
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      Ops::Store(states + 16 * v, x[v]);
    }
    return out;
  }

  template <int kVectors>
  static const uint8_t* VectorDecode(const Rans8Target& target, size_t steps, uint32_t* states,
                                     const uint8_t* begin, const uint8_t* p) {
    if constexpr (Ops::kSlotTables) {
      return VectorDecodeSteps<kVectors>(SlotTables(*target.model), target, steps, states, begin,
                                         p);
    } else if (target.model->size <= 16) {
      return VectorDecodeSteps<kVectors>(SlotSearch<false>(*target.model), target, steps, states,
                                         begin, p);
    } else {
      return VectorDecodeSteps<kVectors>(SlotSearch<true>(*target.model), target, steps, states,
                                         begin, p);
    }
  }

  // What the slots of a step mean, by a binary search over the starts.
  template <bool kWide>
  struct SlotSearch {
    using Vec = typename Ops::Vec;
    explicit SlotSearch(const Rans8Model& model)
        : freqs(Ops::template LoadByteTable<kWide>(model.freq)),
          starts(Ops::template LoadByteTable<kWide>(model.start)),
          base(Ops::Set1Bytes(model.base)) {
      // The search wants the last slot before an index, for which 255 is "never".
      alignas(64) uint8_t before[kRans8Symbols];
      for (int i = 0; i < kRans8Symbols; ++i) {
        before[i] = i < model.size && !(i > 0 && model.start[i] == 0)
                        ? static_cast<uint8_t>(model.start[i] - 1)
                        : uint8_t{255};
      }
      search = Ops::template LoadSearch<kWide>(before);
    }
    void Find(Vec slots, Vec* symbols, Vec* freq, Vec* offset) const {
      const Vec index = Ops::template Search<kWide>(search, slots);
      *freq = Ops::template LookupBytes<kWide>(freqs, index);
      *offset = Ops::SubBytes(slots, Ops::template LookupBytes<kWide>(starts, index));
      *symbols = Ops::AddBytes(index, base);
    }
    decltype(Ops::template LoadByteTable<kWide>(nullptr)) freqs;
    decltype(Ops::template LoadByteTable<kWide>(nullptr)) starts;
    Vec base;
    decltype(Ops::template LoadSearch<kWide>(nullptr)) search;
  };
  // The same by tables of all slots.
  struct SlotTables {
    using Vec = typename Ops::Vec;
    explicit SlotTables(const Rans8Model& model) : tables(Ops::LoadSlots(model)) {}
    void Find(Vec slots, Vec* symbols, Vec* freq, Vec* offset) const {
      Ops::FindSlots(tables, slots, symbols, freq, offset);
    }
    decltype(Ops::LoadSlots(Rans8Model{})) tables;
  };

  template <int kVectors, typename Slots>
  static const uint8_t* VectorDecodeSteps(const Slots& of_slots, const Rans8Target& target,
                                          size_t steps, uint32_t* states, const uint8_t* begin,
                                          const uint8_t* p) {
    using Vec = typename Ops::Vec;
    constexpr int kLanes = 16 * kVectors;
    Vec x[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      x[v] = Ops::Load(states + 16 * v);
    }
    size_t step = 0;
    if constexpr (Ops::kWindows) {
      for (; step < steps && p - begin >= Ops::kByteWindow; ++step) {
        Advance<kVectors>(of_slots, x, target.symbols + step * kLanes);
        p = Ops::template TakeFromWindow8<kVectors>(x, p);
      }
    }
    for (; step < steps; ++step) {
      Advance<kVectors>(of_slots, x, target.symbols + step * kLanes);
      typename Ops::Mask low[kVectors];
      int wanted[kVectors];
      int total = 0;
      for (int v = 0; v < kVectors; ++v) {
        low[v] = Ops::Below(x[v], kRans8Low);
        wanted[v] = Ops::Count(low[v]);
        total += wanted[v];
      }
      if (total > p - begin) {
        return nullptr;
      }
      for (int v = 0; v < kVectors; ++v) {
        p -= wanted[v];
        x[v] = Ops::TakeBytes(x[v], low[v], p);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      Ops::Store(states + 16 * v, x[v]);
    }
    return p;
  }

  // The symbols of a step, and the states without them.
  template <int kVectors, typename Slots, typename Vec>
  __attribute__((always_inline)) static void Advance(const Slots& of_slots, Vec* x,
                                                     uint8_t* symbols) {
    const Vec low_byte = Ops::Set1(0xFF);
    Vec found;
    Vec freq;
    Vec offset;
    of_slots.Find(Ops::template LowBytes<kVectors>(x), &found, &freq, &offset);
    Ops::template StoreStep<kVectors>(symbols, found);
    for (int v = 0; v < kVectors; ++v) {
      const Vec f = Ops::And(Ops::ShiftRightBytes(freq, v), low_byte);
      const Vec o = Ops::And(Ops::ShiftRightBytes(offset, v), low_byte);
      x[v] = Ops::Add(Ops::Madd(Ops::ShiftRightBytes(x[v], 1), f), o);
    }
  }

  // --- Segments ----------------------------------------------------------------------------------

  static uint8_t* Encode(const Rans8Source* sources, size_t count, int lanes, uint32_t* states,
                         uint8_t* out) {
    if constexpr (Ops::kVectors) {
      if (lanes < 16) {
        return kCoderKernelsScalar.rans8_encode(sources, count, lanes, states, out);
      }
    }
    for (size_t i = count; i-- > 0;) {
      const Rans8Source& source = sources[i];
      const size_t steps = source.n / static_cast<size_t>(lanes);
      const size_t done = steps * static_cast<size_t>(lanes);
      if (done < source.n) {
        out = EncodeStep(*source.model, source.symbols + done, static_cast<int>(source.n - done),
                         lanes, states, out);
      }
      if (steps == 0) {
        continue;
      }
      switch (lanes) {
        case 64:
          out = Steps<4>::Encode(source, steps, states, out);
          break;
        case 32:
          out = Steps<2>::Encode(source, steps, states, out);
          break;
        case 16:
          out = Steps<1>::Encode(source, steps, states, out);
          break;
        case 8:
          out = ScalarEncode<8>(source, steps, states, out);
          break;
        case 4:
          out = ScalarEncode<4>(source, steps, states, out);
          break;
        case 2:
          out = ScalarEncode<2>(source, steps, states, out);
          break;
        default:
          out = ScalarEncode<1>(source, steps, states, out);
          break;
      }
    }
    return out;
  }

  static const uint8_t* Decode(const Rans8Target* targets, size_t count, int lanes,
                               uint32_t* states, const uint8_t* begin, const uint8_t* end) {
    if constexpr (Ops::kVectors) {
      if (lanes < 16) {
        return kCoderKernelsScalar.rans8_decode(targets, count, lanes, states, begin, end);
      }
    }
    const uint8_t* p = end;
    for (size_t i = 0; i < count && p != nullptr; ++i) {
      const Rans8Target& target = targets[i];
      const size_t steps = target.n / static_cast<size_t>(lanes);
      const size_t done = steps * static_cast<size_t>(lanes);
      if (steps != 0) {
        switch (lanes) {
          case 64:
            p = Steps<4>::Decode(target, steps, states, begin, p);
            break;
          case 32:
            p = Steps<2>::Decode(target, steps, states, begin, p);
            break;
          case 16:
            p = Steps<1>::Decode(target, steps, states, begin, p);
            break;
          case 8:
            p = ScalarDecode<8>(target, steps, states, begin, p);
            break;
          case 4:
            p = ScalarDecode<4>(target, steps, states, begin, p);
            break;
          case 2:
            p = ScalarDecode<2>(target, steps, states, begin, p);
            break;
          default:
            p = ScalarDecode<1>(target, steps, states, begin, p);
            break;
        }
      }
      if (p != nullptr && done < target.n) {
        p = DecodeStep(*target.model, target.symbols + done, static_cast<int>(target.n - done),
                       lanes, states, begin, p);
      }
    }
    return p;
  }

  template <int kVectors>
  struct Steps {
    static uint8_t* Encode(const Rans8Source& source, size_t steps, uint32_t* states,
                           uint8_t* out) {
      if constexpr (Ops::kVectors) {
        return VectorEncode<kVectors>(source, steps, states, out);
      } else {
        return ScalarEncode<16 * kVectors>(source, steps, states, out);
      }
    }
    static const uint8_t* Decode(const Rans8Target& target, size_t steps, uint32_t* states,
                                 const uint8_t* begin, const uint8_t* p) {
      if constexpr (Ops::kVectors) {
        return VectorDecode<kVectors>(target, steps, states, begin, p);
      } else {
        return ScalarDecode<16 * kVectors>(target, steps, states, begin, p);
      }
    }
  };
};

}  // namespace kvik::codec
