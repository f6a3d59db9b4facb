// SPDX-License-Identifier: Apache-2.0
// codec/kernels/rans12_inl.h: rANS with probabilities of 12 bits, the part every ISA compiles for
// itself: for wide alphabets and for distributions that 8 bits describe badly. `Ops` is a type of
// an unnamed namespace and makes every function local to its file; with Ops::kVectors12 it codes
// whole steps of 16 lanes and more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {

template <typename Ops>
struct Rans12Kernel {
  static constexpr uint32_t kSlots = 1U << kRans12Bits;

  static int PositionOf(int lane, int lanes) {
    return lanes == kMaxLanes ? 4 * (lane % 16) + lane / 16 : lane;
  }

  struct Divider {
    // x / freq = x * reciprocal for x < 2^32: not too small, and off by less than 2^-18.
    double reciprocal;
    uint32_t freq;
    uint32_t start;
  };
  static void FillDividers(const Rans12Model& model, Divider* dividers) {
    for (uint32_t s = 0; s < model.size; ++s) {
      const uint32_t freq = model.freq[s] == 0 ? 1 : model.freq[s];
      dividers[s] = {1.0 / freq * (1.0 + 0x1.0p-51), freq, model.start[s]};
    }
  }
  // symbol | freq << 8 | (slot - start) << 20
  static void FillSlots(const Rans12Model& model, uint32_t* slots) {
    for (uint32_t s = 0; s < model.size; ++s) {
      uint32_t* of = slots + model.start[s];
      for (uint32_t i = 0; i < model.freq[s]; ++i) {
        of[i] = s | uint32_t{model.freq[s]} << 8 | i << 20;
      }
    }
  }

  static uint8_t* EncodeStep(const Divider* dividers, const uint8_t* symbols, int present,
                             int lanes, uint32_t* states, uint8_t* out) {
    for (int first = (lanes - 1) / 16 * 16; first >= 0; first -= 16) {
      const int end = first + 16 < lanes ? first + 16 : lanes;
      for (int lane = first; lane < end; ++lane) {
        const int at = PositionOf(lane, lanes);
        if (at >= present) {
          continue;
        }
        const Divider& d = dividers[symbols[at]];
        const uint32_t x = states[lane];
        const auto word = static_cast<uint16_t>(x);
        std::memcpy(out, &word, 2);
        const auto full = static_cast<uint32_t>(((uint64_t{d.freq} << 20) - 1 - x) >> 63);
        out += 2 * full;
        const uint32_t y = x >> (16 * full);
        const auto quotient = static_cast<uint32_t>(
            static_cast<int64_t>(static_cast<double>(static_cast<int64_t>(y)) * d.reciprocal));
        states[lane] = y + quotient * (kSlots - d.freq) + d.start;
      }
    }
    return out;
  }

  // Of few slots: without a table.
  struct SlotSearch {
    const Rans12Model* model;
    uint32_t operator[](uint32_t slot) const {
      // The last symbol that does not start behind the slot: one that never comes has no slot.
      uint32_t s = 0;
      for (uint32_t left = model->size; left > 1;) {
        const uint32_t half = left / 2;
        s = model->start[s + half] <= slot ? s + half : s;
        left -= half;
      }
      return s | uint32_t{model->freq[s]} << 8 | (slot - model->start[s]) << 20;
    }
  };

  // Null when the bytes [begin, p) run out. With kPlenty they cannot, and there are no branches.
  template <bool kPlenty, typename Slots>
  static const uint8_t* DecodeStep(const Slots& slots, uint8_t* symbols, int present, int lanes,
                                   uint32_t* states, const uint8_t* begin, const uint8_t* p) {
    for (int first = 0; first < lanes; first += 16) {
      const int end = first + 16 < lanes ? first + 16 : lanes;
      for (int lane = end - 1; lane >= first; --lane) {
        const int at = PositionOf(lane, lanes);
        if (at >= present) {
          continue;
        }
        const uint32_t slot = slots[states[lane] & (kSlots - 1)];
        symbols[at] = static_cast<uint8_t>(slot);
        const uint32_t x =
            ((slot >> 8) & (kSlots - 1)) * (states[lane] >> kRans12Bits) + (slot >> 20);
        const auto low = static_cast<uint32_t>((uint64_t{x} - kRans12Low) >> 63);
        if constexpr (!kPlenty) {
          if (low == 0) {
            states[lane] = x;
            continue;
          }
          if (p - begin < 2) {
            return nullptr;
          }
        }
        uint16_t word;
        std::memcpy(&word, p - 2, 2);
        p -= 2 * low;
        states[lane] = (x << (16 * low)) | (word & (0U - low));
      }
    }
    return p;
  }

