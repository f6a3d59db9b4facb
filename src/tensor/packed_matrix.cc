// SPDX-License-Identifier: Apache-2.0
#include "tensor/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/float16.h"
#include "tensor/packed_layout.h"
#include "tensor/weight_block.h"

namespace kvik::tensor {
namespace {

struct Packer {
  WeightView weights;
  ComputeType compute;
  PackedLayout layout;
  size_t n;
  size_t k;
  size_t panels;
  size_t panel_bytes;
  size_t row_bytes;
  std::byte* out;

  // The file's row of an output, or null for the padding of the last panel.
  [[nodiscard]] const std::byte* Row(size_t output) const {
    if (output >= n) {
      return nullptr;
    }
    const size_t row = weights.row_order.empty() ? output : weights.row_order[output];
    return weights.data.data() + row * row_bytes;
  }

  void PackGroup(size_t group) const {
    const size_t first_panel = group * kGroupPanels;
    const size_t group_panels = std::min(kGroupPanels, panels - first_panel);
    std::byte* base = out + first_panel * panel_bytes;
    for (size_t p = 0; p < group_panels; ++p) {
      const std::byte* rows[kPanelOutputs];
      for (size_t i = 0; i < kPanelOutputs; ++i) {
        rows[i] = Row((first_panel + p) * kPanelOutputs + i);
      }
      if (IsQuantized(weights.format)) {
        PackQuantPanel(rows, base, group_panels, p);
      } else {
        PackPlainPanel(rows, base, group_panels, p);
      }
    }
  }

  void PackPlainPanel(const std::byte* const* rows, std::byte* base, size_t group_panels,
                      size_t panel) const {
    const PlainStorage storage = PlainStorageOf(weights.format, compute);
    const size_t value_bytes = WeightBlockOf(weights.format).bytes;
    for (size_t i = 0; i < kPanelOutputs; ++i) {
      if (rows[i] == nullptr) {
        continue;  // the buffer is zeroed
      }
      for (size_t j = 0; j < k; ++j) {
        std::byte* block = base + BlockOffset(layout, group_panels, j / kOctet, panel);
        const std::byte* value = rows[i] + j * value_bytes;
        if (storage == PlainStorage::kBf16Pairs) {
          float f;
          DequantizeRow(weights.format, value, 1, &f);
          const Bf16 rounded = ToBf16(f);
          std::memcpy(block + ((j % kOctet / 2 * kPanelOutputs + i) * 2 + j % 2) * 2, &rounded, 2);
        } else {
          std::memcpy(block + (j % kOctet * kPanelOutputs + i) * value_bytes, value, value_bytes);
        }
      }
    }
  }

  void PackQuantPanel(const std::byte* const* rows, std::byte* base, size_t group_panels,
                      size_t panel) const {
    const QuantFormat quant = QuantFormatOf(weights.format);
    const WeightBlock file_block = WeightBlockOf(weights.format);
    const size_t blocks_per_file_block = file_block.values / layout.block_k;
    // [block][octet * 8 + vector][lane]; lanes of padding outputs stay 0, as do their scales.
    uint8_t slots[8][32][kPanelOutputs] = {};
    for (size_t f = 0; f < k / file_block.values; ++f) {
      for (size_t i = 0; i < kPanelOutputs; ++i) {
        if (rows[i] == nullptr) {
          continue;
        }
        WeightBlockParts parts;
        SplitBlock(weights.format, rows[i] + f * file_block.bytes, &parts);
        for (size_t b = 0; b < blocks_per_file_block; ++b) {
          for (size_t j = 0; j < 32; ++j) {
            const Slot slot = SlotOf(compute, i, j % kOctet);
            slots[b][j / kOctet * kOctet + slot.vector][slot.lane] = parts.q[b * 32 + j];
          }
        }
        StoreScales(parts, quant, base, group_panels, panel, f, i);
      }
      for (size_t b = 0; b < blocks_per_file_block; ++b) {
        std::byte* block =
            base + BlockOffset(layout, group_panels, f * blocks_per_file_block + b, panel);
        StoreQuants(slots[b], quant.bits, block + layout.scale_bytes);
      }
    }
  }

  void StoreScales(const WeightBlockParts& parts, const QuantFormat& quant, std::byte* base,
                   size_t group_panels, size_t panel, size_t file_block, size_t output) const {
    constexpr size_t kF16Row = kPanelOutputs * 2;
    std::byte* d =
        base + (quant.has_sub_scales ? HeaderOffset(layout, group_panels, file_block, panel)
                                     : BlockOffset(layout, group_panels, file_block, panel));
    std::memcpy(d + output * 2, &parts.d, 2);
    if (quant.has_min) {
      std::memcpy(d + kF16Row + output * 2, &parts.m, 2);
    }
    if (!quant.has_sub_scales) {
      return;
    }
    for (size_t b = 0; b < 8; ++b) {
      std::byte* scales = base + BlockOffset(layout, group_panels, file_block * 8 + b, panel);
      if (quant.has_min) {
        scales[output] = std::byte{parts.sub_scale[b]};
        scales[kPanelOutputs + output] = std::byte{parts.sub_min[b]};
      } else {
        scales[output] = std::byte{parts.sub_scale[2 * b]};
        scales[kPanelOutputs + output] = std::byte{parts.sub_scale[2 * b + 1]};
      }
    }
  }

