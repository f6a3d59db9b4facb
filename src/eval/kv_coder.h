// SPDX-License-Identifier: Apache-2.0
// eval/kv_coder.h: what happens to KV between the two sides that share it, as quality sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/result.h"
#include "kv/geometry.h"

namespace kvik::eval {

// Positions [first_pos, end_pos) that a kv head no longer has.
struct DroppedTokens {
  int32_t kv_head = 0;
  int32_t first_pos = 0;
  int32_t end_pos = 0;
};

// Keys and values of one layer at positions [first_pos, first_pos + num_tokens), each
// [kv_heads, num_tokens, head_dim].
struct CodedRows {
  int32_t layer = 0;
  int32_t first_pos = 0;
  int32_t num_tokens = 0;
  int32_t prompt_tokens = 0;          // of the whole prompt
  std::vector<Bf16>* keys = nullptr;  // both in and out; never null
  std::vector<Bf16>* values = nullptr;
};

struct CodedSize {
  uint64_t bytes = 0;  // on the wire, everything counted
  std::vector<DroppedTokens> dropped;
};

class KvCoder {
 public:
  virtual ~KvCoder() = default;
  // For people: a canonical pipeline string.
  [[nodiscard]] virtual std::string name() const = 0;
  // Equal identities give equal results: the name, and hashes of what else decides them.
  [[nodiscard]] virtual std::string identity() const = 0;
  // Replaces the rows by what a reader gets of them. `thread` in [0, threads) tells apart calls
  // that run at the same time; results do not depend on it.
  virtual Result<CodedSize> RoundTrip(const CodedRows& rows, int thread) = 0;
};

}  // namespace kvik::eval
