// SPDX-License-Identifier: Apache-2.0
#include "kv/asym_run_policy.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvik::kv {
namespace {

constexpr int32_t kTokensPerRun = 128;
// What a segment saved may take off a run's cost, at most.
constexpr double kLeastShareOfCost = 0.01;

}  // namespace

AsymRunPolicy::AsymRunPolicy(const PolicyOptions& options)
    : ReuseValuePolicy(options, /*all_uses=*/true),
      blocks_per_run_(static_cast<size_t>(std::max(1, kTokensPerRun / options.block_size_tokens))),
      places_(static_cast<size_t>(options.num_blocks)),
      runs_(static_cast<size_t>(options.num_blocks)) {
  for (RunId run = options.num_blocks - 1; run >= 0; --run) {
    free_runs_.push_back(run);
  }
}

void AsymRunPolicy::AddEvictable(std::span<const BlockId> blocks) {
  for (size_t begin = 0; begin < blocks.size();) {
    size_t end = begin + 1;
    while (end < blocks.size() && block(blocks[end - 1]).first_pos - block(blocks[end]).first_pos ==
                                      options().block_size_tokens) {
      ++end;
    }
    const auto contiguous = blocks.subspan(begin, end - begin);
    Link(contiguous, /*is_deepest=*/begin == 0);
    AddRuns(contiguous);
    begin = end;
  }
}

// The request held everything up to its deepest block until now, so what is missing between the
// blocks it let go of is held by others. A neighbour known from an earlier release stays one.
void AsymRunPolicy::Link(std::span<const BlockId> contiguous, bool is_deepest) {
  BlockId& after = At(contiguous.front()).after;
  if (after == kNothing && !is_deepest) {
    after = kResident;
  }
  for (size_t i = 0; i + 1 < contiguous.size(); ++i) {
    At(contiguous[i]).before = contiguous[i + 1];
    At(contiguous[i + 1]).after = contiguous[i];
  }
  BlockId& before = At(contiguous.back()).before;
  if (before == kNothing) {
    before = kResident;
  }
}

// Of about equal length, so that none is short unless all of it is.
void AsymRunPolicy::AddRuns(std::span<const BlockId> contiguous) {
  const size_t n = contiguous.size();
  const size_t num_runs = (n + blocks_per_run_ - 1) / blocks_per_run_;
  for (size_t i = 0; i < num_runs; ++i) {
    const RunId id = free_runs_.back();
    free_runs_.pop_back();
    Run& run = RunAt(id);
    for (size_t j = n * (i + 1) / num_runs; j > n * i / num_runs; --j) {
      run.blocks.push_back(contiguous[j - 1]);
      At(contiguous[j - 1]).run = id;
    }
    run.order = next_order_++;
    mutable_index().Insert(id, ItemOf(run));
  }
}

LeastValueIndex::Item AsymRunPolicy::ItemOf(const Run& run) const {
  double recompute_us = 0;
  double weighted1 = 0;
  double weighted2 = 0;
  for (const BlockId id : run.blocks) {
    const Block& b = block(id);
    const double block_us = CostUs(b);
    recompute_us += block_us;
    weighted1 += block_us * std::exp(b.uses.ln_sum1);
    weighted2 += block_us * std::exp(b.uses.ln_sum2);
  }
  const int neighbours = (At(run.blocks.front()).before != kNothing ? 1 : 0) +
                         (At(run.blocks.back()).after != kNothing ? 1 : 0);
  const double total_us = std::max(recompute_us + options().cost.segment_us * (neighbours - 1),
                                   recompute_us * kLeastShareOfCost);
  const Block& any = block(run.blocks.front());
  return {.cls = static_cast<int32_t>(any.release.cls),
          .ln_weight =
              std::log(total_us / static_cast<double>(run.blocks.size())) + any.ln_return_factor,
          .uses = {.ln_sum1 = std::log(weighted1 / recompute_us),
                   .ln_sum2 = std::log(weighted2 / recompute_us),
                   .last_us = any.uses.last_us},
          .order = run.order};
}

void AsymRunPolicy::Remove(RunId id) {
  if (index().Contains(id)) {
    mutable_index().Erase(id);
  }
  free_runs_.push_back(id);
}

void AsymRunPolicy::RemoveEvictable(BlockId id) {
  const RunId run_id = At(id).run;
  At(id).run = kNoRun;
  Run& run = RunAt(run_id);
  std::erase(run.blocks, id);
  if (run.blocks.empty()) {
    Remove(run_id);
  } else {
    WeighLater(run_id);
  }
}

void AsymRunPolicy::OnGone(BlockId id) {
  NeighbourGone(At(id).before, &Place::after, id);
  NeighbourGone(At(id).after, &Place::before, id);
  At(id) = Place{};
}

void AsymRunPolicy::NeighbourGone(BlockId neighbour, BlockId Place::*side, BlockId gone) {
  if (neighbour >= 0 && At(neighbour).*side == gone) {
    At(neighbour).*side = kNothing;
    if (At(neighbour).run != kNoRun) {
      WeighLater(At(neighbour).run);
    }
  }
}

void AsymRunPolicy::WeighLater(RunId id) {
  if (!RunAt(id).is_stale) {
    RunAt(id).is_stale = true;
    stale_.push_back(id);
  }
}

void AsymRunPolicy::WeighNow() {
  for (const RunId id : stale_) {
    Run& run = RunAt(id);
    run.is_stale = false;
    if (index().Contains(id)) {
      mutable_index().Erase(id);
    }
    if (!run.blocks.empty()) {
      mutable_index().Insert(id, ItemOf(run));
    }
  }
  stale_.clear();
}

std::vector<BlockId> AsymRunPolicy::PopVictims(size_t count, int64_t now_us) {
  std::vector<BlockId> victims;
  victims.reserve(count);
  while (victims.size() < count) {
    WeighNow();
    const RunId id = mutable_index().PopLeast(1, now_us).front();
    Run& run = RunAt(id);
    WeighLater(id);  // what is left of it, if the count ends within
    while (!run.blocks.empty() && victims.size() < count) {
      const BlockId deepest = run.blocks.back();
      run.blocks.pop_back();
      victims.push_back(deepest);
      OnGone(deepest);
    }
    if (run.blocks.empty()) {
      free_runs_.push_back(id);
    }
  }
  return victims;
}

}  // namespace kvik::kv
