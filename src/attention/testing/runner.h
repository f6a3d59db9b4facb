// SPDX-License-Identifier: Apache-2.0
// attention/testing/runner.h: requests run through Attention in steps, for its tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/kv_pages.h"
#include "attention/reference.h"
#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/rng.h"
#include "kv/block_masks.h"

namespace kvik::attention {

constexpr int kNumLayers = 2;

inline float Normal(Rng& rng) {
  // Sum of four uniforms, of the 16-bit parts of one draw: near enough, bounded, and the same on
  // every platform. Most values of a test are such, so it had better be cheap.
  const uint64_t bits = rng.Next();
  const auto sum = static_cast<int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                                        (bits >> 32 & 0xFFFF) + (bits >> 48));
  return static_cast<float>(sum - 2 * 0xFFFF) * (1.7320508F / 65536.0F);
}

inline std::vector<float> RandomRows(Rng& rng, size_t rows, int width) {
  std::vector<float> values(rows * static_cast<size_t>(width));
  for (float& v : values) {
    v = Normal(rng);
  }
  return values;
}

// The tokens of one request: q, k and v of every position.
struct Request {
  int num_tokens = 0;
  std::vector<float> q, k, v;
};

inline Request RandomRequest(Rng& rng, const AttentionShape& shape, int num_tokens) {
  const auto n = static_cast<size_t>(num_tokens);
  return {num_tokens, RandomRows(rng, n, shape.num_q_heads * shape.head_dim),
          RandomRows(rng, n, shape.num_kv_heads * shape.head_dim),
          RandomRows(rng, n, shape.num_kv_heads * shape.head_dim)};
}

// Positions [first_pos, first_pos + num_tokens) of request `request`.
struct Piece {
  size_t request = 0;
  int first_pos = 0;
  int num_tokens = 0;
};
using Step = std::vector<Piece>;

// Runs requests through Attention step by step, with their blocks at random places of an arena
// whose unwritten bytes are NaN. Outputs pile up by request and position.
class Runner {
 public:
  Runner(Isa isa, ComputeType compute, const AttentionShape& shape, kv::KvDtype dtype,
         int block_size, const std::vector<Request>& requests, uint64_t seed, int num_threads = 1)
      : shape_(shape),
        geometry_{kNumLayers, shape.num_kv_heads, shape.head_dim, block_size, dtype},
        requests_(requests),
        pool_(num_threads),
        masks_(geometry_, NumBlocks(requests, block_size)) {
    auto attention = Attention::Create(isa, compute, shape, geometry_);
    KVIK_CHECK(attention.has_value());
    attention_ = std::move(*attention);
    std::vector<BlockId> ids;
    for (const Request& request : requests) {
      tables_.emplace_back((static_cast<size_t>(request.num_tokens + block_size - 1) /
                            static_cast<size_t>(block_size)));
      for (size_t i = 0; i < tables_.back().size() + 1; ++i) {
        ids.push_back(static_cast<BlockId>(ids.size()));
      }
    }
    Rng rng(seed, 7);
    auto arena = AlignedBuffer::Create(ids.size() * geometry_.bytes_per_block());
    KVIK_CHECK(arena.has_value());
    arena_ = std::move(*arena);
    std::memset(arena_.data(), 0xFF, arena_.size_bytes());  // NaN as bf16 and as float32
    size_t next = 0;
    for (std::vector<BlockId>& table : tables_) {
      for (BlockId& id : table) {
        std::swap(ids[next], ids[next + rng.Below(ids.size() - next)]);
        id = ids[next++];
      }
    }
    for (const Request& request : requests) {
      out_.emplace_back(request.q.size(), std::numeric_limits<float>::quiet_NaN());
    }
  }

  // Stores keys and values of positions without attending: cached by someone earlier.
  void Cache(const Piece& piece, int layer) {
    for (int pos = piece.first_pos; pos < piece.first_pos + piece.num_tokens; ++pos) {
      for (int head = 0; head < shape_.num_kv_heads; ++head) {
        const Request& request = requests_[piece.request];
        const size_t at = (static_cast<size_t>(pos) * static_cast<size_t>(shape_.num_kv_heads) +
                           static_cast<size_t>(head)) *
                          static_cast<size_t>(shape_.head_dim);
        PageRef page{tables_[piece.request][static_cast<size_t>(pos / geometry_.block_size_tokens)],
                     layer, kv::KvPart::kKey, head, pos % geometry_.block_size_tokens};
        const auto dim = static_cast<size_t>(shape_.head_dim);
        WritePage(geometry_, arena(), page, std::span(request.k).subspan(at, dim));
        page.part = kv::KvPart::kValue;
        WritePage(geometry_, arena(), page, std::span(request.v).subspan(at, dim));
      }
    }
  }

