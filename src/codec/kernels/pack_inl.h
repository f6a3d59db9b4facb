// SPDX-License-Identifier: Apache-2.0
// codec/kernels/pack_inl.h: symbols in words, the part every ISA compiles for itself. `Ops` is a
// type of an unnamed namespace and makes every function local to its file.
//
// A word holds a fraction: with v the number whose digits are its symbols (the first one most
// significant) it is ceil(v 2^B / power) of B = 8 word_bytes bits. So a decoder gets digit after
// digit by multiplying with the alphabet, and any word at all gives digits below the alphabet. (A
// lone symbol in a byte is kept as it is.)
// All loops run over words side by side: compilers make vectors of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {

template <typename Ops>
struct PackKernel {
  static constexpr size_t kBlock = 64;  // words at a time
  // As many bytes as the ISA's registers make of them.
  typedef uint64_t Block __attribute__((vector_size(kBlock)));

  // Words of one byte with digits of kBits bits: 8 words to a uint64_t.
  template <int kBits>
  static void PackBits(const uint8_t* symbols, size_t n, uint8_t* out) {
    constexpr size_t kDigits = 8 / kBits;
    const size_t words = (n + kDigits - 1) / kDigits;
    size_t j = 0;
    if (n >= (kDigits - 1) * words) {
      const size_t full = n - (kDigits - 1) * words;  // words whose every digit has a symbol
      for (; j + kBlock <= full; j += kBlock) {
        Block word{};
        for (size_t i = 0; i < kDigits; ++i) {
          Block digit;
          std::memcpy(&digit, symbols + i * words + j, kBlock);
          word = (word << kBits) | digit;
        }
        std::memcpy(out + j, &word, kBlock);
      }
    }
    for (; j < words; ++j) {
      unsigned word = 0;
      for (size_t i = 0; i < kDigits; ++i) {
        const size_t at = i * words + j;
        word = (word << kBits) | (at < n ? symbols[at] : 0U);
      }
      out[j] = static_cast<uint8_t>(word);
    }
  }

  template <int kBits>
  static void UnpackBits(const uint8_t* in, size_t n, uint8_t* symbols) {
    constexpr size_t kDigits = 8 / kBits;
    constexpr uint64_t kMask = 0x0101010101010101ULL * ((1U << kBits) - 1);
    const size_t words = (n + kDigits - 1) / kDigits;
    size_t j = 0;
    if (n >= (kDigits - 1) * words) {
      const size_t full = n - (kDigits - 1) * words;
      for (; j + kBlock <= full; j += kBlock) {
        Block word;
        std::memcpy(&word, in + j, kBlock);
        for (size_t i = 0; i < kDigits; ++i) {
          const Block digit = (word >> (8 - kBits * (i + 1))) & kMask;
          std::memcpy(symbols + i * words + j, &digit, kBlock);
        }
      }
    }
    for (; j < words; ++j) {
      for (size_t i = 0; i < kDigits; ++i) {
        const size_t at = i * words + j;
        if (at < n) {
          symbols[at] =
              static_cast<uint8_t>((in[j] >> (8 - kBits * (i + 1))) & ((1U << kBits) - 1));
        }
      }
    }
  }

  // How many of the words [j, j + count) have a symbol of digit i.
  static size_t Present(size_t n, size_t words, size_t i, size_t j, size_t count) {
    const size_t at = i * words + j;
    return at >= n ? 0 : (n - at < count ? n - at : count);
  }

  // ceil(v 2^B / power), by a reciprocal that is at most the true one.
  struct Fraction {
    explicit Fraction(const PackShape& shape)
        : power(shape.power),
          bits(8 * shape.word_bytes),
          whole((uint64_t{1} << bits) / power),
          part(static_cast<uint64_t>(
              (static_cast<unsigned __int128>((uint64_t{1} << bits) % power) << 64) / power)) {}
    uint64_t operator()(uint64_t v) const {
      uint64_t f =
          v * whole + static_cast<uint64_t>((static_cast<unsigned __int128>(v) * part) >> 64);
      auto missing = static_cast<int64_t>(f * power - (v << bits));  // small: it may wrap
      while (missing < 0) {
        ++f;
        missing += static_cast<int64_t>(power);
      }
      return f;
    }
    uint64_t power;
    uint32_t bits;
    uint64_t whole;
    uint64_t part;
  };

