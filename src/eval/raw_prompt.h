// SPDX-License-Identifier: Apache-2.0
// eval/raw_prompt.h: one prompt as a model without a codec sees it, computed once: its keys and
// values, what it answers, and some of the queries that read them.
//
// One piece of bytes, in memory or a mapped file, little-endian:
//
//   header   128 bytes: magic "KVIKRAWP", version, key, shape, counts, size, XXH3 of payload,
//   header payload  tokens [T] i32, continuation [n + 1] i32, reference [m] i32, query positions
//   [q] i32,
//            queries [layers][q][q_heads][head_dim] f32,
//            rows [layers][2: K, V][kv_heads][T][head_dim] bf16; each part begins at a multiple of
//            64
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "base/aligned_buffer.h"
#include "base/float16.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "base/types.h"
#include "kv/geometry.h"

namespace kvik::eval {

struct RawShape {
  int32_t item = 0;  // of the data
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t num_q_heads = 0;
  int32_t head_dim = 0;
  int32_t num_tokens = 0;        // T, of the prompt
  int32_t num_continuation = 0;  // n + 1: every token but the last is fed, every one but the first
                                 // is judged; 1 where the model answers with an end token alone
  int32_t num_reference = 0;     // m
  int32_t num_queries = 0;       // q

  friend bool operator==(const RawShape&, const RawShape&) = default;
};

// Move-only. Immutable once sealed; then thread-safe.
class RawPrompt {
 public:
  // Zeroed memory of the shape, to be filled through the mutable spans and sealed. kExhausted;
  // kInvalidInput: a count is out of range.
  static Result<RawPrompt> Create(const RawShape& shape);
  // A sealed prompt as Save wrote it. Everything is checked: kCorrupt says what is wrong, kNotFound
  // that there is no file. `key` must be the one it was saved under.
  static Result<RawPrompt> Load(const std::string& path, uint64_t key);

  [[nodiscard]] const RawShape& shape() const { return shape_; }
  [[nodiscard]] size_t size_bytes() const { return bytes().size(); }

  [[nodiscard]] std::span<const TokenId> tokens() const;
  [[nodiscard]] std::span<const TokenId> continuation() const;
  [[nodiscard]] std::span<const TokenId> reference() const;
  // Rows of the continuation, ascending: position num_tokens + i has the queries at i.
  [[nodiscard]] std::span<const int32_t> query_positions() const;
  // [num_queries, num_q_heads, head_dim], rotated, not scaled.
  [[nodiscard]] std::span<const float> queries(int32_t layer) const;
  // [num_kv_heads, num_tokens, head_dim]; keys are rotated, as they lie in the cache.
  [[nodiscard]] std::span<const Bf16> rows(int32_t layer, kv::KvPart part) const;

  // REQUIRES: made by Create. Views of what the constant ones show.
  [[nodiscard]] std::span<TokenId> mutable_tokens();
  [[nodiscard]] std::span<TokenId> mutable_continuation();
  [[nodiscard]] std::span<TokenId> mutable_reference();
  [[nodiscard]] std::span<int32_t> mutable_query_positions();
  [[nodiscard]] std::span<float> mutable_queries(int32_t layer);
  [[nodiscard]] std::span<Bf16> mutable_rows(int32_t layer, kv::KvPart part);

  // Fills the header in and saves everything, under `key`: whoever reads meanwhile or after
  // a crash finds nothing or all of it. kUnavailable names the path.
  Result<void> Save(const std::string& path, uint64_t key);

  // What a prompt of the shape takes.
  static Result<uint64_t> SizeBytes(const RawShape& shape);

 private:
  // Where each part begins, in bytes.
  struct Layout {
    size_t tokens = 0;
    size_t continuation = 0;
    size_t reference = 0;
    size_t query_positions = 0;
    size_t queries = 0;
    size_t rows = 0;
    size_t end = 0;
  };
  RawPrompt(const RawShape& shape, const Layout& layout,
            std::variant<AlignedBuffer, MappedFile> storage);
  static Result<Layout> LayoutOf(const RawShape& shape);
  [[nodiscard]] std::span<const std::byte> bytes() const;
  void CheckOwned() const;

  RawShape shape_;
  Layout layout_;
  std::variant<AlignedBuffer, MappedFile> storage_;
};

}  // namespace kvik::eval
