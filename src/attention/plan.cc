// SPDX-License-Identifier: Apache-2.0
// A query tile is some tokens of one segment, all query heads of one kv head: its rows share the
// keys that pass through the cache. Tiles are as long as the kernels' scratch allows. Items are
// dealt to threads largest first. Where that would leave threads idle at the end, tiles that are a
// large share of the whole step (a decode with a long context and few others) are split into their
// spans.
#include "attention/plan.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kvik::attention {
namespace {

constexpr int32_t kItemsPerThread = 4;  // a larger share than 1 / (threads * this) is split
// Splitting a tile costs about this share of it (states stored and merged), so less idle time than
// that is left alone.
constexpr double kSplitCost = 0.02;
// Reading the pages of all kv heads of a block together saves a decode about this share; it may
// leave threads idle for no more.
constexpr double kJoinGain = 0.08;
// Fetching keys and values costs about as much as computing with this many rows.
constexpr int64_t kFetchRows = 8;
// Positions after which a write item is cut. Even, so that no two items share a pair of tokens.
constexpr int32_t kWriteTokens = 64;

void SortByCost(std::vector<AttentionItem>& items) {
  std::sort(items.begin(), items.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return std::tuple(-a.cost, a.segment, a.kv_head, a.first_token, a.first_span) <
           std::tuple(-b.cost, b.segment, b.kv_head, b.first_token, b.first_span);
  });
}

// Deals items in order, each to the thread that is free first. Returns when the last one is done.
int64_t Deal(const std::vector<AttentionItem>& items, int num_threads,
             std::vector<std::vector<AttentionItem>>& hands) {
  using FreeAt = std::pair<int64_t, size_t>;  // time, thread
  std::priority_queue<FreeAt, std::vector<FreeAt>, std::greater<>> threads;
  hands.resize(static_cast<size_t>(num_threads));
  for (size_t i = 0; i < hands.size(); ++i) {
    hands[i].clear();
    threads.emplace(0, i);
  }
  int64_t last = 0;
  for (const AttentionItem& item : items) {
    const auto [time, thread] = threads.top();
    threads.pop();
    threads.emplace(time + item.cost, thread);
    hands[thread].push_back(item);
    last = std::max(last, time + item.cost);
  }
  return last;
}

// Deals items in order, to each thread as many as make about `ideal`: spans of one tile stay
// together, and the kernel that ends one fetches the keys of the next. Returns when the last one is
// done.
int64_t DealInRuns(const std::vector<AttentionItem>& items, double ideal,
                   std::vector<std::vector<AttentionItem>>& hands) {
  for (std::vector<AttentionItem>& hand : hands) {
    hand.clear();
  }
  int64_t dealt = 0;
  int64_t last = 0;
  int64_t hand_begin = 0;
  size_t hand = 0;
  for (const AttentionItem& item : items) {
    const double middle = static_cast<double>(dealt) + static_cast<double>(item.cost) / 2;
    const size_t to = std::min(hands.size() - 1, static_cast<size_t>(middle / ideal));
    if (to != hand) {
      hand = to;
      hand_begin = dealt;
    }
    hands[to].push_back(item);
    dealt += item.cost;
    last = std::max(last, dealt - hand_begin);
  }
  return last;
}

// One item of all kv heads of every decode.
std::vector<AttentionItem> JoinHeads(const std::vector<AttentionItem>& tiles,
                                     const AttentionShape& shape) {
  std::vector<AttentionItem> items;
  for (size_t i = 0; i < tiles.size();) {
    AttentionItem item = tiles[i];
    if (item.num_tokens == 1) {
      item.num_kv_heads = shape.num_kv_heads;
      item.cost *= shape.num_kv_heads;
    }
    items.push_back(item);
    i += static_cast<size_t>(item.num_kv_heads);
  }
  return items;
}

}  // namespace

