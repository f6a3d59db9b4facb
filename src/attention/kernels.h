// SPDX-License-Identifier: Apache-2.0
// attention/kernels.h: the seam between the driver (attention.cc) and the kernels compiled per ISA.
// Plain data only. Internal to the module.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "base/types.h"
#include "kv/geometry.h"

namespace kvik::attention {

// Keys and values of one request, layer and kv head.
struct KvPages {
  std::byte* keys = nullptr;    // the key page of block 0
  std::byte* values = nullptr;  // the value page of block 0
  size_t block_stride_bytes = 0;
  size_t page_bytes = 0;  // of one kv head: the next one's page follows
  const BlockId* block_table = nullptr;
  int32_t block_size_shift = 4;  // log2 of the block size in tokens
  // Kept slots: masks[block] is null (all are) or points to words, of which `mask_word` is that of
  // this kv head and the next one's follows. Null: nothing is dropped anywhere.
  const uint64_t* const* masks = nullptr;
  size_t mask_word = 0;
};

// One softmax state: the sum of weights and of weighted values relative to a maximum.
//   float value[head_dim], then max, sum, padding: kStateExtra floats.
constexpr int32_t kStateExtra = 16;
constexpr size_t StateFloats(int32_t head_dim) {
  return static_cast<size_t>(head_dim) + static_cast<size_t>(kStateExtra);
}

// Query rows are (token, query head of the group), heads innermost.
struct AttendArgs {
  const float* q = nullptr;  // first token, first query head of the group
  float* out = nullptr;      // the same place in the output; not used when states is set
  float* states = nullptr;   // [end_span - first_span][rows] states; null: merge them and write out
  size_t row_stride = 0;     // floats between tokens in q and out
  int32_t num_tokens = 0;
  int32_t group = 0;  // query heads of a kv head
  // Of `pages` and the ones after it. More than one: REQUIRES num_tokens == 1, and a row is a query
  // head of any of them.
  int32_t num_kv_heads = 1;
  int32_t head_dim = 0;
  int32_t first_pos = 0;
  int32_t sliding_window = 0;
  int32_t first_span = 0;
  int32_t end_span = 0;
  float scale = 0;  // of the scores, times log2(e): weights are powers of two
  KvPages pages;
  std::byte* scratch = nullptr;  // ScratchBytes(), 64-byte aligned, private to the thread
};

// Merges states[num_spans][rows] in ascending order into the output.
struct MergeArgs {
  const float* states = nullptr;
  float* out = nullptr;
  size_t row_stride = 0;
  int32_t num_spans = 0;
  int32_t num_tokens = 0;
  int32_t group = 0;
  int32_t head_dim = 0;
  std::byte* scratch = nullptr;
};

// Tokens [first_pos, first_pos + num_tokens) of one kv head.
struct WriteArgs {
  const float* k = nullptr;
  const float* v = nullptr;
  size_t row_stride = 0;  // floats between tokens
  int32_t num_tokens = 0;
  int32_t head_dim = 0;
  int32_t first_pos = 0;
  KvPages pages;
};

struct Kernels {
  Isa isa;
  void (*attend_f32)(const AttendArgs&);          // float32 pages
  void (*attend_bf16_as_f32)(const AttendArgs&);  // bf16 pages, float32 arithmetic
  void (*attend_bf16)(const AttendArgs&);         // bf16 pages and arithmetic; null where missing
  void (*merge)(const MergeArgs&);
  void (*write_f32)(const WriteArgs&);
  void (*write_bf16)(const WriteArgs&);
};

extern const Kernels kKernelsScalar;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsAvx512Bf16;

// Largest query tile in rows and its scratch.
size_t ScratchBytes(int32_t rows, int32_t head_dim);

}  // namespace kvik::attention