  // Word holds a word times the alphabet.
  template <typename Word>
  static void PackWords(const uint8_t* symbols, size_t n, const PackShape& shape, uint8_t* out) {
    const size_t words = (n + shape.digits - 1) / shape.digits;
    const auto alphabet = static_cast<Word>(shape.alphabet);
    const Fraction fraction(shape);
    for (size_t j = 0; j < words; j += kBlock) {
      const size_t count = words - j < kBlock ? words - j : kBlock;
      Word v[kBlock] = {};
      for (size_t i = 0; i < shape.digits; ++i) {
        const size_t present = Present(n, words, i, j, count);
        const uint8_t* from = symbols + i * words + j;
        if (present == kBlock) {
          for (size_t t = 0; t < kBlock; ++t) {
            v[t] = static_cast<Word>(v[t] * alphabet + from[t]);
          }
        } else {
          for (size_t t = 0; t < count; ++t) {
            v[t] = static_cast<Word>(v[t] * alphabet + (t < present ? from[t] : 0U));
          }
        }
      }
      if (fraction.whole > 1 || fraction.part != 0) {
        for (size_t t = 0; t < count; ++t) {
          v[t] = static_cast<Word>(fraction(v[t]));
        }
      }
      for (size_t b = 0; b < shape.word_bytes; ++b) {
        uint8_t* to = out + b * words + j;
        if (count == kBlock) {
          for (size_t t = 0; t < kBlock; ++t) {
            to[t] = static_cast<uint8_t>(v[t] >> (8 * b));
          }
        } else {
          for (size_t t = 0; t < count; ++t) {
            to[t] = static_cast<uint8_t>(v[t] >> (8 * b));
          }
        }
      }
    }
  }

  template <typename Word>
  static void UnpackWords(const uint8_t* in, size_t n, const PackShape& shape, uint8_t* symbols) {
    const size_t words = (n + shape.digits - 1) / shape.digits;
    const auto alphabet = static_cast<Word>(shape.alphabet);
    const uint32_t bits = 8 * shape.word_bytes;
    const auto mask = static_cast<Word>((uint64_t{1} << bits) - 1);
    for (size_t j = 0; j < words; j += kBlock) {
      const size_t count = words - j < kBlock ? words - j : kBlock;
      Word v[kBlock] = {};
      for (size_t b = 0; b < shape.word_bytes; ++b) {
        const uint8_t* from = in + b * words + j;
        if (count == kBlock) {
          for (size_t t = 0; t < kBlock; ++t) {
            v[t] = static_cast<Word>(v[t] | static_cast<Word>(from[t]) << (8 * b));
          }
        } else {
          for (size_t t = 0; t < count; ++t) {
            v[t] = static_cast<Word>(v[t] | static_cast<Word>(from[t]) << (8 * b));
          }
        }
      }
      for (size_t i = 0; i < shape.digits; ++i) {
        const size_t present = Present(n, words, i, j, count);
        uint8_t* to = symbols + i * words + j;
        if (present == kBlock) {
          for (size_t t = 0; t < kBlock; ++t) {
            v[t] = static_cast<Word>(v[t] * alphabet);
            to[t] = static_cast<uint8_t>(v[t] >> bits);
            v[t] &= mask;
          }
        } else {
          for (size_t t = 0; t < count; ++t) {
            v[t] = static_cast<Word>(v[t] * alphabet);
            if (t < present) {
              to[t] = static_cast<uint8_t>(v[t] >> bits);
            }
            v[t] &= mask;
          }
        }
      }
    }
  }

