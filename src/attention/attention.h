// SPDX-License-Identifier: Apache-2.0
// attention/attention.h: Multi-Segment Attention over paged, non-contiguous KV on the CPU.
//
// Per step:   plan.Build(shape, segments, pool.num_threads())
// Per layer:  WriteKv(plan, layer, k, v, arena, pool)     all rows of the step, then
//             Attend(plan, layer, q, arena, out, pool)    one dispatch for the whole batch
//
// The keys and values of all segments are written before any query reads, so a segment attends to
// tokens that another segment of the same step computes. Causal: position p sees [0, p], or the
// last `sliding_window` of it.
//
// Exactness. The output of a row depends on its query, its position and the keys and values at the
// positions it sees, bit for bit; never on segments, chunking, other rows, threads, the block size
// or where blocks lie. Bytes of a block that no token was written to may be anything, NaN included.
//
// Dropped slots (kv/block_masks.h) take no part: scores of minus infinity, values absent. Their
// bytes may be anything, too, and all of the above holds with them. Tiles of kTileTokens of which a
// head has dropped everything are not read.
//
// Arithmetic. Compute type kF32: float32 multiply-adds; bf16 KV is widened. The same bits on every
// ISA. kBf16 with bf16 KV: queries (scaled) and softmax weights are rounded to bf16, products of
// bf16 pairs, float32 sums; the scalar twin gives the same bits as avx512bf16. kBf16 with float32
// KV computes as kF32 does: rounding stored float32 keys again would lose what their storage buys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "attention/plan.h"
#include "base/isa.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kv/block_masks.h"
#include "kv/geometry.h"

namespace kvik::attention {

// Kernels for one ISA, compute type, shape and geometry, and their scratch. One caller at a time
// (the engine thread), which also drives the pool.
class Attention {
 public:
  // kUnsupported: the ISA does not run here, lacks the compute type, or the shape is outside what
  // AttentionShape and KvGeometry say. kInvalidInput: shape and geometry contradict each other.
  static Result<std::unique_ptr<Attention>> Create(Isa isa, ComputeType compute,
                                                   const AttentionShape& shape,
                                                   const kv::KvGeometry& geometry);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  [[nodiscard]] Isa isa() const;
  // What the arithmetic is; kF32 where kBf16 was asked for with float32 KV.
  [[nodiscard]] ComputeType compute() const;
  [[nodiscard]] const AttentionShape& shape() const;
  [[nodiscard]] const kv::KvGeometry& geometry() const;

  // Stores rows of k and v ([plan.num_rows(), num_kv_heads, head_dim], k already rotated) at their
  // positions. `arena` holds whole blocks of geometry(), 64-byte aligned.
  // REQUIRES: the plan was built with shape(); its block ids lie in the arena; no two segments
  // write the same position of one block.
  void WriteKv(const AttentionPlan& plan, int layer, std::span<const float> k,
               std::span<const float> v, std::span<std::byte> arena, ThreadPool& pool);

  // out = attention of q over the arena; both [plan.num_rows(), num_q_heads, head_dim]. They do
  // not overlap. Rows that belong to no segment are left alone.
  // `masks` says what is dropped, of blocks of geometry(); null: nothing.
  // REQUIRES: as WriteKv, every position that is seen has been written, and none that is computed
  // is dropped: it sees itself. (A row that sees nothing gives zeros.)
  void Attend(const AttentionPlan& plan, int layer, std::span<const float> q,
              std::span<const std::byte> arena, std::span<float> out, ThreadPool& pool,
              const kv::BlockMasks* masks = nullptr);

  // Calls of Attend so far: one a layer and step, whatever the batch holds.
  [[nodiscard]] uint64_t num_dispatches() const;

 private:
  struct Impl;
  explicit Attention(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::attention
