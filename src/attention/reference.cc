// SPDX-License-Identifier: Apache-2.0
#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/kv_pages.h"
#include "base/check.h"

namespace kvik::attention {
namespace {

// Positions [0, num_tokens) of one kv head, token-major.
std::vector<float> Gather(const kv::KvGeometry& geometry, const MsaSegment& segment, int layer,
                          kv::KvPart part, int kv_head, std::span<const std::byte> arena) {
  const auto head_dim = static_cast<size_t>(geometry.head_dim);
  const int num_tokens = segment.first_pos + segment.num_tokens;
  std::vector<float> rows(static_cast<size_t>(num_tokens) * head_dim);
  for (int pos = 0; pos < num_tokens; pos += geometry.block_size_tokens) {
    const int n = std::min(geometry.block_size_tokens, num_tokens - pos);
    const PageRef page{segment.block_table[pos / geometry.block_size_tokens], layer, part, kv_head,
                       0};
    ReadPage(geometry, arena, page,
             std::span(rows).subspan(static_cast<size_t>(pos) * head_dim,
                                     static_cast<size_t>(n) * head_dim));
  }
  return rows;
}

bool IsDropped(const kv::BlockMasks* masks, const MsaSegment& segment, int pos, int layer,
               int kv_head) {
  if (masks == nullptr) {
    return false;
  }
  const kv::KvGeometry& geometry = masks->geometry();
  const uint64_t* words = masks->Of(segment.block_table[pos / geometry.block_size_tokens]);
  return words != nullptr &&
         (words[layer * geometry.num_kv_heads + kv_head] >> (pos % geometry.block_size_tokens) &
          1) == 0;
}

}  // namespace

void ReferenceAttention(const AttentionShape& shape, const kv::KvGeometry& geometry,
                        std::span<const MsaSegment> segments, int layer, std::span<const float> q,
                        std::span<const std::byte> arena, std::span<double> out,
                        const kv::BlockMasks* masks) {
  KVIK_CHECK(q.size() == out.size());
  const auto head_dim = static_cast<size_t>(shape.head_dim);
  constexpr double kDropped = -std::numeric_limits<double>::infinity();
  std::vector<double> weight;
  for (const MsaSegment& segment : segments) {
    for (int head = 0; head < shape.num_q_heads; ++head) {
      const int kv_head = head / shape.group();
      const std::vector<float> keys =
          Gather(geometry, segment, layer, kv::KvPart::kKey, kv_head, arena);
      const std::vector<float> values =
          Gather(geometry, segment, layer, kv::KvPart::kValue, kv_head, arena);
      for (int t = 0; t < segment.num_tokens; ++t) {
        const int pos = segment.first_pos + t;
        const int first =
            shape.sliding_window > 0 ? std::max(0, pos - shape.sliding_window + 1) : 0;
        const size_t row =
            (static_cast<size_t>(segment.first_row + t) * static_cast<size_t>(shape.num_q_heads) +
             static_cast<size_t>(head)) *
            head_dim;
        weight.assign(static_cast<size_t>(pos - first + 1), 0.0);
        for (size_t j = 0; j < weight.size(); ++j) {
          const size_t key = (static_cast<size_t>(first) + j) * head_dim;
          for (size_t d = 0; d < head_dim; ++d) {
            weight[j] += static_cast<double>(q[row + d]) * static_cast<double>(keys[key + d]);
          }
          weight[j] *= static_cast<double>(shape.scale);
          if (IsDropped(masks, segment, first + static_cast<int>(j), layer, kv_head)) {
            weight[j] = kDropped;
          }
        }
        std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(row), head_dim, 0.0);
        const double max = *std::max_element(weight.begin(), weight.end());
        if (max == kDropped) {
          continue;
        }
        double sum = 0;
        for (double& w : weight) {
          w = std::exp(w - max);
          sum += w;
        }
        for (size_t j = 0; j < weight.size(); ++j) {
          if (IsDropped(masks, segment, first + static_cast<int>(j), layer, kv_head)) {
            continue;  // 0 * NaN is not 0
          }
          const size_t value = (static_cast<size_t>(first) + j) * head_dim;
          for (size_t d = 0; d < head_dim; ++d) {
            out[row + d] += weight[j] / sum * static_cast<double>(values[value + d]);
          }
        }
      }
    }
  }
}

}  // namespace kvik::attention
