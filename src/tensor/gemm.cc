// SPDX-License-Identifier: Apache-2.0
#include "tensor/gemm.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/float16.h"
#include "tensor/kernels.h"
#include "tensor/packed_layout.h"

namespace kvik::tensor {
namespace {

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }
size_t CeilDiv(size_t n, size_t d) { return (n + d - 1) / d; }

// Some panels of one group times a chunk of rows.
struct Item {
  uint32_t output;  // index into the outputs
  uint32_t group;   // of the output
  uint32_t panel_begin, panel_end;
  uint32_t chunk;
};

// How one Gemm is cut into items and dealt to threads: chunks of rows one after the other, in each
// the panels of all outputs in a row. This line is cut at groups, and where it passes from one
// thread to the next. Neighbours in memory thus stay on one core: weights, and with as many chunks
// as threads the rows, which the loops before and after deal likewise.
struct Partition {
  size_t chunk_rows = 0;
  std::vector<Item> items;
  std::vector<size_t> thread_ends;
};

Partition MakePartition(std::span<const GemmOutput> outputs, size_t rows, size_t row_tile,
                        size_t threads) {
  // Rows of a chunk: enough to repay the unpacking of weights, few enough for their slice of
  // activations to stay in the second-level cache.
  constexpr size_t kMinChunkRows = 128;
  constexpr size_t kMaxChunkRows = 512;
  size_t panels = 0;
  for (const GemmOutput& output : outputs) {
    panels += CeilDiv(output.weights->n(), kPanelOutputs);
  }
  size_t chunks = CeilDiv(rows, kMaxChunkRows);
  if (threads > 1) {
    chunks = std::max(chunks, std::min(threads, rows / kMinChunkRows));
  }
  chunks = std::max<size_t>(chunks, 1);
  Partition partition;
  partition.chunk_rows = RoundUp(CeilDiv(rows, chunks), row_tile);
  chunks = CeilDiv(rows, partition.chunk_rows);

  const size_t total = chunks * panels;
  partition.thread_ends.reserve(threads);
  partition.items.reserve(chunks * CeilDiv(panels, kGroupPanels) + outputs.size() + threads);
  // Kernels like their panels in pairs.
  const auto end_of_thread = [&](size_t thread) {
    return thread + 1 == threads ? total : total * (thread + 1) / threads / 2 * 2;
  };
  size_t thread = 0;
  size_t thread_end = end_of_thread(0);
  size_t at = 0;
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    for (size_t index = 0; index < outputs.size(); ++index) {
      const size_t output_panels = CeilDiv(outputs[index].weights->n(), kPanelOutputs);
      for (size_t panel = 0; panel < output_panels;) {
        while (at == thread_end && thread + 1 < threads) {
          partition.thread_ends.push_back(partition.items.size());
          thread_end = end_of_thread(++thread);
        }
        const size_t group = panel / kGroupPanels;
        const size_t group_end = std::min((group + 1) * kGroupPanels, output_panels);
        const size_t n = std::min(group_end - panel, thread_end - at);
        partition.items.push_back({.output = static_cast<uint32_t>(index),
                                   .group = static_cast<uint32_t>(group),
                                   .panel_begin = static_cast<uint32_t>(panel % kGroupPanels),
                                   .panel_end = static_cast<uint32_t>(panel % kGroupPanels + n),
                                   .chunk = static_cast<uint32_t>(chunk)});
        panel += n;
        at += n;
      }
    }
  }
  partition.thread_ends.resize(threads, partition.items.size());
  return partition;
}

struct Job {
  const Context& ctx;
  const PackedActivations& x;
  std::span<const GemmOutput> outputs;
  Partition partition;

