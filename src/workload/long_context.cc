// SPDX-License-Identifier: Apache-2.0
#include "workload/long_context.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"
#include "workload/distributions.h"

namespace kvik::workload {

std::optional<LongContextOptions> LongContextNamed(std::string_view name) {
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos) {
    return std::nullopt;
  }
  LongContextOptions options;
  if (name.substr(0, colon) == "loogle") {
    options.prompt_tokens = 24400;
    options.output_tokens = 700;
  } else if (name.substr(0, colon) != "longbench") {
    return std::nullopt;
  }
  const std::string_view ratio = name.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(ratio.data(), ratio.data() + ratio.size(), options.gap_ratio);
  if (error != std::errc() || end != ratio.data() + ratio.size() ||
      !(options.gap_ratio > 0 && options.gap_ratio <= 1e6)) {
    return std::nullopt;
  }
  return options;
}

LongContextLoad MakeLongContext(const LongContextOptions& options) {
  KVIK_CHECK(options.turns > 0 && options.requests > 0 && options.scale > 0);
  KVIK_CHECK(options.requests_per_second > 0 && options.gap_ratio > 0);
  const double scale = options.scale;
  const auto whole = [](double tokens) {
    return std::max(1, static_cast<int32_t>(std::lround(tokens)));
  };
  LongContextLoad load;
  load.shared_tokens = static_cast<int32_t>(std::lround(options.shared_tokens / scale));
  const int32_t new_tokens = whole(options.new_tokens / scale);
  const int32_t context = whole(options.context_tokens / scale);
  const double start_gap_s = options.turns / options.requests_per_second;
  // A turn is longer than the one before by an answer and what is new, so the first has to be
  // shorter than the mean of all.
  const double growth = (options.output_tokens + options.new_tokens) * (options.turns - 1) / 2.0;
  const double first = std::max(options.prompt_tokens - growth, options.prompt_tokens / 4) / scale;

  Rng starts(options.seed, 0);
  double now_s = 0;
  for (int32_t left = options.requests; left > 0; left -= options.turns) {
    Rng rng(options.seed, load.sessions.size() + 1);
    LongContextSession session;
    session.start_s = now_s;
    now_s += DrawGamma(starts, start_gap_s, options.cv);
    const int32_t turns = std::min(left, options.turns);
    int32_t prompt =
        std::max(whole(DrawLogNormal(rng, first, options.sigma)), load.shared_tokens + new_tokens);
    int32_t growth_tokens = 0;  // of the last turn over the first, with its answer
    for (int32_t i = 0; i < turns; ++i) {
      LongContextTurn turn;
      turn.gap_s = i == 0 ? 0 : DrawGamma(rng, options.gap_ratio * start_gap_s, options.cv);
      // A single answer that would fill the window leaves room for the document.
      turn.output_tokens =
          std::min(whole(DrawLogNormal(rng, options.output_tokens / scale, options.sigma)),
                   std::max(1, context / (turns + 1)));
      growth_tokens += turn.output_tokens + (i == 0 ? 0 : new_tokens);
      session.turns.push_back(turn);
    }
    prompt = std::clamp(prompt, 1, std::max(1, context - growth_tokens));
    for (LongContextTurn& turn : session.turns) {
      turn.prompt_tokens = prompt;
      prompt += turn.output_tokens + new_tokens;
    }
    load.sessions.push_back(std::move(session));
  }
  return load;
}

}  // namespace kvik::workload
