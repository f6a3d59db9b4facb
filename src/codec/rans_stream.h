// SPDX-License-Identifier: Apache-2.0
// codec/rans_stream.h: segments of symbols, each with its own model, coded into one run of bytes by
// the lanes of one rANS coder:
//
//   bytes (words) of renormalisation | final states: 20 bits each (32 bits of 12-bit models)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/isa.h"
#include "base/result.h"
#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {

// `lanes` is a power of two up to kMaxLanes. Appends to out.
void EncodeRans8(Isa isa, std::span<const Rans8Source> sources, int lanes,
                 std::vector<std::byte>& out);
void EncodeRans12(Isa isa, std::span<const Rans12Source> sources, int lanes,
                  std::vector<std::byte>& out);

// Fills the targets from exactly `in`. kCorrupt: too few bytes, some left over, or an end that is
// not where encoders begin. On failure symbols are still below the alphabet or what they were.
Result<void> DecodeRans8(Isa isa, std::span<const Rans8Target> targets, int lanes,
                         std::span<const std::byte> in);
Result<void> DecodeRans12(Isa isa, std::span<const Rans12Target> targets, int lanes,
                          std::span<const std::byte> in);

// Bytes of the states, the cost of a stream beside its symbols.
size_t Rans8StateBytes(int lanes);
size_t Rans12StateBytes(int lanes);

}  // namespace kvik::codec
