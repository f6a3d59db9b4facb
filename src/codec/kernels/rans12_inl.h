// SPDX-License-Identifier: Apache-2.0
// codec/kernels/rans12_inl.h: rANS with probabilities of 12 bits, the part every ISA compiles for
// itself: for wide alphabets and for distributions that 8 bits describe badly. `Ops` is a type of
// an unnamed namespace and makes every function local to its file; with Ops::kVectors12 it codes
// whole steps of 16 lanes and more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {

template <typename Ops>
struct Rans12Kernel {
  static constexpr uint32_t kSlots = 1U << kRans12Bits;

  static int PositionOf(int lane, int lanes) {
    return lanes == kMaxLanes ? 4 * (lane % 16) + lane / 16 : lane;
  }

  struct Divider {
    // y / freq = (y * reciprocal) >> 44 for y < freq << 20: the product fits, and what the quotient
    // is too large by, y / 2^44, is less than 1 / freq.
    uint64_t reciprocal;
    uint32_t freq;
    uint32_t start;
  };
  static void FillDividers(const Rans12Model& model, Divider* dividers) {
    for (uint32_t s = 0; s < model.size; ++s) {
      const uint32_t freq = model.freq[s] == 0 ? 1 : model.freq[s];
      dividers[s] = {((uint64_t{1} << 44) + freq - 1) / freq, freq, model.start[s]};
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

  // A step of `present` symbols, at most one a lane.
  static uint8_t* EncodeStep(const Rans12Model& model, const uint8_t* symbols, int present,
                             int lanes, uint32_t* states, uint8_t* out) {
    for (int first = (lanes - 1) / 16 * 16; first >= 0; first -= 16) {
      const int end = first + 16 < lanes ? first + 16 : lanes;
      for (int lane = first; lane < end; ++lane) {
        const int at = PositionOf(lane, lanes);
        if (at >= present) {
          continue;
        }
        const uint32_t freq = model.freq[symbols[at]];
        uint32_t x = states[lane];
        if (x >> 20 >= freq) {
          const auto word = static_cast<uint16_t>(x);
          std::memcpy(out, &word, 2);
          out += 2;
          x >>= 16;
        }
        states[lane] = (x / freq << kRans12Bits) + x % freq + model.start[symbols[at]];
      }
    }
    return out;
  }

  template <int kLanes>
  static uint8_t* ScalarEncode(const Divider* dividers, const uint8_t* symbols, size_t steps,
                               uint32_t* states, uint8_t* out) {
    uint32_t x[kLanes];
    std::memcpy(x, states, sizeof(x));
    for (size_t step = steps; step-- > 0;) {
      const uint8_t* const of = symbols + step * kLanes;
      for (int first = (kLanes - 1) / 16 * 16; first >= 0; first -= 16) {
        for (int lane = first; lane < first + 16 && lane < kLanes; ++lane) {
          const Divider& d = dividers[of[PositionOf(lane, kLanes)]];
          // No branches, and nothing a compiler makes some of: they could not be predicted.
          const auto word = static_cast<uint16_t>(x[lane]);
          std::memcpy(out, &word, 2);
          const auto full = static_cast<uint32_t>(((uint64_t{d.freq} << 20) - 1 - x[lane]) >> 63);
          out += 2 * full;
          const uint32_t y = x[lane] >> (16 * full);
          const auto quotient = static_cast<uint32_t>((y * d.reciprocal) >> 44);
          x[lane] = y + d.start + quotient * (kSlots - d.freq);
        }
      }
    }
    std::memcpy(states, x, sizeof(x));
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

  // A step of `present` symbols, at most one a lane. Null when the bytes [begin, p) run out.
  template <typename Slots>
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
        uint32_t x = ((slot >> 8) & (kSlots - 1)) * (states[lane] >> kRans12Bits) + (slot >> 20);
        if (x < kRans12Low) {
          if (p - begin < 2) {
            return nullptr;
          }
          p -= 2;
          uint16_t word;
          std::memcpy(&word, p, 2);
          x = x << 16 | word;
        }
        states[lane] = x;
      }
    }
    return p;
  }