  void RunItem(const Item& item, int thread) const {
    const GemmOutput& output = outputs[item.output];
    const PackedMatrix& weights = *output.weights;
    const size_t group = item.group;
    const size_t first_output = group * kGroupOutputs;
    const size_t group_outputs = std::min(kGroupOutputs, weights.n() - first_output);
    const size_t group_panels = CeilDiv(group_outputs, kPanelOutputs);
    const PackedLayout layout = PackedLayoutOf(weights.format(), weights.compute());
    const size_t first_row = item.chunk * partition.chunk_rows;
    const size_t value_bytes = ctx.compute() == ComputeType::kBf16 ? sizeof(Bf16) : sizeof(float);
    const GroupProduct product = {
        .group = weights.data() + group * kGroupPanels * PanelBytes(layout, weights.k()),
        .group_panels = group_panels,
        .panel_begin = item.panel_begin,
        .panel_end = item.panel_end,
        .outputs = group_outputs,
        .k = RoundUp(weights.k(), kOctet),
        .x = static_cast<const std::byte*>(x.data()) + first_row * x.ld_values() * value_bytes,
        .ld_x = x.ld_values(),
        .rows = std::min(partition.chunk_rows, x.rows() - first_row),
        .bias = output.bias == nullptr ? nullptr : output.bias + first_output,
        .out = output.out + first_row * output.ld_out + first_output,
        .ld_out = output.ld_out,
        .scratch = ctx.scratch(thread)};
    const GemmKernels& kernels = *ctx.kernels().gemm;
    const auto format = static_cast<size_t>(weights.format());
    if (product.rows <= kernels.max_few_rows) {
      kernels.few_rows[format](product);
    } else {
      kernels.many_rows[format](product);
    }
  }
};

}  // namespace

Result<PackedActivations> PackedActivations::Create(ComputeType compute, size_t max_rows,
                                                    size_t max_k) {
  PackedActivations x;
  x.compute_ = compute;
  x.max_rows_ = max_rows;
  x.max_k_ = max_k;
  const size_t value_bytes = compute == ComputeType::kBf16 ? sizeof(Bf16) : sizeof(float);
  KVIK_ASSIGN(x.bytes_, AlignedBuffer::Create(max_rows * RoundUp(max_k, kOctet) * value_bytes));
  return x;
}

void PackedActivations::Begin(const Context& ctx, const float* x, size_t rows, size_t k,
                              size_t ld) {
  KVIK_CHECK(ctx.compute() == compute_);
  KVIK_CHECK(rows <= max_rows_ && k <= max_k_);
  rows_ = rows;
  k_ = k;
  borrowed_ = compute_ == ComputeType::kF32 && k % kOctet == 0;
  data_ = borrowed_ ? static_cast<const void*>(x) : bytes_.data();
  ld_values_ = borrowed_ ? ld : RoundUp(k, kOctet);
}

void PackedActivations::PackRow(const Context& ctx, const float* from, size_t row) {
  if (borrowed_) {
    return;
  }
  if (compute_ == ComputeType::kF32) {
    float* to = reinterpret_cast<float*>(bytes_.data()) + row * ld_values_;
    std::memcpy(to, from, k_ * sizeof(float));
    std::fill(to + k_, to + ld_values_, 0.0F);
  } else {
    ctx.kernels().row->to_bf16(from, k_, reinterpret_cast<Bf16*>(bytes_.data()) + row * ld_values_);
  }
}

void PackedActivations::Pack(const Context& ctx, const float* x, size_t rows, size_t k, size_t ld) {
  if (compute_ == ComputeType::kF32 && k % kOctet == 0) {
    Begin(ctx, x, rows, k, ld);  // nothing to copy
    return;
  }
  PackMade(ctx, x, rows, k, ld, [](size_t) {});
}

void Gemm(const Context& ctx, const PackedActivations& x, std::span<const GemmOutput> outputs) {
  for (const GemmOutput& output : outputs) {
    KVIK_CHECK(output.weights->k() == x.k() && output.weights->compute() == ctx.compute());
  }
  if (x.rows() == 0) {
    return;
  }
  const Job job = {.ctx = ctx,
                   .x = x,
                   .outputs = outputs,
                   .partition = MakePartition(outputs, x.rows(), ctx.kernels().gemm->row_tile,
                                              static_cast<size_t>(ctx.pool().num_threads()))};
  ctx.pool().ParallelForRanges(job.partition.thread_ends, [&](size_t item, int thread) {
    job.RunItem(job.partition.items[item], thread);
  });
}

}  // namespace kvik::tensor
