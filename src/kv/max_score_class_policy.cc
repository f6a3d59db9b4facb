// SPDX-License-Identifier: Apache-2.0
// With q the share of a class that returns, at an exponential time of mean m, the chance that a
// block unused for x still returns is q e^(-x/m) / (q e^(-x/m) + 1 - q): those that will never
// return are all still here, those that will have left at a constant rate.
#include "kv/max_score_class_policy.h"

#include <algorithm>
#include <cmath>

namespace kvik::kv {
namespace {

constexpr size_t kGhostsPerBlock = 4;
constexpr double kPriorBlocks = 64;  // of evidence that half return after kPriorGapSeconds
constexpr double kPriorGapSeconds = 600;

}  // namespace

MaxScoreClassPolicy::MaxScoreClassPolicy(const PolicyOptions& options)
    : ScorePolicy(options),
      class_(static_cast<size_t>(options.num_blocks)),
      ghosts_(
          std::min(kGhostsPerBlock * static_cast<size_t>(options.num_blocks), size_t{1} << 22)) {
  classes_.fill(Class{kPriorBlocks, kPriorBlocks / 2, kPriorBlocks / 2 * kPriorGapSeconds});
}

double MaxScoreClassPolicy::Score(const Block& block, BlockId id, int64_t now_us) {
  const Class& c = classes_[class_[static_cast<size_t>(id)]];
  const double returns = std::clamp(c.reused / c.released, 1e-6, 1 - 1e-6);
  const double age_s = static_cast<double>(now_us - block.release_us) * 1e-6;
  // In logs of the odds, which order as the chances do and do not run out of digits.
  return std::log(returns / (1 - returns)) - age_s * c.reused / c.gaps_s;
}

void MaxScoreClassPolicy::Reused(const Released& before, int64_t now_us) {
  Class& c = classes_[before.of_class];
  c.reused += 1;
  c.gaps_s += static_cast<double>(now_us - before.at_us) * 1e-6;
}

void MaxScoreClassPolicy::OnHit(BlockId id, const Access& access) {
  if (block(id).use == BlockUse::kEvictable) {
    Reused(Released{class_[static_cast<size_t>(id)], block(id).release_us}, access.now_us);
  }
}

void MaxScoreClassPolicy::Missed(std::span<const uint64_t> contents, const Access& access) {
  for (const uint64_t content : contents) {
    if (const auto before = ghosts_.Take(content)) {
      Reused(*before, access.now_us);
    }
  }
}

void MaxScoreClassPolicy::OnRelease(BlockId id, const Access& access) {
  const auto turn = static_cast<size_t>(std::max(access.request.turn, 0));
  const size_t of_class = std::min(turn, kClasses - 1);
  class_[static_cast<size_t>(id)] = static_cast<uint8_t>(of_class);
  classes_[of_class].released += 1;
}

void MaxScoreClassPolicy::OnEvict(BlockId id, double /*score*/) {
  ghosts_.Add(block(id).content, Released{class_[static_cast<size_t>(id)], block(id).release_us});
}

}  // namespace kvik::kv
