// SPDX-License-Identifier: Apache-2.0
#include "app/generate.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "server/choice.h"
#include "server/prompt.h"

namespace kvik::app {
namespace {

using text::JinjaDict;
using text::JinjaValue;

JinjaValue Message(const char* role, const std::string& content) {
  JinjaDict message;
  message.Set("role", JinjaValue::String(role));
  message.Set("content", JinjaValue::String(content));
  return JinjaValue::Dict(std::move(message));
}

Result<std::vector<TokenId>> PromptTokens(const GenerateOptions& options, const Runtime& runtime,
                                          const std::string& prompt) {
  const server::PromptBuilder builder(*runtime.tokenizer,
                                      runtime.chat_template ? &*runtime.chat_template : nullptr,
                                      [] { return static_cast<int64_t>(std::time(nullptr)); });
  if (options.raw) {
    return builder.Text(prompt, /*add_special_tokens=*/true);
  }
  std::vector<JinjaValue> messages;
  if (!options.system.empty()) {
    messages.push_back(Message("system", options.system));
  }
  messages.push_back(Message("user", prompt));
  server::ChatPrompt chat;
  chat.messages = JinjaValue::List(std::move(messages));
  server::ApiResult<std::vector<TokenId>> tokens = builder.Chat(chat);
  if (server::Failed(tokens)) {
    return Err(ErrorCode::kInvalidInput, "%s", std::get<server::ApiError>(tokens).message.c_str());
  }
  return std::move(std::get<std::vector<TokenId>>(tokens));
}

double PerSecond(int64_t count, int64_t micros) {
  return micros > 0 ? static_cast<double>(count) * 1e6 / static_cast<double>(micros) : 0;
}

}  // namespace

Result<int> Generate(const GenerateOptions& options) {
  const SystemClock clock;
  std::string prompt = options.prompt;
  if (prompt == "-") {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  KVIK_ASSIGN(const std::unique_ptr<Runtime> runtime, Runtime::Create(options.runtime, clock));
  engine::Engine& engine = *runtime->engine;
  KVIK_ASSIGN(std::vector<TokenId> tokens, PromptTokens(options, *runtime, prompt));

  engine::Request request;
  request.prompt = std::move(tokens);
  request.sampling = options.params.sampling;
  const auto room = engine.max_request_tokens() - static_cast<int32_t>(request.prompt.size());
  request.max_new_tokens = std::max(1, std::min(options.params.max_tokens.value_or(room), room));
  request.stop_token_ids = options.params.stop_token_ids;
  if (!options.params.ignore_eos) {
    const auto ends = runtime->tokenizer->end_ids();
    request.stop_token_ids.insert(request.stop_token_ids.end(), ends.begin(), ends.end());
  }

  server::Choice choice(*runtime->tokenizer, options.params);
  std::string text;
  std::optional<server::ChoiceFinish> finish;
  std::optional<Error> error;
  engine::Usage usage;
  engine::Timing timing;
  KVIK_ASSIGN(const engine::RequestId id,
              engine.Submit(std::move(request), [&](const engine::RequestOutput& output) {
                if (output.error) {
                  error = output.error;
                }
                usage = output.usage;
                timing = output.timing;
                if (choice.finished() || error) {
                  return;
                }
                const server::ChoiceDelta delta = choice.Push(output);
                text += delta.text;
                finish = delta.finish;
                if (!options.json) {
                  std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
                  std::fflush(stdout);
                }
              }));
  while (!choice.finished() && !error && engine.HasWork()) {
    engine.Step();
  }
  engine.Abort(id);  // no-op unless a stop string ended it early
  if (error) {
    return *error;
  }
  const int64_t end_us = clock.NowMicros();
  const int32_t generated = choice.completion_tokens();
  const int64_t first_us = timing.first_token_us - timing.submitted_us;
  const int64_t decode_us = end_us - timing.first_token_us;
  const double prefill_rate = PerSecond(usage.prompt_tokens, first_us);
  const double decode_rate = PerSecond(generated - 1, decode_us);
  const char* reason = finish == server::ChoiceFinish::kStop ? "stop" : "length";
  if (options.json) {
    nlohmann::ordered_json json;
    json["text"] = text;
    json["finish_reason"] = reason;
    json["usage"] = {{"prompt_tokens", usage.prompt_tokens}, {"completion_tokens", generated}};
    json["seconds"] = {{"first_token", static_cast<double>(first_us) * 1e-6},
                       {"decode", static_cast<double>(decode_us) * 1e-6}};
    json["tokens_per_second"] = {{"prefill", prefill_rate}, {"decode", decode_rate}};
    std::printf("%s\n",
                json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return 0;
  }
  std::printf("\n");
  if (options.stats) {
    std::fprintf(stderr,
                 "%d prompt tokens, first token after %.0f ms (%.0f tokens/s); %d generated at "
                 "%.1f tokens/s; finished by %s\n",
                 usage.prompt_tokens, static_cast<double>(first_us) * 1e-3, prefill_rate, generated,
                 decode_rate, reason);
  }
  return 0;
}

}  // namespace kvik::app
