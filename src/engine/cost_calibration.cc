// SPDX-License-Identifier: Apache-2.0
#include "engine/cost_calibration.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/check.h"
#include "model/batch.h"

namespace kvik::engine {
namespace {

struct Part {
  int32_t first_pos = 0;
  int32_t num_tokens = 0;
  bool decode = false;
};
using Kind = std::vector<Part>;

// From cheap to dear, so that a budget cuts the dear end.
std::vector<Kind> Kinds(const ExecutorLimits& limits) {
  std::vector<Kind> kinds;
  const auto add = [&](Kind kind) {
    int32_t rows = 0;
    int32_t decodes = 0;
    for (const Part& part : kind) {
      rows += part.num_tokens;
      decodes += part.decode ? 1 : 0;
      if (part.first_pos + part.num_tokens > limits.max_context_tokens) {
        return;
      }
    }
    if (rows <= limits.max_batch_rows && decodes <= limits.max_logit_rows) {
      kinds.push_back(std::move(kind));
    }
  };
  for (const int32_t context : {0, 256, 1024, 2048, 4096, 6144}) {
    for (const int32_t tokens : {16, 64, 128, 256, 512}) {
      add({{context, tokens}});
    }
    if (context == 0) {
      continue;
    }
    for (const int32_t decodes : {1, 2, 4, 8}) {
      add(Kind(static_cast<size_t>(decodes), {context - 1, 1, true}));
    }
    add({{context / 2, 64}, {context, 64}});
    add({{context / 4, 32}, {context / 2, 32}, {context, 64}});
    add({{context, 128}, {context - 1, 1, true}, {context / 2, 1, true}});
  }
  const auto cost = [](const Kind& kind) {
    int64_t sum = 0;
    for (const Part& part : kind) {
      sum += int64_t{part.num_tokens} * (2000 + part.first_pos);
    }
    return sum;
  };
  std::stable_sort(kinds.begin(), kinds.end(),
                   [&](const Kind& a, const Kind& b) { return cost(a) < cost(b); });
  return kinds;
}

// Block tables for any position of any part, in which no block is written by two rows at once.
class Tables {
 public:
  Tables(const ExecutorLimits& limits, const CalibrationOptions& options)
      : block_size_(options.block_size_tokens), num_blocks_(options.num_blocks) {
    const auto blocks = static_cast<size_t>((limits.max_context_tokens - 1) / block_size_ + 1);
    table_.resize(blocks);
  }
  // False when the pool is too small for the blocks that `kind` writes.
  bool Lay(const Kind& kind, std::vector<std::vector<BlockId>>& tables) const {
    tables.clear();
    BlockId next = 0;
    for (const Part& part : kind) {
      std::vector<BlockId> table = table_;
      const auto first = static_cast<size_t>(part.first_pos / block_size_);
      const auto last = static_cast<size_t>((part.first_pos + part.num_tokens - 1) / block_size_);
      for (size_t i = first; i <= last; ++i) {
        table[i] = next++;
      }
      if (next > num_blocks_) {
        return false;
      }
      // What is only read: spread over the pool, as real contexts are.
      for (size_t i = 0; i < first; ++i) {
        table[i] = static_cast<BlockId>((i * 7 + 3) % static_cast<size_t>(num_blocks_));
      }
      tables.push_back(std::move(table));
    }
    return true;
  }

 private:
  int32_t block_size_;
  int32_t num_blocks_;
  std::vector<BlockId> table_;
};

}  // namespace

Result<kv::CostFit> CalibrateCost(Executor& executor, const Clock& clock,
                                  const CalibrationOptions& options) {
  KVIK_CHECK(options.num_blocks >= 1 && options.block_size_tokens >= 1);
  const ExecutorLimits limits = executor.limits();
  const std::vector<Kind> kinds = Kinds(limits);
  const Tables layout(limits, options);
  const std::vector<TokenId> tokens(static_cast<size_t>(limits.max_batch_rows), 0);
  std::vector<std::vector<BlockId>> tables;
  model::StepBatch batch;
  const int64_t start_us = clock.NowMicros();
  const auto time_left_us = [&] {
    return static_cast<double>(options.budget_us - (clock.NowMicros() - start_us));
  };
  // A machine on which something else runs gets more rounds; the fastest run of a kind counts.
  constexpr int kRounds = 3;
  std::vector<kv::CostSample> samples;
  for (int round = 0;; ++round) {
    size_t next_sample = 0;
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (!layout.Lay(kinds[i], tables)) {
        continue;
      }
      batch.Clear();
      kv::CostSample sample;
      for (size_t p = 0; p < kinds[i].size(); ++p) {
        const Part& part = kinds[i][p];
        batch.Add(std::span(tokens).first(static_cast<size_t>(part.num_tokens)), part.first_pos,
                  tables[p], part.decode);
        if (part.decode) {
          sample.features.AddDecode(part.first_pos + 1);
        } else {
          sample.features.AddSegment(part.first_pos, part.num_tokens);
        }
      }
      sample.us = round == 0 ? std::numeric_limits<double>::max() : samples[next_sample].us;
      for (int run = 0; run < 2; ++run) {
        const int64_t begin_us = clock.NowMicros();
        const Result<model::LogitsView> done = executor.Execute(batch);
        if (!done) {
          return done.error();
        }
        sample.us = std::min(sample.us, static_cast<double>(clock.NowMicros() - begin_us));
      }
      if (round == 0) {
        samples.push_back(sample);
      } else {
        samples[next_sample] = sample;
      }
      ++next_sample;
      if (options.progress) {
        options.progress(i + 1, kinds.size());
      }
      // The next kind costs about as much as this one. Later rounds go over the same samples.
      if (2 * sample.us > time_left_us() || (round > 0 && next_sample == samples.size())) {
        break;
      }
    }
    Result<kv::CostFit> fit = kv::FitCostModel(samples);
    if (fit || round + 1 == kRounds || !(time_left_us() > 2 * samples.back().us)) {
      return fit;
    }
  }
}

}  // namespace kvik::engine