  static uint8_t* Encode(const Rans12Source* sources, size_t count, int lanes, uint32_t* states,
                         uint8_t* out) {
    const auto step_symbols = static_cast<size_t>(lanes);
    const Rans12Model* filled = nullptr;
    Divider dividers[256];
    for (size_t i = count; i-- > 0;) {
      const Rans12Source& source = sources[i];
      if (source.model != filled) {
        filled = source.model;
        FillDividers(*filled, dividers);
      }
      const size_t steps = source.n / step_symbols;
      const size_t done = steps * step_symbols;
      if (done < source.n) {
        out = EncodeStep(dividers, source.symbols + done, static_cast<int>(source.n - done), lanes,
                         states, out);
      }
      if constexpr (Ops::kVectors12) {
        if (lanes >= 16) {
          out = Ops::Encode12(*source.model, source.symbols, steps, lanes, states, out);
          continue;
        }
      }
      switch (lanes) {
        case 64:
          out = EncodeSteps<64>(dividers, source.symbols, steps, states, out);
          break;
        case 32:
          out = EncodeSteps<32>(dividers, source.symbols, steps, states, out);
          break;
        case 16:
          out = EncodeSteps<16>(dividers, source.symbols, steps, states, out);
          break;
        default:
          for (size_t step = steps; step-- > 0;) {
            out = EncodeStep(dividers, source.symbols + step * step_symbols, lanes, lanes, states,
                             out);
          }
          break;
      }
    }
    return out;
  }

  // The same with a number of lanes the compiler knows.
  template <int kLanes>
  static uint8_t* EncodeSteps(const Divider* dividers, const uint8_t* symbols, size_t steps,
                              uint32_t* states, uint8_t* out) {
    for (size_t step = steps; step-- > 0;) {
      out = EncodeStep(dividers, symbols + step * kLanes, kLanes, kLanes, states, out);
    }
    return out;
  }

  static const uint8_t* Decode(const Rans12Target* targets, size_t count, int lanes,
                               uint32_t* states, const uint8_t* begin, const uint8_t* end) {
    constexpr size_t kFewSymbols = 256;  // a table of all slots would take longer
    const auto step_symbols = static_cast<size_t>(lanes);
    const Rans12Model* filled = nullptr;
    alignas(64) uint32_t slots[kSlots];
    const uint8_t* p = end;
    for (size_t i = 0; i < count && p != nullptr; ++i) {
      const Rans12Target& target = targets[i];
      size_t done = 0;
      if constexpr (Ops::kVectors12) {
        if (lanes >= 16 && Ops::Decodes12(target.n)) {
          const size_t steps = target.n / step_symbols;
          if (target.model != filled && Ops::NeedsSlots(*target.model, target.n)) {
            filled = target.model;
            FillSlots(*filled, slots);
          }
          p = Ops::Decode12(*target.model, slots, target.symbols, target.n, steps, lanes, states,
                            begin, p);
          done = steps * step_symbols;
        }
      }
      if (p == nullptr || done == target.n) {
        continue;
      }
      if (target.n - done < kFewSymbols) {
        p = DecodeSteps(SlotSearch{target.model}, target, done, lanes, states, begin, p);
        continue;
      }
      if (target.model != filled) {
        filled = target.model;
        FillSlots(*filled, slots);
      }
      p = DecodeSteps(slots, target, done, lanes, states, begin, p);
    }
    return p;
  }

  // Symbols from `done` on.
  template <typename Slots>
  static const uint8_t* DecodeSteps(const Slots& slots, const Rans12Target& target, size_t done,
                                    int lanes, uint32_t* states, const uint8_t* begin,
                                    const uint8_t* p) {
    const auto step_symbols = static_cast<size_t>(lanes);
    for (; target.n - done >= step_symbols && p != nullptr; done += step_symbols) {
      uint8_t* const symbols = target.symbols + done;
      p = p - begin >= 2 * lanes
              ? DecodeStep<true>(slots, symbols, lanes, lanes, states, begin, p)
              : DecodeStep<false>(slots, symbols, lanes, lanes, states, begin, p);
    }
    if (p != nullptr && done < target.n) {
      p = DecodeStep<false>(slots, target.symbols + done, static_cast<int>(target.n - done), lanes,
                            states, begin, p);
    }
    return p;
  }
};

}  // namespace kvik::codec
