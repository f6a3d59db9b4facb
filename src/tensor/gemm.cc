// SPDX-License-Identifier: Apache-2.0
#include "tensor/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "tensor/kernels.h"
#include "tensor/packed_layout.h"

namespace kvik::tensor {
namespace {

constexpr size_t kMaxOutputs = 8;

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }
size_t CeilDiv(size_t n, size_t d) { return (n + d - 1) / d; }

// How one Gemm is cut into items: groups of all outputs in a row, each times `chunks` chunks of
// rows. When groups do not divide evenly among threads, the last ones are cut in two halves of
// their panels, so that no thread waits for a whole group.
struct Partition {
  size_t groups = 0;
  size_t whole_groups = 0;  // the others are halved
  size_t chunks = 1;
  size_t chunk_rows = 0;

  [[nodiscard]] size_t num_items() const {
    return (whole_groups + 2 * (groups - whole_groups)) * chunks;
  }
};

Partition MakePartition(size_t groups, size_t rows, size_t row_tile, size_t threads) {
  // Rows of a chunk: enough to repay the unpacking of weights, few enough for their slice of
  // activations to stay in the second-level cache.
  constexpr size_t kMinChunkRows = 64;
  constexpr size_t kMaxChunkRows = 512;
  Partition partition = {.groups = groups, .whole_groups = groups};
  size_t chunks = CeilDiv(rows, kMaxChunkRows);
  if (threads > 1) {
    const size_t wanted_items = 8 * threads;
    chunks = std::max(chunks, std::min(CeilDiv(wanted_items, groups), rows / kMinChunkRows));
  }
  chunks = std::max<size_t>(chunks, 1);
  partition.chunk_rows = RoundUp(CeilDiv(rows, chunks), row_tile);
  partition.chunks = CeilDiv(rows, partition.chunk_rows);
  if (threads > 1 && partition.chunks == 1) {
    partition.whole_groups = groups / threads * threads;
  }
  return partition;
}

struct Job {
  const Context& ctx;
  const PackedActivations& x;
  std::span<const GemmOutput> outputs;
  size_t group_end[kMaxOutputs];  // running total of groups
  Partition partition;

  void RunItem(size_t item, int thread) const {
    const size_t chunk = item % partition.chunks;
    size_t group = item / partition.chunks;
    size_t panel_begin = 0;
    size_t panel_end = kGroupPanels;
    if (group >= partition.whole_groups) {
      const size_t half = group - partition.whole_groups;
      group = partition.whole_groups + half / 2;
      panel_begin = half % 2 == 0 ? 0 : kGroupPanels / 2;
      panel_end = panel_begin + kGroupPanels / 2;
    }
    size_t index = 0;
    while (group >= group_end[index]) {
      ++index;
    }
    const GemmOutput& output = outputs[index];
    const PackedMatrix& weights = *output.weights;
    group -= index == 0 ? 0 : group_end[index - 1];

    const size_t first_output = group * kGroupOutputs;
    const size_t group_outputs = std::min(kGroupOutputs, weights.n() - first_output);
    const size_t group_panels = CeilDiv(group_outputs, kPanelOutputs);
    panel_end = std::min(panel_end, group_panels);
    if (panel_begin >= panel_end) {
      return;
    }
    const PackedLayout layout = PackedLayoutOf(weights.format(), weights.compute());
    const size_t first_row = chunk * partition.chunk_rows;
    const size_t value_bytes = ctx.compute() == ComputeType::kBf16 ? sizeof(Bf16) : sizeof(float);
    const GroupProduct product = {
        .group = weights.data() + group * kGroupPanels * PanelBytes(layout, weights.k()),
        .group_panels = group_panels,
        .panel_begin = panel_begin,
        .panel_end = panel_end,
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
  KVIK_CHECK(outputs.size() <= kMaxOutputs);
  Job job = {.ctx = ctx, .x = x, .outputs = outputs, .group_end = {}, .partition = {}};
  size_t groups = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const PackedMatrix& weights = *outputs[i].weights;
    KVIK_CHECK(weights.k() == x.k() && weights.compute() == ctx.compute());
    groups += CeilDiv(weights.n(), kGroupOutputs);
    job.group_end[i] = groups;
  }
  if (groups == 0 || x.rows() == 0) {
    return;
  }
  job.partition = MakePartition(groups, x.rows(), ctx.kernels().gemm->row_tile,
                                static_cast<size_t>(ctx.pool().num_threads()));
  ctx.pool().ParallelFor(job.partition.num_items(),
                         [&](size_t item, int thread) { job.RunItem(item, thread); });
}

}  // namespace kvik::tensor