  // Plane and quants of one block.
  static void StoreQuants(const uint8_t (*slots)[kPanelOutputs], int bits, std::byte* to) {
    if (bits == 8) {
      std::memcpy(to, slots, 32 * kPanelOutputs);
      return;
    }
    uint32_t nibbles[4][kPanelOutputs] = {};
    uint32_t plane[2][kPanelOutputs] = {};
    for (unsigned o = 0; o < 4; ++o) {
      for (unsigned j = 0; j < kOctet; ++j) {
        const uint8_t* q = slots[o * kOctet + j];
        const int shift = NibbleShift(static_cast<int>(j));
        const unsigned byte = 8 * (j % 4);
        for (size_t lane = 0; lane < kPanelOutputs; ++lane) {
          const uint32_t high = static_cast<uint32_t>(q[lane]) >> 4;
          nibbles[o][lane] |= (q[lane] & 15U) << shift;
          if (bits == 5) {
            plane[0][lane] |= high << (byte + 2 * o + j / 4);
          } else if (bits == 6) {
            plane[o / 2][lane] |= high << (byte + 4 * (o % 2) + 2 * (j / 4));
          }
        }
      }
    }
    const size_t plane_bytes = bits == 5 ? sizeof(plane[0]) : bits == 6 ? sizeof(plane) : 0;
    std::memcpy(to, plane, plane_bytes);
    std::memcpy(to + plane_bytes, nibbles, sizeof(nibbles));
  }
};

Result<void> Validate(const WeightView& weights) {
  constexpr size_t kMaxDimension = size_t{1} << 31;
  const WeightBlock block = WeightBlockOf(weights.format);
  if (weights.rows > kMaxDimension || weights.cols > kMaxDimension ||
      weights.row_order.size() > kMaxDimension) {
    return Err(ErrorCode::kInvalidInput, "a weight matrix of %zu x %zu is too large", weights.rows,
               weights.cols);
  }
  if (weights.cols % block.values != 0) {
    return Err(ErrorCode::kInvalidInput, "%s weights need a multiple of %zu columns, not %zu",
               WeightFormatName(weights.format), block.values, weights.cols);
  }
  const size_t expected = weights.rows * WeightRowBytes(weights.format, weights.cols);
  if (weights.data.size() != expected) {
    return Err(ErrorCode::kInvalidInput, "%zu x %zu %s weights need %zu bytes, not %zu",
               weights.rows, weights.cols, WeightFormatName(weights.format), expected,
               weights.data.size());
  }
  for (const uint32_t row : weights.row_order) {
    if (row >= weights.rows) {
      return Err(ErrorCode::kInvalidInput, "row %u of a weight matrix with %zu rows", row,
                 weights.rows);
    }
  }
  return {};
}

}  // namespace

Result<PackedMatrix> PackedMatrix::Pack(const WeightView& weights, ComputeType compute,
                                        ThreadPool& pool) {
  return PackInto(weights, compute, pool, nullptr);
}

Result<PackedMatrix> PackedMatrix::Pack(const WeightView& weights, ComputeType compute,
                                        ThreadPool& pool, HugePageArena& arena) {
  return PackInto(weights, compute, pool, &arena);
}

Result<PackedMatrix> PackedMatrix::PackInto(const WeightView& weights, ComputeType compute,
                                            ThreadPool& pool, HugePageArena* arena) {
  KVIK_TRY(Validate(weights));
  PackedMatrix matrix;
  matrix.n_ = weights.row_order.empty() ? weights.rows : weights.row_order.size();
  matrix.k_ = weights.cols;
  matrix.format_ = weights.format;
  matrix.compute_ = compute;
  const PackedLayout layout = PackedLayoutOf(weights.format, compute);
  const size_t panels = (matrix.n_ + kPanelOutputs - 1) / kPanelOutputs;
  const size_t panel_bytes = PanelBytes(layout, weights.cols);
  const size_t size_bytes = panels * panel_bytes;
  if (arena != nullptr) {
    KVIK_ASSIGN(matrix.bytes_, arena->Allocate(size_bytes));
  } else {
    KVIK_ASSIGN(matrix.own_, AlignedBuffer::Create(size_bytes));
    matrix.bytes_ = {matrix.own_.data(), size_bytes};
  }
  const Packer packer = {.weights = weights,
                         .compute = compute,
                         .layout = layout,
                         .n = matrix.n_,
                         .k = matrix.k_,
                         .panels = panels,
                         .panel_bytes = panel_bytes,
                         .row_bytes = WeightRowBytes(weights.format, weights.cols),
                         .out = matrix.bytes_.data()};
  pool.ParallelFor((panels + kGroupPanels - 1) / kGroupPanels,
                   [&](size_t group, int) { packer.PackGroup(group); });
  return matrix;
}

void PackedMatrix::ReadRow(size_t row, float* out) const {
  KVIK_CHECK(row < n_);
  const PackedLayout layout = PackedLayoutOf(format_, compute_);
  const size_t panels = (n_ + kPanelOutputs - 1) / kPanelOutputs;
  const size_t first_panel = row / kGroupOutputs * kGroupPanels;
  const size_t group_panels = std::min(kGroupPanels, panels - first_panel);
  const size_t panel = row / kPanelOutputs - first_panel;
  const size_t output = row % kPanelOutputs;
  const std::byte* base = bytes_.data() + first_panel * PanelBytes(layout, k_);
  const auto load = [](const std::byte* p, auto v) {
    std::memcpy(&v, p, sizeof(v));
    return v;
  };

  if (!IsQuantized(format_)) {
    const PlainStorage storage = PlainStorageOf(format_, compute_);
    for (size_t j = 0; j < k_; ++j) {
      const std::byte* block = base + BlockOffset(layout, group_panels, j / kOctet, panel);
      const size_t linear = j % kOctet * kPanelOutputs + output;
      const size_t paired = (j % kOctet / 2 * kPanelOutputs + output) * 2 + j % 2;
      switch (storage) {
        case PlainStorage::kF32:
          out[j] = load(block + linear * 4, float{});
          break;
        case PlainStorage::kF16:
          out[j] = ToFloat(load(block + linear * 2, F16{}));
          break;
        case PlainStorage::kBf16:
          out[j] = ToFloat(load(block + linear * 2, Bf16{}));
          break;
        case PlainStorage::kBf16Pairs:
          out[j] = ToFloat(load(block + paired * 2, Bf16{}));
          break;
      }
    }
    return;
  }

  constexpr size_t kF16Row = kPanelOutputs * 2;
  const QuantFormat quant = QuantFormatOf(format_);
  for (size_t b = 0; b < k_ / layout.block_k; ++b, out += layout.block_k) {
    const std::byte* block = base + BlockOffset(layout, group_panels, b, panel);
    const std::byte* dm =
        quant.has_sub_scales
            ? base + HeaderOffset(layout, group_panels, b * layout.block_k / layout.header_k, panel)
            : block;
    float scale[2];  // of the two halves of the block
    scale[0] = ToFloat(load(dm + output * 2, F16{}));
    float min = quant.has_min ? ToFloat(load(dm + kF16Row + output * 2, F16{})) : 0.0F;
    scale[1] = scale[0];
    if (quant.has_sub_scales && quant.has_min) {
      scale[0] *= static_cast<float>(load(block + output, uint8_t{}));
      scale[1] = scale[0];
      min *= -static_cast<float>(load(block + kPanelOutputs + output, uint8_t{}));
    } else if (quant.has_sub_scales) {
      scale[0] *= static_cast<float>(load(block + output, int8_t{}));
      scale[1] *= static_cast<float>(load(block + kPanelOutputs + output, int8_t{}));
    }
    const std::byte* plane = block + layout.scale_bytes;
    const std::byte* quants = plane + layout.plane_bytes;
    for (size_t j = 0; j < layout.block_k; ++j) {
      const size_t octet = j / kOctet;
      const Slot slot = SlotOf(compute_, output, j % kOctet);
      int q = 0;
      if (quant.bits == 8) {
        const int8_t code =
            load(quants + (octet * kOctet + slot.vector) * kPanelOutputs + slot.lane, int8_t{});
        q = code;
      } else {
        const uint32_t nibbles = load(quants + (octet * kPanelOutputs + slot.lane) * 4, uint32_t{});
        uint32_t bits = nibbles >> NibbleShift(static_cast<int>(slot.vector)) & 15U;
        const size_t byte = 8 * (slot.vector % 4);
        if (quant.bits == 5) {
          const uint32_t word = load(plane + slot.lane * 4, uint32_t{});
          bits |= (word >> (byte + 2 * octet + slot.vector / 4) & 1U) << 4;
        } else if (quant.bits == 6) {
          const uint32_t word =
              load(plane + (octet / 2 * kPanelOutputs + slot.lane) * 4, uint32_t{});
          bits |= (word >> (byte + 4 * (octet % 2) + 2 * (slot.vector / 4)) & 3U) << 4;
        }
        q = static_cast<int>(bits) - quant.offset;
      }
      const float product = scale[j / 16] * static_cast<float>(q);
      out[j] = quant.has_min ? product + min : product;
    }
  }
}

}  // namespace kvik::tensor
