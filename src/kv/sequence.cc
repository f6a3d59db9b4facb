// SPDX-License-Identifier: Apache-2.0
#include "kv/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvik::kv {

Sequence::Sequence(std::vector<TokenId> tokens, ExtraKeys extra, int32_t block_size_tokens,
                   MinQuality min_quality)
    : tokens_(std::move(tokens)),
      chain_(std::move(extra), block_size_tokens),
      block_size_tokens_(block_size_tokens),
      min_quality_(min_quality) {
  KVIK_CHECK(!tokens_.empty());
}

Sequence::Sequence(std::vector<ContentKey> keys, int32_t num_tokens, int32_t block_size_tokens)
    : tokens_(static_cast<size_t>(num_tokens)),
      chain_(std::move(keys), block_size_tokens),
      block_size_tokens_(block_size_tokens) {
  KVIK_CHECK(num_tokens >= 1 &&
             chain_.keys().size() == static_cast<size_t>(num_tokens / block_size_tokens));
}

int32_t Sequence::num_to_compute() const {
  return num_tokens() - next_pos_ - ready_ahead_ * block_size_tokens_;
}

int32_t Sequence::num_hit_tokens() const {
  int32_t blocks = 0;
  for (const ResidentRun& run : hit_runs_) {
    blocks += run.num_blocks;
  }
  return blocks * block_size_tokens_;
}

int32_t Sequence::SkipReady(int32_t pos) const {
  while (pos % block_size_tokens_ == 0 && IsReady(pos / block_size_tokens_)) {
    pos += block_size_tokens_;
  }
  return pos;
}

std::vector<TokenRun> Sequence::NextRuns(int32_t budget_tokens) const {
  std::vector<TokenRun> runs;
  int32_t pos = next_pos_;
  while (budget_tokens > 0 && pos < num_tokens() && !IsLoading(pos / block_size_tokens_)) {
    int32_t end = pos;  // grows block by block up to the next one that is not to be computed
    do {
      end = (end / block_size_tokens_ + 1) * block_size_tokens_;
    } while (end < num_tokens() && IsCompute(end / block_size_tokens_));
    const int32_t length = std::min({end, num_tokens(), pos + budget_tokens}) - pos;
    runs.push_back(TokenRun{pos, length});
    budget_tokens -= length;
    pos = SkipReady(pos + length);
  }
  return runs;
}

void Sequence::Advance(std::span<const TokenRun> runs) {
  for (const TokenRun& run : runs) {
    KVIK_CHECK(run.first_pos == next_pos_ && run.end_pos() <= num_tokens(),
               "run [%d, %d) is not the head of the compute list at %d", run.first_pos,
               run.end_pos(), next_pos_);
    next_pos_ = SkipReady(run.end_pos());
    ready_ahead_ -= (next_pos_ - run.end_pos()) / block_size_tokens_;
  }
}

void Sequence::EndLoad(int32_t block, bool ready) {
  KVIK_CHECK(IsLoading(block) && block * block_size_tokens_ >= next_pos_);
  sources_[static_cast<size_t>(block)] = ready ? Source::kReady : Source::kCompute;
  --num_loading_;
  if (!ready) {
    return;
  }
  ++ready_ahead_;
  const int32_t skipped = (SkipReady(next_pos_) - next_pos_) / block_size_tokens_;
  next_pos_ += skipped * block_size_tokens_;
  ready_ahead_ -= skipped;
}

}  // namespace kvik::kv
