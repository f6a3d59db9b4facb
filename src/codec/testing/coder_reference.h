// SPDX-License-Identifier: Apache-2.0
// codec/testing/coder_reference.h: what the entropy coders' kernels do, written slowly and plainly.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "codec/packing.h"

namespace kvik::codec::testing {

// Byte b of word j is at b * words + j; word j has symbols j, j + words, ...
inline std::vector<std::byte> ReferencePack(std::span<const uint8_t> symbols, int alphabet) {
  using Wide = unsigned __int128;
  const PackShape& shape = PackShapeOf(alphabet);
  const size_t words = (symbols.size() + shape.digits - 1) / shape.digits;
  std::vector<std::byte> out(words * shape.word_bytes);
  for (size_t j = 0; j < words; ++j) {
    Wide number = 0;
    Wide power = 1;
    for (size_t i = 0; i < shape.digits; ++i) {
      const size_t at = i * words + j;
      number = number * static_cast<Wide>(alphabet) + (at < symbols.size() ? symbols[at] : 0U);
      power *= static_cast<Wide>(alphabet);
    }
    // A lone digit needs no fraction.
    const Wide word =
        shape.digits == 1 ? number : ((number << (8 * shape.word_bytes)) + power - 1) / power;
    for (size_t b = 0; b < shape.word_bytes; ++b) {
      out[b * words + j] = static_cast<std::byte>(static_cast<uint8_t>(word >> (8 * b)));
    }
  }
  return out;
}

// Symbols with their frequencies, as rANS sees them.
struct ReferenceSegment {
  std::vector<uint8_t> symbols;
  std::vector<uint32_t> freq;  // by symbol
};

// One lane is the textbook: a state x becomes (x / f) 2^bits + start + x % f. `bits` 8: states are
// in [2^12, 2^20) and give bytes away; 12: in [2^16, 2^32) and 16-bit words. Many lanes share the
// bytes: see codec/kernels/coder_kernels.h.
inline std::vector<std::byte> ReferenceRans(const std::vector<ReferenceSegment>& segments,
                                            uint32_t bits, int lanes) {
  const uint32_t unit = bits == 8 ? 8 : 16;
  const uint64_t low = uint64_t{1} << (bits == 8 ? 12 : 16);
  std::vector<uint64_t> states(static_cast<size_t>(lanes), low);
  std::vector<std::byte> out;
  for (size_t i = segments.size(); i-- > 0;) {
    const ReferenceSegment& segment = segments[i];
    const size_t n = segment.symbols.size();
    const auto step_symbols = static_cast<size_t>(lanes);
    for (size_t step = (n + step_symbols - 1) / step_symbols; step-- > 0;) {
      const int vectors = std::max(lanes / 16, 1);
      for (int v = vectors - 1; v >= 0; --v) {
        for (int e = 0; e < std::min(lanes, 16); ++e) {
          const int position = lanes == 64 ? 4 * e + v : 16 * v + e;
          const size_t at = step * step_symbols + static_cast<size_t>(position);
          if (at >= n) {
            continue;
          }
          const uint8_t symbol = segment.symbols[at];
          uint64_t start = 0;
          for (size_t s = 0; s < symbol; ++s) {
            start += segment.freq[s];
          }
          const uint64_t freq = segment.freq[symbol];
          KVIK_CHECK(freq != 0);
          uint64_t& x = states[static_cast<size_t>(16 * v + e)];
          // The next state must stay below low << unit.
          if (((x / freq) << bits) + start + x % freq >= low << unit) {
            for (uint32_t b = 0; b < unit; b += 8, x >>= 8) {
              out.push_back(static_cast<std::byte>(static_cast<uint8_t>(x)));
            }
          }
          x = ((x / freq) << bits) + start + x % freq;
        }
      }
    }
  }
  const uint32_t state_bits = bits == 8 ? 20 : 32;
  const size_t state_bytes = (static_cast<size_t>(lanes) * state_bits + 7) / 8;
  std::vector<std::byte> tail(state_bytes);
  for (size_t bit = 0; bit < static_cast<size_t>(lanes) * state_bits; ++bit) {
    if ((states[bit / state_bits] >> (bit % state_bits) & 1) != 0) {
      tail[bit / 8] |= static_cast<std::byte>(1U << (bit % 8));
    }
  }
  out.insert(out.end(), tail.begin(), tail.end());
  return out;
}

}  // namespace kvik::codec::testing