  // Drops the token at `pos` for one kv head and, if `bytes` says so, fills its slot with them.
  void Drop(size_t request, int pos, int layer, int kv_head, std::optional<float> bytes = {}) {
    const int size = geometry_.block_size_tokens;
    PageRef page{tables_[request][static_cast<size_t>(pos / size)], layer, kv::KvPart::kKey,
                 kv_head, pos % size};
    masks_.Drop(page.block, layer, kv_head, page.first_slot, page.first_slot + 1);
    if (bytes) {
      const std::vector<float> row(static_cast<size_t>(shape_.head_dim), *bytes);
      WritePage(geometry_, arena(), page, row);
      page.part = kv::KvPart::kValue;
      WritePage(geometry_, arena(), page, row);
    }
  }

  void Run(const Step& step, int layer = 0) {
    BuildBatch(step);
    const uint64_t before = attention_->num_dispatches();
    plan_.Build(shape_, segments_, pool_.num_threads());
    attention_->WriteKv(plan_, layer, k_, v_, arena(), pool_);
    std::vector<float> out(q_.size(), std::numeric_limits<float>::quiet_NaN());
    attention_->Attend(plan_, layer, q_, arena(), out, pool_, &masks_);
    EXPECT_EQ(attention_->num_dispatches(), before + 1);
    const size_t width = q_width();
    for (size_t i = 0; i < step.size(); ++i) {
      std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(
                                    static_cast<size_t>(segments_[i].first_row) * width),
                  static_cast<size_t>(step[i].num_tokens) * width,
                  out_[step[i].request].begin() +
                      static_cast<std::ptrdiff_t>(static_cast<size_t>(step[i].first_pos) * width));
    }
  }

  // The reference's output of the last Run, in its row order: [rows, q heads, head_dim].
  std::vector<double> Reference(const Step& step, int layer = 0) {
    BuildBatch(step);
    std::vector<double> out(q_.size());
    ReferenceAttention(shape_, geometry_, segments_, layer, q_, arena(), out, &masks_);
    return out;
  }

  // [num_tokens, q heads, head_dim]; NaN where no step computed it.
  const std::vector<float>& out(size_t request) const { return out_[request]; }
  const kv::KvGeometry& geometry() const { return geometry_; }
  const std::vector<BlockId>& table(size_t request) const { return tables_[request]; }
  std::span<std::byte> arena() { return {arena_.data(), arena_.size_bytes()}; }
  AttentionPlan& plan() { return plan_; }
  kv::BlockMasks& masks() { return masks_; }

 private:
  // One more a request than it needs: unused blocks lie between.
  static int NumBlocks(const std::vector<Request>& requests, int block_size) {
    int blocks = 0;
    for (const Request& request : requests) {
      blocks += (request.num_tokens + block_size - 1) / block_size + 1;
    }
    return blocks;
  }
  [[nodiscard]] size_t q_width() const {
    return static_cast<size_t>(shape_.num_q_heads * shape_.head_dim);
  }

  void BuildBatch(const Step& step) {
    segments_.clear();
    q_.clear();
    k_.clear();
    v_.clear();
    int row = 0;
    for (const Piece& piece : step) {
      const Request& request = requests_[piece.request];
      segments_.push_back({row, piece.num_tokens, piece.first_pos, tables_[piece.request].data()});
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from, int heads) {
        const auto width = static_cast<std::ptrdiff_t>(heads * shape_.head_dim);
        to.insert(to.end(), from.begin() + piece.first_pos * width,
                  from.begin() + (piece.first_pos + piece.num_tokens) * width);
      };
      append(q_, request.q, shape_.num_q_heads);
      append(k_, request.k, shape_.num_kv_heads);
      append(v_, request.v, shape_.num_kv_heads);
      row += piece.num_tokens;
    }
  }

  AttentionShape shape_;
  kv::KvGeometry geometry_;
  const std::vector<Request>& requests_;
  ThreadPool pool_;
  kv::BlockMasks masks_;
  std::unique_ptr<Attention> attention_;
  AttentionPlan plan_;
  AlignedBuffer arena_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::vector<float>> out_;
  std::vector<MsaSegment> segments_;
  std::vector<float> q_, k_, v_;
};

inline AttentionShape Shape(int q_heads, int kv_heads, int head_dim, int window = 0) {
  return {q_heads, kv_heads, head_dim, 1.0F / std::sqrt(static_cast<float>(head_dim)), window};
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One Isa and arithmetic. Tests of what this host cannot run are skipped by name.
struct Target {
  Isa isa;
  ComputeType compute;
  kv::KvDtype dtype;
};

inline std::string TargetName(const Target& target) {
  return std::string(IsaName(target.isa)) +
         (target.compute == ComputeType::kBf16 ? "_bf16" : "_f32") +
         (target.dtype == kv::KvDtype::kBf16 ? "_bf16kv" : "_f32kv");
}

inline std::vector<Target> AllTargets() {
  std::vector<Target> targets;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    for (ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
      for (kv::KvDtype dtype : {kv::KvDtype::kBf16, kv::KvDtype::kF32}) {
        if (ComputeSupported(isa, compute)) {
          targets.push_back({isa, compute, dtype});
        }
      }
    }
  }
  return targets;
}

