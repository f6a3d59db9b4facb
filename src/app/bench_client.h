// SPDX-License-Identifier: Apache-2.0
// app/bench_client.h: one request of a load over HTTP, and what its stream told.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/types.h"
#include "workload/load_plan.h"
#include "workload/load_report.h"

namespace kvik::app {

struct BenchTarget {
  std::string base_url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model;
  int timeout_s = 600;
  bool kvik_fields = true;         // else nothing that OpenAI's API does not have
  bool ask_for_token_ids = false;  // vLLM's return_token_ids
  bool ask_for_logprobs = false;
};

// Messages go to /v1/chat/completions, texts and token ids to /v1/completions. Greedy.
struct BenchRequest {
  std::variant<std::vector<workload::PlannedMessage>, std::vector<TokenId>, std::string> prompt;
  int32_t max_tokens = 1;
  std::vector<TokenId> forced;  // the answer, if not empty
  std::string session;          // its name; empty = none
  std::optional<bool> will_continue;
  std::string cache_salt;
};

// One connection. Thread-compatible.
class BenchClient {
 public:
  static Result<std::unique_ptr<BenchClient>> Create(BenchTarget target);
  ~BenchClient();
  BenchClient(const BenchClient&) = delete;
  BenchClient& operator=(const BenchClient&) = delete;

  // Fills in what the answer tells: times from `planned_us` of `clock`, usage, text, error. A
  // failure is the record's error.
  void Call(const BenchRequest& request, const Clock& clock, int64_t planned_us,
            workload::RequestRecord& record);

  // The first model that the server lists.
  Result<std::string> FirstModel();
  // Without special tokens.
  Result<std::vector<TokenId>> Tokenize(const std::string& text);
  // Whether it does what kvik.forced_token_ids asks for: one that knows the field refuses an
  // impossible token.
  Result<bool> KnowsForcedTokens();
  // Whether its answers tell their token ids when asked.
  Result<bool> TellsTokenIds();

 private:
  struct Impl;
  explicit BenchClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::app
