// SPDX-License-Identifier: Apache-2.0
// codec/ecsq_classes.h: what the entropy-constrained quantizer does with a channel follows from one
// number, its spread in steps. Spreads fall into classes, and a class is a context of entropy
// coding: channels of a class have nearly the same distribution of symbols.
//
// Where the boundaries between symbols lie and how symbols are reconstructed is best for a normal
// distribution of the class's spread, at the exchange rate of bits for squared error that all
// classes share: that of fine steps, ln(2) / 6 squared steps a bit. This is what makes one step for
// channels of unequal spread better than equal bits: narrow ones get few bits or none. Real keys
// and values without their channels' means are close enough to normal: boundaries and values fitted
// to those of a small Llama-like model cost 0.1 % less.
//
// Part of the format: decoders compute with these numbers. The test derives them.
#pragma once

#include <array>
#include <cstdint>

#include "codec/kernels/quant_kernels.h"

namespace kvik::codec {

struct EcsqClass {
  float spread = 0;  // standard deviation in steps
  float theta = 0;   // as in EcsqTables
  float slope = 0;
  float offset = 0;
  int32_t alphabet = 16;  // +- 4.6 spreads, and the last symbol is the escape
};

constexpr size_t kNumEcsqClasses = 24;
// Class 0 holds channels with hardly a value that is not 0: they have no plane.
extern const std::array<EcsqClass, kNumEcsqClasses> kEcsqClasses;

// The class of a channel by its spread in steps, which is finite.
uint8_t EcsqClassOf(float spread);
const EcsqTables& EcsqTablesOfClasses();

}  // namespace kvik::codec
