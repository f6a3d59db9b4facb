// SPDX-License-Identifier: Apache-2.0
// attention/plan.h: the work of one step's attention, cut into items and dealt to threads.
//
// Built once per step from the segments of all requests and used by every layer. Scores are
// summed in an order that depends on positions only: keys are visited in tiles of kTileTokens at
// absolute multiples, tiles belong to spans of kSpanTokens at absolute multiples, every span
// starts from a fresh softmax state, and spans are merged in ascending order. How segments are cut
// into items is therefore free to follow the load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "kv/geometry.h"

namespace kvik::attention {

constexpr int32_t kTileTokens = 64;   // keys of one step of the online softmax
constexpr int32_t kSpanTokens = 512;  // keys of one softmax state; a multiple of kTileTokens

constexpr int32_t kMaxHeadDim = 256;

struct AttentionShape {
  int32_t num_q_heads = 0;     // a multiple of num_kv_heads; query head h reads kv head
  int32_t num_kv_heads = 0;    //   h / (num_q_heads / num_kv_heads)
  int32_t head_dim = 0;        // a multiple of 16, at most 256
  float scale = 0;             // of the scores, usually 1 / sqrt(head_dim)
  int32_t sliding_window = 0;  // > 0: position p sees [p - sliding_window + 1, p]; 0: all of [0, p]

  [[nodiscard]] constexpr int32_t group() const { return num_q_heads / num_kv_heads; }
  friend constexpr bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

// A query tile has about this many rows (tokens x query heads of one kv head): they share the keys
// that pass through the cache, and their scratch stays in it.
constexpr int32_t kTileRows = 96;

constexpr int32_t MaxTileTokens(const AttentionShape& shape) {
  return shape.group() >= kTileRows ? 1 : kTileRows / shape.group();
}

// Rows [first_row, first_row + num_tokens) of the batch are the tokens at positions
// [first_pos, first_pos + num_tokens) of one request. A decode is a segment of one token; a chunk
// that jumps over cached tokens is several segments with one block table.
struct MsaSegment {
  int32_t first_row = 0;
  int32_t num_tokens = 0;  // >= 1
  int32_t first_pos = 0;
  // Block of every block_size_tokens positions from 0 on; covers [0, first_pos + num_tokens).
  const BlockId* block_table = nullptr;
};

// Query rows of one kv head (or of one token and several kv heads) against spans [first_span,
// end_span) of one request's keys.
struct AttentionItem {
  int32_t segment = 0;
  int32_t first_token = 0;  // within the segment
  int32_t num_tokens = 0;
  int32_t kv_head = 0;
  int32_t num_kv_heads = 1;  // from kv_head on
  int32_t first_span = 0;
  int32_t end_span = 0;
  // >= 0: the item is part of a query tile whose spans are computed by several items; index into
  // AttentionPlan::splits().
  int32_t split = -1;
  int64_t cost = 0;  // relative
};

// A query tile whose spans are separate items; the item that finishes last merges them.
struct AttentionSplit {
  int32_t first_span = 0;
  int32_t num_spans = 0;
  int32_t rows = 0;        // num_tokens * group * kv heads
  size_t first_state = 0;  // of [num_spans][rows] states, in the executor's scratch
};

// Consecutive tokens of one segment whose keys and values are written by one task.
struct WriteItem {
  int32_t segment = 0;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
};

// Reuse one object across steps: Build keeps the capacity. Thread-compatible.
class AttentionPlan {
 public:
  // Replaces the plan. Borrows the block tables until the last use of the plan. The order of items
  // and their sizes depend on `num_threads`; results do not.
  // REQUIRES: segments hold at least one token each and do not share rows.
  void Build(const AttentionShape& shape, std::span<const MsaSegment> segments, int num_threads);

  [[nodiscard]] const AttentionShape& shape() const { return shape_; }
  [[nodiscard]] std::span<const MsaSegment> segments() const { return segments_; }
  [[nodiscard]] std::span<const AttentionItem> items() const { return items_; }
  // Thread t begins with items [thread_ends()[t - 1], thread_ends()[t]): ThreadPool.
  [[nodiscard]] std::span<const size_t> thread_ends() const { return thread_ends_; }
  [[nodiscard]] std::span<const AttentionSplit> splits() const { return splits_; }
  [[nodiscard]] std::span<const WriteItem> write_items() const { return write_items_; }
  [[nodiscard]] size_t num_split_states() const { return num_split_states_; }
  [[nodiscard]] int32_t num_rows() const { return num_rows_; }  // 1 + the largest row

 private:
  // Sorts, splits and deals items_. Returns when the last thread is done.
  int64_t Arrange(int64_t total_cost, int num_threads);
  // Replaces every tile above `max_cost` by its spans.
  void SplitLargeTiles(int64_t max_cost);

  AttentionShape shape_;
  std::vector<MsaSegment> segments_;
  std::vector<AttentionItem> items_;  // by thread, each one's most expensive first
  std::vector<size_t> thread_ends_;
  std::vector<AttentionSplit> splits_;
  std::vector<WriteItem> write_items_;
  std::vector<std::vector<AttentionItem>> hands_;  // [threads], used while building
  size_t num_split_states_ = 0;
  int32_t num_rows_ = 0;
};

}  // namespace kvik::attention
