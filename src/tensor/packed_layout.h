// SPDX-License-Identifier: Apache-2.0
// tensor/packed_layout.h: the bytes of a PackedMatrix. Internal to tensor.
//
// Sixteen outputs are a panel, four panels a group (the last group may have fewer). The panels of
// a group are interleaved block by block, so that a kernel walking a group reads one stream:
//
//   matrix  = group 0, group 1, ...
//   group   = for each span of header_k inputs: header of panel 0 .. 3, then
//               for each block_k inputs of the span: block of panel 0 .. 3
//   header  = f16 d[16], f16 dmin[16] if the format has one      (formats with sub-scales only)
//   block   = scales, plane, quants                              (quantised: 32 inputs)
//   scales  = f16 d[16], f16 m[16] if has_min                    (no sub-scales)
//           | u8 s[16], u8 b[16]                                 (Q4_K, Q5_K)
//           | int8 s[2][16], one row per 16 inputs               (Q6_K)
//   block   = 8 inputs of float32, f16 or bf16 [8][16], or bf16 [4][16][2]      (plain floats)
//
// Quants are cut into octets of 8 inputs, an octet into 8 vectors, a vector into 16 lanes. In
// kF32 order lane L of vector j is output L, input j. In kBf16 order two neighbouring vectors hold
// a pair of inputs, ready to be rounded into one vector of pairs: lane L of vector j is output
// (j % 2) * 8 + L / 2, input j / 2 * 2 + L % 2.
//
//   8 bits   a byte per (octet, vector, lane)
//   4 bits   a 32-bit word per (octet, lane): vector j at bit NibbleShift(j)
//   5 bits   the low four as above; plane = a word per lane for the whole block: the fifth bit of
//            octet o, vector j is bit 8 * (j % 4) + 2 * o + j / 4
//   6 bits   the low four as above; plane = a word per (half block, lane): bits 4 and 5 of octet o,
//            vector j are at bit 8 * (j % 4) + 4 * (o % 2) + 2 * (j / 4)
//
// so a shift moves the high bits of four vectors beside their nibbles at once.
#pragma once

#include <cstddef>

#include "base/isa.h"
#include "tensor/weight_block.h"
#include "tensor/weight_format.h"

namespace kvik::tensor {

inline constexpr size_t kPanelOutputs = 16;
inline constexpr size_t kGroupPanels = 4;
inline constexpr size_t kGroupOutputs = kPanelOutputs * kGroupPanels;
inline constexpr size_t kOctet = 8;

constexpr int NibbleShift(int vector) { return 8 * (vector % 4) + 4 * (vector / 4); }

// How plain floats are stored.
enum class PlainStorage { kF32, kF16, kBf16, kBf16Pairs };
// REQUIRES: not IsQuantized(format).
constexpr PlainStorage PlainStorageOf(WeightFormat format, ComputeType compute) {
  if (compute == ComputeType::kBf16) {
    return PlainStorage::kBf16Pairs;
  }
  return format == WeightFormat::kF32   ? PlainStorage::kF32
         : format == WeightFormat::kF16 ? PlainStorage::kF16
                                        : PlainStorage::kBf16;
}

// Sizes are per panel.
struct PackedLayout {
  size_t block_k = 0;
  size_t block_bytes = 0;
  size_t scale_bytes = 0;  // of a block
  size_t plane_bytes = 0;  // of a block
  size_t header_k = 0;     // 0 = no headers
  size_t header_bytes = 0;
};

constexpr PackedLayout PackedLayoutOf(WeightFormat format, ComputeType compute) {
  PackedLayout layout;
  if (!IsQuantized(format)) {
    layout.block_k = kOctet;
    layout.block_bytes =
        kOctet * kPanelOutputs * (PlainStorageOf(format, compute) == PlainStorage::kF32 ? 4 : 2);
    return layout;
  }
  const QuantFormat quant = QuantFormatOf(format);
  layout.block_k = 32;
  if (quant.has_sub_scales) {
    layout.header_k = static_cast<size_t>(quant.block_k);
    layout.header_bytes = kPanelOutputs * (quant.has_min ? 4 : 2);
    layout.scale_bytes = kPanelOutputs * 2;
  } else {
    layout.scale_bytes = kPanelOutputs * (quant.has_min ? 4 : 2);
  }
  layout.plane_bytes = quant.bits == 5   ? kPanelOutputs * 4
                       : quant.bits == 6 ? kPanelOutputs * 8
                                         : 0;
  layout.block_bytes =
      layout.scale_bytes + layout.plane_bytes + kPanelOutputs * (quant.bits == 8 ? 32 : 16);
  return layout;
}

// Bytes of one panel over k inputs (k is rounded up to whole blocks).
constexpr size_t PanelBytes(const PackedLayout& layout, size_t k) {
  const size_t blocks = (k + layout.block_k - 1) / layout.block_k;
  return blocks * layout.block_bytes +
         (layout.header_k == 0 ? 0
                               : (k + layout.header_k - 1) / layout.header_k * layout.header_bytes);
}

// Byte offsets within a group of `panels` panels.
constexpr size_t HeaderOffset(const PackedLayout& layout, size_t panels, size_t header,
                              size_t panel) {
  const size_t span = layout.header_bytes + layout.header_k / layout.block_k * layout.block_bytes;
  return header * panels * span + panel * layout.header_bytes;
}
constexpr size_t BlockOffset(const PackedLayout& layout, size_t panels, size_t block,
                             size_t panel) {
  if (layout.header_k == 0) {
    return (block * panels + panel) * layout.block_bytes;
  }
  const size_t per_header = layout.header_k / layout.block_k;
  return HeaderOffset(layout, panels, block / per_header, 0) + panels * layout.header_bytes +
         (block % per_header * panels + panel) * layout.block_bytes;
}

// Where an output and an input of an octet live: the same for quants and pairs of plain floats.
struct Slot {
  size_t vector;
  size_t lane;
};
constexpr Slot SlotOf(ComputeType compute, size_t output, size_t input) {
  return compute == ComputeType::kF32
             ? Slot{input, output}
             : Slot{input / 2 * 2 + output / 8, output % 8 * 2 + input % 2};
}

}  // namespace kvik::tensor
