// SPDX-License-Identifier: Apache-2.0
// codec/symbol_table.h: probabilities of symbols as both sides of an entropy coder compute them:
// integers only, so that encoder and decoder agree on every machine.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace kvik::codec {

// Scales counts to frequencies that sum to 2^bits, close to the least coding cost. `floor`: every
// symbol gets at least 1; otherwise those without a count get 0. Without any count all are alike.
// REQUIRES: counts below 2^42; 1 to 2^bits symbols that get a frequency; bits <= 12.
void NormalizeCounts(std::span<const uint64_t> counts, uint32_t bits, bool floor,
                     std::span<uint16_t> freq);

// Costs are in units of 2^-16 bit.
constexpr uint64_t kCostBit = uint64_t{1} << 16;
constexpr uint64_t kNoCost = std::numeric_limits<uint64_t>::max() / 4;  // it cannot be coded

// log2(v) in such units, rounded down. REQUIRES: 1 <= v <= 4096.
uint32_t Log2Cost(uint32_t v);
// Of coding each symbol counts[s] times with frequencies that sum to 2^bits.
uint64_t CodingCost(std::span<const uint32_t> counts, std::span<const uint16_t> freq,
                    uint32_t bits);

// What no model of the symbols can go below, to about 2^-11 bit a symbol.
uint64_t EntropyCost(std::span<const uint32_t> counts);

// Counts in 6 bits: 0, or about 4 steps an octave, up to 2^15.
constexpr uint32_t kCoarseBits = 6;
constexpr uint32_t kCoarseScale = 15;
uint32_t CoarseCode(uint64_t count, uint64_t total);  // of count / total; 0 only for 0
uint64_t CoarseCount(uint32_t code);                  // of 2^15; REQUIRES: code < 64

}  // namespace kvik::codec