  static void Pack(const uint8_t* symbols, size_t n, const PackShape& shape, uint8_t* out) {
    if (n == 0) {
      return;
    }
    if (shape.digits == 1) {
      std::memcpy(out, symbols, n);
    } else if (shape.alphabet == 16) {
      PackBits<4>(symbols, n, out);
    } else if (shape.alphabet == 4) {
      PackBits<2>(symbols, n, out);
    } else if (shape.alphabet == 2) {
      PackBits<1>(symbols, n, out);
    } else if (shape.word_bytes == 1) {
      PackWords<uint16_t>(symbols, n, shape, out);
    } else if (shape.word_bytes <= 3) {
      PackWords<uint32_t>(symbols, n, shape, out);
    } else {
      PackWords<uint64_t>(symbols, n, shape, out);
    }
  }

  static void Unpack(const uint8_t* in, size_t n, const PackShape& shape, uint8_t* symbols) {
    if (n == 0) {
      return;
    }
    if (shape.digits == 1) {
      std::memcpy(symbols, in, n);
    } else if (shape.alphabet == 16) {
      UnpackBits<4>(in, n, symbols);
    } else if (shape.alphabet == 4) {
      UnpackBits<2>(in, n, symbols);
    } else if (shape.alphabet == 2) {
      UnpackBits<1>(in, n, symbols);
    } else if (shape.word_bytes == 1) {
      UnpackWords<uint16_t>(in, n, shape, symbols);
    } else if (shape.word_bytes <= 3) {
      UnpackWords<uint32_t>(in, n, shape, symbols);
    } else {
      UnpackWords<uint64_t>(in, n, shape, symbols);
    }
  }

  static uint8_t Largest(const uint8_t* symbols, size_t n) {
    uint8_t largest = 0;
    for (size_t i = 0; i < n; ++i) {
      largest = symbols[i] > largest ? symbols[i] : largest;
    }
    return largest;
  }

  // Any alphabet. Four tables: equal neighbours do not wait for each other.
  static void HistogramBytes(const uint8_t* symbols, size_t n, uint32_t* counts) {
    uint32_t part[4][256] = {};
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, symbols + i, 8);
      for (int b = 0; b < 8; ++b) {
        ++part[b % 4][(eight >> (8 * b)) & 0xFF];
      }
    }
    for (; i < n; ++i) {
      ++part[0][symbols[i]];
    }
    for (int s = 0; s < 256; ++s) {
      counts[s] = part[0][s] + part[1][s] + part[2][s] + part[3][s];
    }
  }

  // The same, fast where 16 neighbouring symbols are nearly all there is: Ops::CountWindow counts
  // symbols [first, first + 16) by vectors and adds the others one by one.
  static void Histogram(const uint8_t* symbols, size_t n, int alphabet, uint32_t* counts) {
    constexpr size_t kSample = 1024;
    constexpr int kWindow = 16;
    if (alphabet <= kWindow) {
      std::memset(counts, 0, 256 * sizeof(uint32_t));
      Ops::template CountWindow<false>(symbols, n, 0, alphabet, counts);
      return;
    }
    if (n < 4 * kSample) {
      HistogramBytes(symbols, n, counts);
      return;
    }
    HistogramBytes(symbols, kSample, counts);
    uint32_t inside = 0;
    uint32_t most = 0;
    int first = 0;
    for (int s = 0; s < 256; ++s) {
      inside += counts[s];
      inside -= s >= kWindow ? counts[s - kWindow] : 0;
      if (s >= kWindow - 1 && inside > most) {
        most = inside;
        first = s - (kWindow - 1);
      }
    }
    if (most < kSample - kSample / 64) {
      HistogramBytes(symbols, n, counts);
      return;
    }
    std::memset(counts, 0, 256 * sizeof(uint32_t));
    Ops::template CountWindow<true>(symbols, n, first, kWindow, counts);
  }
};

}  // namespace kvik::codec
