// SPDX-License-Identifier: Apache-2.0
// tensor/gemm_inl.h: products of activations and packed weights. Include an ISA first.
//
// Two ways to the same sums. Few rows: walk the packed group once, unpack in registers and
// multiply at once; bound by reading the weights. Many rows: unpack a slice of inputs of the group
// into scratch and run a register tile over all rows; bound by multiply-adds. Either way an output
// is one accumulator that takes its pairs of inputs in ascending order: a tile that continues a
// slice reloads the float32 sums it stored.
#pragma once

#include "tensor/kernels.h"
#include "tensor/unpack_inl.h"

namespace kvik::tensor {
namespace {

// Tile sizes: accumulators stay in registers beside operands, and there are enough of them to
// cover the latency of multiply-adds.
template <class V>
struct Tiles {
  static constexpr bool kWideFile = V::kNumRegisters == 32;
  static constexpr bool kScalar = V::kIsa == Isa::kScalar;
  // Micro-kernel: 6 x 64 (AVX-512), 6 x 16 (AVX2).
  static constexpr int kRows = kScalar ? 4 : 6;
  static constexpr int kPanels = kWideFile ? 4 : 1;
  // Products from registers, by rows.
  static constexpr int kPanelsOf1 = kWideFile ? 4 : kScalar ? 1 : 2;
  static constexpr int kPanelsOf4 = kWideFile ? 2 : 1;
  static constexpr int kMaxFewRows = kScalar ? 1 : 4;
};

constexpr size_t MinSize(size_t a, size_t b) { return a < b ? a : b; }

// Valid outputs of a panel of the group, at most 16.
KVIK_SIMD_INLINE size_t PanelOutputs(const GroupProduct& t, size_t panel) {
  return MinSize(kPanelOutputs, t.outputs - panel * kPanelOutputs);
}

// out = acc + bias for kRows rows from `row`, of which those that exist are stored.
template <class V, int kRows, int kPanels>
KVIK_SIMD_INLINE void StoreTile(const GroupProduct& t, size_t row, size_t panel, bool add_bias,
                                const typename V::F32 (&acc)[kRows][kPanels]) {
  Unroll<kPanels>([&](auto p) KVIK_INLINE_LAMBDA {
    constexpr int kP = decltype(p)::value;
    const size_t outputs = PanelOutputs(t, panel + kP);
    const size_t first = (panel + kP) * kPanelOutputs;
    const typename V::F32 bias =
        add_bias && t.bias != nullptr ? V::LoadN(t.bias + first, outputs) : V::Zero();
    float* out = t.out + row * t.ld_out + first;
    Unroll<kRows>([&](auto m) KVIK_INLINE_LAMBDA {
      constexpr int kM = decltype(m)::value;
      if (row + kM < t.rows) {
        V::StoreN(out + kM * t.ld_out, V::Add(acc[kM][kP], bias), outputs);
      }
    });
  });
}

// kRows rows from `row` (fewer exist: the last is repeated) times kPanels panels from `panel`.
template <class V, class Codec, int kRows, int kPanels>
[[gnu::noinline]] static void FewRowsTile(const GroupProduct& t, size_t row, size_t panel) {
  using A = typename Codec::A;
  using X = typename A::X;
  using F32 = typename V::F32;
  constexpr size_t kBlockK = Codec::kLayout.block_k;
  constexpr size_t kBlockBytes = Codec::kLayout.block_bytes;
  constexpr size_t kHeaderK = Codec::kLayout.header_k;
  constexpr size_t kHeaderBytes = Codec::kLayout.header_bytes;

  const X* x[kRows];
  for (int m = 0; m < kRows; ++m) {
    x[m] = static_cast<const X*>(t.x) + MinSize(row + m, t.rows - 1) * t.ld_x;
  }
  F32 acc[kRows][kPanels];
  Unroll<kRows>([&](auto m) KVIK_INLINE_LAMBDA {
    Unroll<kPanels>([&](auto p) KVIK_INLINE_LAMBDA {
      acc[decltype(m)::value][decltype(p)::value] = V::Zero();
    });
  });

  const size_t block_stride = t.group_panels * kBlockBytes;
  const std::byte* next = t.group;
  for (size_t k = 0; k < t.k;) {
    typename Codec::Header header[kPanels];
    size_t span_end = t.k;
    if constexpr (kHeaderK != 0) {
      Unroll<kPanels>([&](auto p) KVIK_INLINE_LAMBDA {
        header[decltype(p)::value] =
            Codec::LoadHeader(next + (panel + decltype(p)::value) * kHeaderBytes);
      });
      next += t.group_panels * kHeaderBytes;
      span_end = k + kHeaderK;
    }
    const std::byte* block = next + panel * kBlockBytes;
    for (; k < span_end; k += kBlockK, block += block_stride, next += block_stride) {
      // The hardware's own prefetch stops at pages; this one keeps the stream going.
      constexpr size_t kAhead = 8192;
      for (size_t line = 0; line < kPanels * kBlockBytes; line += 64) {
        V::Prefetch(block + kAhead + line);
      }
      typename Codec::Scales scales[kPanels];
      Unroll<kPanels>([&](auto p) KVIK_INLINE_LAMBDA {
        constexpr int kP = decltype(p)::value;
        scales[kP] = Codec::LoadScales(header[kP], block + kP * kBlockBytes);
      });
      ForOctets<Codec>([&](auto octet, size_t i) KVIK_INLINE_LAMBDA {
        constexpr int kO = decltype(octet)::value;
        const size_t octet_k = k + i * kOctet;
        Unroll<kPanels>([&](auto p) KVIK_INLINE_LAMBDA {
          constexpr int kP = decltype(p)::value;
          Codec::template Octet<kO>(
              scales[kP], block + kP * kBlockBytes + i * Codec::kOctetBytes,
              [&](auto pair, typename A::Operand w) KVIK_INLINE_LAMBDA {
                constexpr int kK = kO * static_cast<int>(kOctet) + 2 * decltype(pair)::value;
                Unroll<kRows>([&](auto m) KVIK_INLINE_LAMBDA {
                  constexpr int kM = decltype(m)::value;
                  acc[kM][kP] = A::MultiplyAdd(w, x[kM] + octet_k + kK, acc[kM][kP]);
                });
              });
        });
      });
    }
  }

  StoreTile<V, kRows, kPanels>(t, row, panel, true, acc);
}

template <class V, class Codec, int kRows, int kPanels>
static void FewRowsPanels(const GroupProduct& t, size_t row, size_t panel) {
  for (; panel + kPanels <= t.panel_end; panel += kPanels) {
    FewRowsTile<V, Codec, kRows, kPanels>(t, row, panel);
  }
  if constexpr (kPanels > 1) {
    FewRowsPanels<V, Codec, kRows, kPanels / 2>(t, row, panel);
  }
}

template <class V, class Codec>
static void FewRows(const GroupProduct& t) {
  using T = Tiles<V>;
  if (t.rows == 1) {
    FewRowsPanels<V, Codec, 1, T::kPanelsOf1>(t, 0, t.panel_begin);
    return;
  }
  if constexpr (T::kMaxFewRows == 4) {
    FewRowsPanels<V, Codec, 4, T::kPanelsOf4>(t, 0, t.panel_begin);
  }
}

// A slice of inputs, unpacked: panels of scratch, `panel_stride` bytes apart.
struct Slice {
  const std::byte* weights;
  size_t panel_stride;
  size_t k;  // the slice's first input
  size_t inputs;
  bool first;             // sums start at zero
  bool last;              // sums get the bias
  const std::byte* next;  // the packed weights of the slice to come, to be prefetched
  size_t next_bytes;
};

template <class V, ComputeType kCompute, int kRows, int kPanels>
[[gnu::noinline]] static void ManyRowsTile(const GroupProduct& t, const Slice& slice, size_t row,
                                           size_t panel) {
  using A = Arithmetic<V, kCompute>;
  using X = typename A::X;
  using F32 = typename V::F32;
  const X* x = static_cast<const X*>(t.x) + row * t.ld_x + slice.k;
  const size_t ld_x = t.ld_x;
  F32 acc[kRows][kPanels];
  Unroll<kRows>([&](auto m) KVIK_INLINE_LAMBDA {
    constexpr int kM = decltype(m)::value;
    Unroll<kPanels>([&](auto p) KVIK_INLINE_LAMBDA {
      constexpr int kP = decltype(p)::value;
      acc[kM][kP] = slice.first
                        ? V::Zero()
                        : V::LoadN(t.out + (row + kM) * t.ld_out + (panel + kP) * kPanelOutputs,
                                   PanelOutputs(t, panel + kP));
    });
  });
  const std::byte* w = slice.weights;
  const size_t panel_stride = slice.panel_stride;
  constexpr size_t kStepBytes = A::kBytesPerPair * A::kStepInputs / 2;
  for (const std::byte* end = w + slice.inputs / A::kStepInputs * kStepBytes; w != end;
       x += A::kStepInputs, w += kStepBytes) {
    typename A::Step step[kPanels];
    Unroll<kPanels>([&](auto p) KVIK_INLINE_LAMBDA {
      step[decltype(p)::value] = A::LoadStep(w + decltype(p)::value * panel_stride);
    });
    Unroll<kRows>([&](auto m) KVIK_INLINE_LAMBDA {
      constexpr int kM = decltype(m)::value;
      Unroll<kPanels>([&](auto p) KVIK_INLINE_LAMBDA {
        constexpr int kP = decltype(p)::value;
        acc[kM][kP] = A::MultiplyAdd(step[kP], x + kM * ld_x, acc[kM][kP]);
      });
    });
  }
  StoreTile<V, kRows, kPanels>(t, row, panel, slice.last, acc);
}

// All rows in tiles of nearly equal size: a small rest would run at the latency of its few sums.
template <class V, ComputeType kCompute, int kPanels>
static void ManyRowsTiles(const GroupProduct& t, const Slice& slice, size_t panel) {
  constexpr int kRows = Tiles<V>::kRows;
  using Fn = void (*)(const GroupProduct&, const Slice&, size_t, size_t);
  static constexpr Fn kTiles[] = {
      ManyRowsTile<V, kCompute, 1, kPanels>,
      ManyRowsTile<V, kCompute, 2, kPanels>,
      ManyRowsTile<V, kCompute, 3, kPanels>,
      ManyRowsTile<V, kCompute, 4, kPanels>,
      ManyRowsTile < V,
      kCompute,
      kRows >= 5 ? 5 : 1,
      kPanels >
      , ManyRowsTile < V, kCompute, kRows >= 6 ? 6 : 1, kPanels >,
  };
  const size_t tiles = (t.rows + kRows - 1) / kRows;
  const size_t base = t.rows / tiles;
  const size_t larger = t.rows % tiles;  // tiles with one row more
  size_t row = 0;
  for (size_t i = 0; i < tiles; ++i) {
    const size_t rows = base + (i < larger ? 1 : 0);
    // Reading the next weights from memory overlaps with multiplying: a few lines every tile.
    const size_t line_end = slice.next_bytes * (i + 1) / tiles;
    for (size_t line = slice.next_bytes * i / tiles / 64 * 64; line < line_end; line += 64) {
      V::Prefetch(slice.next + line);
    }
    kTiles[rows - 1](t, slice, row, panel);
    row += rows;
  }
}

// Unpacks panel `panel` of the group, inputs [k, k + count), into `scratch`.
template <class V, class Codec>
[[gnu::noinline]] static void UnpackPanel(const GroupProduct& t, size_t panel, size_t k,
                                          size_t count, std::byte* scratch) {
  using A = typename Codec::A;
  constexpr PackedLayout kLayout = Codec::kLayout;
  for (size_t end = k + count; k < end; k += kLayout.block_k) {
    typename Codec::Header header{};
    if constexpr (kLayout.header_k != 0) {
      header = Codec::LoadHeader(
          t.group + HeaderOffset(kLayout, t.group_panels, k / kLayout.header_k, panel));
    }
    const std::byte* block =
        t.group + BlockOffset(kLayout, t.group_panels, k / kLayout.block_k, panel);
    const typename Codec::Scales scales = Codec::LoadScales(header, block);
    ForOctets<Codec>([&](auto octet, size_t i) KVIK_INLINE_LAMBDA {
      Codec::template Octet<decltype(octet)::value>(
          scales, block + i * Codec::kOctetBytes,
          [&](auto pair, typename A::Operand w) KVIK_INLINE_LAMBDA {
            A::Store(scratch + decltype(pair)::value * A::kBytesPerPair, w);
          });
      scratch += kOctet / 2 * A::kBytesPerPair;
    });
  }
}

template <class V, class Codec>
static void ManyRows(const GroupProduct& t) {
  using A = typename Codec::A;
  constexpr ComputeType kCompute = Codec::kCompute;
  constexpr size_t kPanels = Tiles<V>::kPanels;
  // Inputs of a slice, so that kPanels panels fill the scratch.
  constexpr size_t kSlice = kScratchBytes / kPanels / A::kBytesPerPair * 2 / 256 * 256 != 0
                                ? kScratchBytes / kPanels / A::kBytesPerPair * 2 / 256 * 256
                                : kScratchBytes / kPanels / A::kBytesPerPair * 2;
  // Groups lie one after the other, so what follows this group is the next one. Tiles that take
  // the panels of a group in turn would prefetch each slice four times over.
  constexpr size_t kPrefetchRows = kPanels == kGroupPanels ? 16 : SIZE_MAX;
  const size_t group_bytes = t.group_panels * PanelBytes(Codec::kLayout, t.k);
  for (size_t panel = t.panel_begin; panel < t.panel_end; panel += kPanels) {
    const size_t panels = MinSize(kPanels, t.panel_end - panel);
    for (size_t k = 0; k < t.k; k += kSlice) {
      const size_t count = MinSize(kSlice, t.k - k);
      const Slice slice = {.weights = t.scratch,
                           .panel_stride = kSlice / 2 * A::kBytesPerPair,
                           .k = k,
                           .inputs = count,
                           .first = k == 0,
                           .last = k + count == t.k,
                           .next = t.group + group_bytes * (k + count) / t.k,
                           .next_bytes = t.rows >= kPrefetchRows ? group_bytes * count / t.k : 0};
      for (size_t p = 0; p < panels; ++p) {
        UnpackPanel<V, Codec>(t, panel + p, k, count, t.scratch + p * slice.panel_stride);
      }
      if (panels == kPanels) {
        ManyRowsTiles<V, kCompute, kPanels>(t, slice, panel);
      } else if constexpr (kPanels == 4) {
        if (panels >= 2) {
          ManyRowsTiles<V, kCompute, 2>(t, slice, panel);
        }
        if (panels % 2 == 1) {
          Slice last = slice;
          last.weights += (panels - 1) * slice.panel_stride;
          ManyRowsTiles<V, kCompute, 1>(t, last, panel + panels - 1);
        }
      }
    }
  }
}

template <class V, ComputeType kCompute, WeightFormat kFormat, bool kQuantized>
struct CodecFor {
  using Type = QuantCodec<V, kCompute, kFormat>;
};
template <class V, ComputeType kCompute, WeightFormat kFormat>
struct CodecFor<V, kCompute, kFormat, false> {
  using Type = PlainCodec<V, kCompute, PlainStorageOf(kFormat, kCompute)>;
};
template <class V, ComputeType kCompute, WeightFormat kFormat>
using CodecOf = typename CodecFor<V, kCompute, kFormat, IsQuantized(kFormat)>::Type;

template <class V, ComputeType kCompute>
constexpr GemmKernels MakeGemmKernels() {
  GemmKernels kernels{};
  [&]<size_t... kI>(std::index_sequence<kI...>) {
    ((kernels.few_rows[kI] = FewRows<V, CodecOf<V, kCompute, kAllWeightFormats[kI]>>), ...);
    ((kernels.many_rows[kI] = ManyRows<V, CodecOf<V, kCompute, kAllWeightFormats[kI]>>), ...);
  }
  (std::make_index_sequence<kNumWeightFormats>{});
  kernels.max_few_rows = Tiles<V>::kMaxFewRows;
  kernels.row_tile = Tiles<V>::kRows;
  return kernels;
}

}  // namespace
}  // namespace kvik::tensor
