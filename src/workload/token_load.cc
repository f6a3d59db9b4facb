// SPDX-License-Identifier: Apache-2.0
#include "workload/token_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace kvik::workload {
namespace {

// Kinds of content.
enum : uint64_t { kPrefix = 1, kBody, kAnswer, kDocument, kQuestion, kShared, kTurn };

PlannedSession Single(PlannedCall call) {
  PlannedSession session;
  session.calls.push_back(std::move(call));
  return session;
}

}  // namespace

LoadPlan PlanRandom(const RandomLoadOptions& options) {
  KVIK_CHECK(options.prefixes > 0 && options.spread >= 0 && options.spread <= 1);
  Rng rng(options.seed, /*stream=*/1);
  const auto length = [&](int32_t mean) {
    const double factor = 1 + options.spread * (2 * rng.Uniform() - 1);
    return std::max(1, static_cast<int32_t>(std::lround(mean * factor)));
  };
  LoadPlan plan;
  for (int32_t i = 0; i < options.requests; ++i) {
    const auto id = static_cast<uint64_t>(i);
    std::vector<TokenRun> prompt;
    if (options.prefix_tokens > 0) {
      const uint64_t prefix = rng.Below(static_cast<uint64_t>(options.prefixes));
      prompt.push_back({ContentOf(options.seed, kPrefix, prefix), options.prefix_tokens});
    }
    prompt.push_back({ContentOf(options.seed, kBody, id), length(options.input_tokens)});
    PlannedCall call;
    call.prompt = std::move(prompt);
    call.max_tokens = length(options.output_tokens);
    call.output = TokenRun{ContentOf(options.seed, kAnswer, id), call.max_tokens};
    plan.sessions.push_back(Single(std::move(call)));
  }
  return plan;
}

LoadPlan PlanSharedDocs(const SharedDocsOptions& options) {
  KVIK_CHECK(options.documents_per_request <= options.documents);
  Rng rng(options.seed, /*stream=*/2);
  std::vector<uint64_t> order(static_cast<size_t>(options.documents));
  std::iota(order.begin(), order.end(), 0);
  LoadPlan plan;
  for (int32_t i = 0; i < options.requests; ++i) {
    const auto id = static_cast<uint64_t>(i);
    std::vector<TokenRun> prompt;
    for (size_t k = 0; k < static_cast<size_t>(options.documents_per_request); ++k) {
      std::swap(order[k], order[k + rng.Below(order.size() - k)]);
      prompt.push_back({ContentOf(options.seed, kDocument, order[k]), options.document_tokens});
    }
    prompt.push_back({ContentOf(options.seed, kQuestion, id), options.question_tokens});
    PlannedCall call;
    call.prompt = std::move(prompt);
    call.max_tokens = options.output_tokens;
    call.output = TokenRun{ContentOf(options.seed, kAnswer, id), options.output_tokens};
    plan.sessions.push_back(Single(std::move(call)));
  }
  return plan;
}

LoadPlan PlanLongContext(const LongContextOptions& options) {
  const LongContextLoad load = MakeLongContext(options);
  LoadPlan plan;
  plan.has_starts = true;
  for (const LongContextSession& shape : load.sessions) {
    const uint64_t id = plan.sessions.size();
    PlannedSession session;
    session.start_s = shape.start_s;
    std::vector<TokenRun> prompt;
    int32_t length = 0;
    const auto add = [&](TokenRun run) {
      length += run.tokens;
      prompt.push_back(run);
    };
    add({ContentOf(options.seed, kShared), load.shared_tokens});
    for (const LongContextTurn& turn : shape.turns) {
      const uint64_t number = session.calls.size();
      add({ContentOf(options.seed, kTurn, id, number), turn.prompt_tokens - length});
      PlannedCall call;
      call.gap_s = turn.gap_s;
      call.prompt = prompt;
      call.max_tokens = turn.output_tokens;
      const TokenRun answer = {ContentOf(options.seed, kAnswer, id, number), turn.output_tokens};
      call.output = answer;
      add(answer);
      session.calls.push_back(std::move(call));
    }
    plan.sessions.push_back(std::move(session));
  }
  return plan;
}

}  // namespace kvik::workload
