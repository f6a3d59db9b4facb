// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "attention/kernels.h"
#include "base/aligned_buffer.h"
#include "base/check.h"

namespace kvik::attention {
namespace {

constexpr float kLog2E = 1.44269504F;

const Kernels& KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kKernelsScalar;
    case Isa::kAvx2:
      return kKernelsAvx2;
    case Isa::kAvx512:
      return kKernelsAvx512;
    case Isa::kAvx512Bf16:
      return kKernelsAvx512Bf16;
  }
  KVIK_CHECK(false, "unknown ISA");
}

AlignedBuffer Allocate(size_t size_bytes) {
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(size_bytes);
  KVIK_CHECK(buffer.has_value(), "no memory for %zu bytes of attention scratch", size_bytes);
  return std::move(*buffer);
}

}  // namespace

// Queries, the state of the span, the total; sums, maxima, positions and flags; a widened tile.
size_t ScratchBytes(int32_t rows, int32_t head_dim) {
  const auto r = static_cast<size_t>(rows + 15) / 16 * 16;
  const auto d = static_cast<size_t>(head_dim);
  return (3 * r * d + 16 * r + 6 * r + 2 * kTileTokens * d) * sizeof(float);
}

struct Attention::Impl {
  const Kernels* kernels = nullptr;
  ComputeType compute = ComputeType::kF32;
  AttentionShape shape;
  kv::KvGeometry geometry;
  void (*attend)(const AttendArgs&) = nullptr;
  void (*write)(const WriteArgs&) = nullptr;

  uint64_t num_dispatches = 0;
  size_t thread_scratch_bytes = 0;
  AlignedBuffer scratch;  // [threads][thread_scratch_bytes]
  AlignedBuffer states;   // of split tiles
  // Items of a split that are not done yet.
  std::vector<std::atomic<int32_t>> pending;

  KvPages Pages(std::byte* arena, int layer, int kv_head, const MsaSegment& segment) const {
    KvPages pages;
    pages.keys = arena + geometry.page_offset_bytes(layer, kv::KvPart::kKey, kv_head);
    pages.values = arena + geometry.page_offset_bytes(layer, kv::KvPart::kValue, kv_head);
    pages.block_stride_bytes = geometry.bytes_per_block();
    pages.page_bytes = geometry.bytes_per_page();
    pages.block_table = segment.block_table;
    pages.block_size_shift = std::countr_zero(static_cast<uint32_t>(geometry.block_size_tokens));
    return pages;
  }

  void Reserve(const AttentionPlan& plan, int num_threads) {
    const size_t scratch_bytes = thread_scratch_bytes * static_cast<size_t>(num_threads);
    if (scratch.size_bytes() < scratch_bytes) {
      scratch = Allocate(scratch_bytes);
    }
    const size_t state_bytes =
        plan.num_split_states() * StateFloats(shape.head_dim) * sizeof(float);
    if (states.size_bytes() < state_bytes) {
      states = Allocate(state_bytes);
    }
    if (pending.size() < plan.splits().size()) {
      pending = std::vector<std::atomic<int32_t>>(plan.splits().size());
    }
  }
};

Result<std::unique_ptr<Attention>> Attention::Create(Isa isa, ComputeType compute,
                                                     const AttentionShape& shape,
                                                     const kv::KvGeometry& geometry) {
  if (!IsaSupported(isa)) {
    return Err(ErrorCode::kUnsupported, "this CPU cannot run %s kernels", IsaName(isa));
  }
  if (!ComputeSupported(isa, compute)) {
    return Err(ErrorCode::kUnsupported, "%s kernels have no bf16 arithmetic", IsaName(isa));
  }
  if (shape.num_kv_heads <= 0 || shape.num_q_heads <= 0 ||
      shape.num_q_heads % shape.num_kv_heads != 0) {
    return Err(ErrorCode::kUnsupported,
               "attention: %d query heads are not a multiple of %d key/value heads",
               shape.num_q_heads, shape.num_kv_heads);
  }
  if (shape.head_dim <= 0 || shape.head_dim % 16 != 0 || shape.head_dim > kMaxHeadDim) {
    return Err(ErrorCode::kUnsupported,
               "attention: head dimension %d; 16, 32, ... %d are supported", shape.head_dim,
               kMaxHeadDim);
  }
  if (geometry.block_size_tokens != 16 && geometry.block_size_tokens != 32 &&
      geometry.block_size_tokens != 64) {
    return Err(ErrorCode::kUnsupported, "attention: block size %d; 16, 32 and 64 are supported",
               geometry.block_size_tokens);
  }
  if (geometry.num_kv_heads != shape.num_kv_heads || geometry.head_dim != shape.head_dim ||
      geometry.num_layers <= 0 || shape.sliding_window < 0) {
    return Err(ErrorCode::kInvalidInput, "attention: shape and KV geometry contradict each other");
  }
  auto impl = std::make_unique<Impl>();
  impl->kernels = &KernelsOf(isa);
  impl->shape = shape;
  impl->geometry = geometry;
  if (geometry.dtype == kv::KvDtype::kF32) {
    impl->attend = impl->kernels->attend_f32;
    impl->write = impl->kernels->write_f32;
  } else {
    impl->compute = compute;
    impl->attend = compute == ComputeType::kBf16 ? impl->kernels->attend_bf16
                                                 : impl->kernels->attend_bf16_as_f32;
    impl->write = impl->kernels->write_bf16;
  }
  impl->thread_scratch_bytes =
      ScratchBytes(std::max({MaxTileTokens(shape) * shape.group(), kTileRows, shape.num_q_heads}),
                   shape.head_dim);
  return std::unique_ptr<Attention>(new Attention(std::move(impl)));
}