void AttentionPlan::Build(const AttentionShape& shape, std::span<const MsaSegment> segments,
                          int num_threads) {
  KVIK_CHECK(num_threads >= 1);
  shape_ = shape;
  segments_.assign(segments.begin(), segments.end());
  items_.clear();
  splits_.clear();
  write_items_.clear();
  num_split_states_ = 0;
  num_rows_ = 0;

  const int32_t tile_tokens = MaxTileTokens(shape);
  int64_t total_cost = 0;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const MsaSegment& segment = segments_[s];
    KVIK_CHECK(segment.num_tokens >= 1 && segment.first_pos >= 0 && segment.first_row >= 0);
    num_rows_ = std::max(num_rows_, segment.first_row + segment.num_tokens);
    for (int32_t t = 0; t < segment.num_tokens;) {
      const int32_t pos = segment.first_pos + t;
      const int32_t n = std::min(kWriteTokens - pos % kWriteTokens, segment.num_tokens - t);
      write_items_.push_back({static_cast<int32_t>(s), t, n});
      t += n;
    }
    const int32_t num_tiles = (segment.num_tokens + tile_tokens - 1) / tile_tokens;
    for (int32_t i = 0, t = 0; i < num_tiles; ++i) {
      const int32_t n = std::min(tile_tokens, segment.num_tokens - t);
      const int32_t first_pos = segment.first_pos + t;
      const int32_t last_pos = first_pos + n - 1;
      const int32_t first_key =
          shape.sliding_window > 0 ? std::max(0, first_pos - shape.sliding_window + 1) : 0;
      AttentionItem item;
      item.segment = static_cast<int32_t>(s);
      item.first_token = t;
      item.num_tokens = n;
      item.first_span = first_key / kSpanTokens;
      item.end_span = last_pos / kSpanTokens + 1;
      item.cost = (static_cast<int64_t>(n) * shape.group() + kFetchRows) *
                  (static_cast<int64_t>(last_pos) + 1 - first_key);
      for (item.kv_head = 0; item.kv_head < shape.num_kv_heads; ++item.kv_head) {
        items_.push_back(item);
        total_cost += item.cost;
      }
      t += n;
    }
  }

  // Joined decodes read memory best, but their spans are the largest items.
  const std::vector<AttentionItem> tiles = std::move(items_);
  const double ideal = static_cast<double>(total_cost) / num_threads;
  items_ = JoinHeads(tiles, shape);
  const bool joined = items_.size() < tiles.size();
  const int64_t last = Arrange(total_cost, num_threads);
  if (joined && static_cast<double>(last) > (1 + kJoinGain) * ideal) {
    items_ = tiles;
    Arrange(total_cost, num_threads);
  }
  items_.clear();
  thread_ends_.clear();
  for (const std::vector<AttentionItem>& hand : hands_) {
    items_.insert(items_.end(), hand.begin(), hand.end());
    thread_ends_.push_back(items_.size());
  }
}

int64_t AttentionPlan::Arrange(int64_t total_cost, int num_threads) {
  splits_.clear();
  num_split_states_ = 0;
  const double ideal = static_cast<double>(total_cost) / num_threads;
  SortByCost(items_);
  const int64_t last = Deal(items_, num_threads, hands_);
  if (static_cast<double>(last) <= (1 + kSplitCost) * ideal) {
    return last;
  }
  SplitLargeTiles(total_cost / (static_cast<int64_t>(num_threads) * kItemsPerThread));
  return DealInRuns(items_, ideal, hands_);
}

void AttentionPlan::SplitLargeTiles(int64_t max_cost) {
  std::vector<AttentionItem> items;
  for (const AttentionItem& tile : items_) {
    const int32_t num_spans = tile.end_span - tile.first_span;
    if (tile.cost <= max_cost || num_spans == 1) {
      items.push_back(tile);
      continue;
    }
    const auto split = static_cast<int32_t>(splits_.size());
    const int32_t rows = tile.num_tokens * shape_.group() * tile.num_kv_heads;
    // All spans but the last are full, or nearly (sliding windows).
    const MsaSegment& segment = segments_[static_cast<size_t>(tile.segment)];
    const int32_t span_end = segment.first_pos + tile.first_token + tile.num_tokens;
    const int64_t tile_keys = span_end - tile.first_span * kSpanTokens;
    splits_.push_back({tile.first_span, num_spans, rows, num_split_states_});
    num_split_states_ += static_cast<size_t>(num_spans) * static_cast<size_t>(rows);
    for (int32_t span = tile.first_span; span < tile.end_span; ++span) {
      AttentionItem part = tile;
      part.first_span = span;
      part.end_span = span + 1;
      part.split = split;
      const int64_t keys = std::min(span_end, (span + 1) * kSpanTokens) - span * kSpanTokens;
      part.cost = tile.cost * keys / tile_keys;
      items.push_back(part);
    }
  }
  items_ = std::move(items);
}

}  // namespace kvik::attention