// Skips what this host cannot run.
class TargetTest : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!IsaSupported(GetParam().isa)) {
      GTEST_SKIP() << IsaName(GetParam().isa) << " is not supported by this CPU";
    }
  }
  // The portable code is slow: it gets the same cases, shorter, and fewer random ones.
  [[nodiscard]] int Length(int tokens) const {
    return GetParam().isa == Isa::kScalar ? std::max(1, tokens / 4) : tokens;
  }
  [[nodiscard]] size_t Cases(size_t random) const {
    return GetParam().isa == Isa::kScalar ? (random + 1) / 2 : random;
  }
  // Every target gets other cases: what plans, cuts and merges is the same code for all of them.
  [[nodiscard]] static std::vector<uint64_t> Seeds(size_t count) {
    const Target& t = GetParam();
    const uint64_t target = static_cast<uint64_t>(t.isa) * 4 +
                            static_cast<uint64_t>(t.compute) * 2 + static_cast<uint64_t>(t.dtype);
    std::vector<uint64_t> seeds;
    for (uint64_t i = 0; i < count; ++i) {
      seeds.push_back(1 + target + 16 * i);
    }
    return seeds;
  }
  [[nodiscard]] double Tolerance() const {
    return GetParam().compute == ComputeType::kBf16 && GetParam().dtype == kv::KvDtype::kBf16
               ? 2e-2
               : 2e-5;
  }
  Runner MakeRunner(const AttentionShape& shape, int block_size,
                    const std::vector<Request>& requests, uint64_t seed, int threads = 1) const {
    const Target& t = GetParam();
    return Runner(t.isa, t.compute, shape, t.dtype, block_size, requests, seed, threads);
  }
};

// What a test computes: `cached` tokens have KV before it starts, `todo` are the others, by request
// and in order.
struct Work {
  std::vector<Piece> cached;
  std::vector<std::vector<Piece>> todo;
};

// Cached runs of random lengths. The last token is always to be computed.
inline Work RandomWork(Rng& rng, const std::vector<Request>& requests, bool with_cache) {
  Work work;
  work.todo.resize(requests.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    const int n = requests[r].num_tokens;
    for (int pos = 0; pos < n;) {
      const int run = std::min<int>(n - pos, static_cast<int>(rng.Range(1, std::max(2, n / 2))));
      if (with_cache && rng.Below(2) == 0 && pos + run < n) {
        work.cached.push_back({r, pos, run});
      } else {
        work.todo[r].push_back({r, pos, run});
      }
      pos += run;
    }
  }
  return work;
}

// Random steps: chunks of any size, several segments of one request in one step with cached tokens
// between them, decodes, other requests beside.
inline std::vector<Step> CutIntoSteps(Rng& rng, std::vector<std::vector<Piece>> todo) {
  std::vector<Step> steps;
  std::vector<size_t> next(todo.size());
  for (bool left = true; left;) {
    left = false;
    Step step;
    for (size_t r = 0; r < todo.size(); ++r) {
      int budget = rng.Below(3) == 0 ? 1 : static_cast<int>(rng.Range(0, 90));
      while (budget > 0 && next[r] < todo[r].size()) {
        Piece& run = todo[r][next[r]];
        const int n = std::min(budget, run.num_tokens);
        step.push_back({r, run.first_pos, n});
        run.first_pos += n;
        run.num_tokens -= n;
        budget -= n;
        next[r] += run.num_tokens == 0 ? 1 : 0;
      }
      left |= next[r] < todo[r].size();
    }
    // Segments of a request stay in order, requests come in any order.
    const size_t first = rng.Below(todo.size());
    std::stable_sort(step.begin(), step.end(), [&](const Piece& a, const Piece& b) {
      const auto key = [&](const Piece& p) { return (p.request + first) % todo.size(); };
      return key(a) < key(b);
    });
    if (!step.empty()) {
      steps.push_back(step);
    }
  }
  return steps;
}

// Compares the rows of `pieces` of one request's outputs [positions, width].
inline void ExpectSameRows(const std::vector<float>& want, const std::vector<float>& got,
                           const std::vector<Piece>& pieces, int width, uint64_t seed) {
  for (const Piece& piece : pieces) {
    const size_t at = static_cast<size_t>(piece.first_pos) * static_cast<size_t>(width);
    const size_t n = static_cast<size_t>(piece.num_tokens) * static_cast<size_t>(width);
    ASSERT_EQ(std::memcmp(want.data() + at, got.data() + at, n * sizeof(float)), 0)
        << "seed " << seed << " request " << piece.request << " positions [" << piece.first_pos
        << ", " << piece.first_pos + piece.num_tokens << ")";
  }
}

}  // namespace kvik::attention