Attention::Attention(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Attention::~Attention() = default;

Isa Attention::isa() const { return impl_->kernels->isa; }
ComputeType Attention::compute() const { return impl_->compute; }
const AttentionShape& Attention::shape() const { return impl_->shape; }
const kv::KvGeometry& Attention::geometry() const { return impl_->geometry; }
uint64_t Attention::num_dispatches() const { return impl_->num_dispatches; }

void Attention::WriteKv(const AttentionPlan& plan, int layer, std::span<const float> k,
                        std::span<const float> v, std::span<std::byte> arena, ThreadPool& pool) {
  const Impl& impl = *impl_;
  const auto row_stride =
      static_cast<size_t>(impl.shape.num_kv_heads) * static_cast<size_t>(impl.shape.head_dim);
  const size_t size = static_cast<size_t>(plan.num_rows()) * row_stride;
  KVIK_CHECK(plan.shape() == impl.shape && k.size() >= size && v.size() >= size);
  KVIK_CHECK(layer >= 0 && layer < impl.geometry.num_layers);
  pool.ParallelFor(plan.write_items().size(), [&](size_t i, int) {
    const WriteItem& item = plan.write_items()[i];
    const MsaSegment& segment = plan.segments()[static_cast<size_t>(item.segment)];
    const size_t row = static_cast<size_t>(segment.first_row + item.first_token) * row_stride;
    WriteArgs args;
    args.row_stride = row_stride;
    args.num_tokens = item.num_tokens;
    args.head_dim = impl.shape.head_dim;
    args.first_pos = segment.first_pos + item.first_token;
    for (int head = 0; head < impl.shape.num_kv_heads; ++head) {
      const size_t column = static_cast<size_t>(head) * static_cast<size_t>(impl.shape.head_dim);
      args.k = k.data() + row + column;
      args.v = v.data() + row + column;
      args.pages = impl.Pages(arena.data(), layer, head, segment);
      impl.write(args);
    }
  });
}

void Attention::Attend(const AttentionPlan& plan, int layer, std::span<const float> q,
                       std::span<const std::byte> arena, std::span<float> out, ThreadPool& pool,
                       const kv::BlockMasks* masks) {
  Impl& impl = *impl_;
  const auto row_stride =
      static_cast<size_t>(impl.shape.num_q_heads) * static_cast<size_t>(impl.shape.head_dim);
  const size_t size = static_cast<size_t>(plan.num_rows()) * row_stride;
  KVIK_CHECK(plan.shape() == impl.shape && q.size() >= size && out.size() >= size);
  KVIK_CHECK(layer >= 0 && layer < impl.geometry.num_layers);
  KVIK_CHECK(masks == nullptr || masks->geometry() == impl.geometry);
  const bool masked = masks != nullptr && !masks->empty();
  ++impl.num_dispatches;
  impl.Reserve(plan, pool.num_threads());
  for (size_t i = 0; i < plan.splits().size(); ++i) {
    impl.pending[i].store(plan.splits()[i].num_spans, std::memory_order_relaxed);
  }
  // Kernels that only read take the pages of kernels that write.
  std::byte* pages = const_cast<std::byte*>(arena.data());
  auto* states = reinterpret_cast<float*>(impl.states.data());
  const size_t state_floats = StateFloats(impl.shape.head_dim);

  KVIK_CHECK(plan.thread_ends().size() == static_cast<size_t>(pool.num_threads()));
  pool.ParallelForRanges(plan.thread_ends(), [&](size_t i, int thread) {
    const AttentionItem& item = plan.items()[i];
    const MsaSegment& segment = plan.segments()[static_cast<size_t>(item.segment)];
    const size_t first = static_cast<size_t>(segment.first_row + item.first_token) * row_stride +
                         static_cast<size_t>(item.kv_head) *
                             static_cast<size_t>(impl.shape.group() * impl.shape.head_dim);
    std::byte* scratch =
        impl.scratch.data() + static_cast<size_t>(thread) * impl.thread_scratch_bytes;
    AttendArgs args;
    args.q = q.data() + first;
    args.out = out.data() + first;
    args.row_stride = row_stride;
    args.num_tokens = item.num_tokens;
    args.group = impl.shape.group();
    args.num_kv_heads = item.num_kv_heads;
    args.head_dim = impl.shape.head_dim;
    args.first_pos = segment.first_pos + item.first_token;
    args.sliding_window = impl.shape.sliding_window;
    args.first_span = item.first_span;
    args.end_span = item.end_span;
    args.scale = impl.shape.scale * kLog2E;
    args.pages = impl.Pages(pages, layer, item.kv_head, segment);
    if (masked) {
      args.pages.masks = masks->table();
      args.pages.mask_word = static_cast<size_t>(layer * impl.shape.num_kv_heads + item.kv_head);
    }
    args.scratch = scratch;
    if (item.split < 0) {
      impl.attend(args);
      return;
    }
    const AttentionSplit& split = plan.splits()[static_cast<size_t>(item.split)];
    float* split_states = states + split.first_state * state_floats;
    args.states = split_states + static_cast<size_t>(item.first_span - split.first_span) *
                                     static_cast<size_t>(split.rows) * state_floats;
    impl.attend(args);
    // Whoever finishes last merges; what is merged, and in which order, does not depend on it.
    if (impl.pending[static_cast<size_t>(item.split)].fetch_sub(1, std::memory_order_acq_rel) ==
        1) {
      impl.kernels->merge({.states = split_states,
                           .out = args.out,
                           .row_stride = row_stride,
                           .num_spans = split.num_spans,
                           .num_tokens = item.num_tokens,
                           .group = args.group * args.num_kv_heads,
                           .head_dim = args.head_dim,
                           .scratch = scratch});
    }
  });
}

}  // namespace kvik::attention
