// SPDX-License-Identifier: Apache-2.0
// codec/kernels/coder_kernels.h: the seam between the entropy coders and their kernels, compiled
// per ISA. Plain data only; every ISA gives the same bytes and symbols. Internal to the module.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace kvik::codec {

// How symbols of an alphabet share words: `digits` symbols in a word of `word_bytes` bytes.
struct PackShape {
  uint32_t alphabet = 2;
  uint32_t digits = 8;
  uint32_t word_bytes = 1;  // 1..7
  uint64_t power = 256;     // alphabet ^ digits, at most 2 ^ (8 word_bytes)
};

// --- rANS with probabilities of 8 bits -----------------------------------------------------------
// A state is in [2^12, 2^20), a step renormalises by at most one byte. The encoder appends bytes
// and walks the symbols backwards; the decoder reads the bytes from their end.
//
// Lanes. A step codes the next `lanes` symbols, one a lane; the last step of a segment may have
// fewer. Lanes are in vectors of 16: lane 16 v + e holds symbol 4 e + v of a step of 64, and symbol
// 16 v + e of a smaller one. The bytes of a step are those of vector 0 (the last ones), vector 1,
// ... and within a vector in the order of its elements.
constexpr uint32_t kRans8Bits = 8;
constexpr uint32_t kRans8Low = 1U << 12;
constexpr uint32_t kRans8High = 1U << 20;
constexpr int kRans8Symbols = 32;  // most symbols of a model
constexpr int kMaxLanes = 64;
// Decoders may read this many bytes beyond the end of a stream of 16 lanes or more, and two beyond
// any other; encoders may write that many.
constexpr size_t kRansSlackBytes = 32;

struct Rans8Model {
  // Symbol s of the plane is index s - base (modulo 256) of the model. An index above size - 1 is
  // coded as index 0.
  uint8_t base = 0;
  uint8_t size = 2;                // 2..kRans8Symbols
  uint8_t freq[kRans8Symbols]{};   // sum 256, at most 255 each; freq[0] > 0; 0 from size on
  uint8_t start[kRans8Symbols]{};  // sum of the ones before
};

struct Rans8Source {
  const uint8_t* symbols = nullptr;
  size_t n = 0;
  const Rans8Model* model = nullptr;
};
struct Rans8Target {
  uint8_t* symbols = nullptr;
  size_t n = 0;
  const Rans8Model* model = nullptr;
};

// --- rANS with probabilities of 12 bits ----------------------------------------------------------
// As above, but states are in [2^16, 2^32) and a step renormalises by at most one 16-bit word.
constexpr uint32_t kRans12Bits = 12;
constexpr uint32_t kRans12Low = 1U << 16;

struct Rans12Model {
  uint32_t size = 2;      // 2..256: symbols are indices
  uint16_t freq[256]{};   // sum 4096, at most 4095 each; 0 from size on
  uint16_t start[256]{};  // sum of the ones before
};
struct Rans12Source {
  const uint8_t* symbols = nullptr;
  size_t n = 0;
  const Rans12Model* model = nullptr;
};
struct Rans12Target {
  uint8_t* symbols = nullptr;
  size_t n = 0;
  const Rans12Model* model = nullptr;
};

struct CoderKernels {
  Isa isa;
  // Word j of W = ceil(n / digits) holds symbols j, j + W, j + 2 W, ... (0 beyond n); byte b of
  // word j is out[b * W + j].
  void (*pack)(const uint8_t* symbols, size_t n, const PackShape& shape, uint8_t* out);
  void (*unpack)(const uint8_t* in, size_t n, const PackShape& shape, uint8_t* symbols);
  // counts[256] is overwritten. Symbols are below `alphabet`.
  void (*histogram)(const uint8_t* symbols, size_t n, int alphabet, uint32_t* counts);
  uint8_t (*largest)(const uint8_t* symbols, size_t n);  // 0 of none

  // `states` [lanes] are started by the caller and hold the final states. Returns the end of what
  // was written: at most a byte (word) a symbol and kRansSlackBytes more were touched.
  uint8_t* (*rans8_encode)(const Rans8Source* sources, size_t count, int lanes, uint32_t* states,
                           uint8_t* out);
  uint8_t* (*rans12_encode)(const Rans12Source* sources, size_t count, int lanes, uint32_t* states,
                            uint8_t* out);
  // Reads [begin, end) from its end; returns where it stopped, or null when the bytes run out.
  const uint8_t* (*rans8_decode)(const Rans8Target* targets, size_t count, int lanes,
                                 uint32_t* states, const uint8_t* begin, const uint8_t* end);
  const uint8_t* (*rans12_decode)(const Rans12Target* targets, size_t count, int lanes,
                                  uint32_t* states, const uint8_t* begin, const uint8_t* end);
};

extern const CoderKernels kCoderKernelsScalar;
extern const CoderKernels kCoderKernelsAvx2;
extern const CoderKernels kCoderKernelsAvx512;
extern const CoderKernels kCoderKernelsAvx512Vbmi;

// kAvx512Bf16 has nothing that kernels want here, but VBMI came with it or before it on most CPUs.
const CoderKernels& CoderKernelsOf(Isa isa);

}  // namespace kvik::codec
