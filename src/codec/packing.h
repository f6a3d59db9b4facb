// SPDX-License-Identifier: Apache-2.0
// codec/packing.h: symbols of any alphabet in few bits: log2 of the alphabet and at most 5.5 % more
// (nothing more for powers of two) up to 128, a byte above. The layout is CoderKernels::pack's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/isa.h"
#include "base/result.h"
#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {

// Of the words of 1 to 7 bytes the one that wastes least, the smallest of those.
// REQUIRES: 2 <= alphabet <= 256.
const PackShape& PackShapeOf(int alphabet);
size_t PackedBytes(size_t symbols, int alphabet);

// `out` has PackedBytes of them, with symbols below the alphabet.
void PackSymbols(Isa isa, std::span<const uint8_t> symbols, int alphabet, std::span<std::byte> out);
// The reverse of exactly that many bytes. kCorrupt: a symbol is outside of its alphabet.
Result<void> UnpackSymbols(Isa isa, std::span<const std::byte> in, int alphabet,
                           std::span<uint8_t> symbols);

}  // namespace kvik::codec