  // Whole steps while there are bytes for any of them; returns how many.
  template <int kLanes, typename Slots>
  static size_t ScalarDecode(const Slots& slots, uint8_t* symbols, size_t steps, uint32_t* states,
                             const uint8_t* begin, const uint8_t** bytes) {
    const uint8_t* p = *bytes;
    uint32_t x[kLanes];
    std::memcpy(x, states, sizeof(x));
    size_t step = 0;
    for (; step < steps && p - begin >= 2 * kLanes; ++step) {
      uint8_t* const of = symbols + step * kLanes;
      for (int first = 0; first < kLanes; first += 16) {
        for (int lane = (first + 16 < kLanes ? first + 16 : kLanes) - 1; lane >= first; --lane) {
          const uint32_t slot = slots[x[lane] & (kSlots - 1)];
          of[PositionOf(lane, kLanes)] = static_cast<uint8_t>(slot);
          const uint32_t y = ((slot >> 8) & (kSlots - 1)) * (x[lane] >> kRans12Bits) + (slot >> 20);
          // The word is there before it is known to be wanted, and there are no branches.
          uint16_t word;
          std::memcpy(&word, p - 2, 2);
          const auto low = static_cast<uint32_t>((uint64_t{y} - kRans12Low) >> 63);
          p -= 2 * low;
          x[lane] = (y << (16 * low)) | (word & (0U - low));
        }
      }
    }
    std::memcpy(states, x, sizeof(x));
    *bytes = p;
    return step;
  }

  static uint8_t* Encode(const Rans12Source* sources, size_t count, int lanes, uint32_t* states,
                         uint8_t* out) {
    if constexpr (Ops::kVectors12) {
      if (lanes < 16) {
        return kCoderKernelsScalar.rans12_encode(sources, count, lanes, states, out);
      }
    }
    const auto step_symbols = static_cast<size_t>(lanes);
    const Rans12Model* filled = nullptr;
    Divider dividers[256];
    for (size_t i = count; i-- > 0;) {
      const Rans12Source& source = sources[i];
      const size_t steps = source.n / step_symbols;
      const size_t done = steps * step_symbols;
      if (done < source.n) {
        out = EncodeStep(*source.model, source.symbols + done, static_cast<int>(source.n - done),
                         lanes, states, out);
      }
      if (steps == 0) {
        continue;
      }
      if constexpr (Ops::kVectors12) {
        out = Ops::Encode12(*source.model, source.symbols, steps, lanes, states, out);
        continue;
      }
      if (source.model != filled) {
        filled = source.model;
        FillDividers(*filled, dividers);
      }
      out = ByLanes(lanes, [&](auto fixed) {
        return ScalarEncode<fixed()>(dividers, source.symbols, steps, states, out);
      });
    }
    return out;
  }

  // fn(lanes as a constant).
  template <typename Fn>
  static auto ByLanes(int lanes, const Fn& fn) {
    switch (lanes) {
      case 64:
        return fn(std::integral_constant<int, 64>());
      case 32:
        return fn(std::integral_constant<int, 32>());
      case 16:
        return fn(std::integral_constant<int, 16>());
      case 8:
        return fn(std::integral_constant<int, 8>());
      case 4:
        return fn(std::integral_constant<int, 4>());
      case 2:
        return fn(std::integral_constant<int, 2>());
      default:
        return fn(std::integral_constant<int, 1>());
    }
  }

  static const uint8_t* Decode(const Rans12Target* targets, size_t count, int lanes,
                               uint32_t* states, const uint8_t* begin, const uint8_t* end) {
    if constexpr (Ops::kVectors12) {
      if (lanes < 16) {
        return kCoderKernelsScalar.rans12_decode(targets, count, lanes, states, begin, end);
      }
    }
    constexpr size_t kFewSymbols = 256;  // a table of all slots would take longer
    const auto step_symbols = static_cast<size_t>(lanes);
    const Rans12Model* filled = nullptr;
    alignas(64) uint32_t slots[kSlots];
    const uint8_t* p = end;
    for (size_t i = 0; i < count && p != nullptr; ++i) {
      const Rans12Target& target = targets[i];
      size_t done = 0;
      if constexpr (Ops::kVectors12) {
        if (Ops::Decodes12(target.n)) {
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
    const size_t steps = (target.n - done) / step_symbols;
    done += step_symbols * ByLanes(lanes, [&](auto fixed) {
              return ScalarDecode<fixed()>(slots, target.symbols + done, steps, states, begin, &p);
            });
    for (; p != nullptr && done < target.n; done += step_symbols) {
      const size_t present = target.n - done < step_symbols ? target.n - done : step_symbols;
      p = DecodeStep(slots, target.symbols + done, static_cast<int>(present), lanes, states, begin,
                     p);
    }
    return p;
  }
};

}  // namespace kvik::codec
