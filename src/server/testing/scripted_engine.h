// SPDX-License-Identifier: Apache-2.0
// server/testing/scripted_engine.h: an engine whose answers a test writes down, and a tokenizer
// whose tokens it can read.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "server/engine_client.h"
#include "text/tokenizer.h"

namespace kvik::server::testing {

// 256 single bytes (id = byte), then "<|start|>" (256) and "<|end|>" (257), control tokens of which
// the second ends a generation. The text of a byte is the byte.
inline std::unique_ptr<text::Tokenizer> MakeByteTokenizer() {
  text::TokenizerSpec spec;
  spec.kind = text::TokenizerKind::kSentencePieceBpe;
  spec.unescape_spaces = false;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    spec.pieces.emplace_back(name);
    spec.types.push_back(text::TokenType::kByte);
    spec.scores.push_back(0);
  }
  for (const char* control : {"<|start|>", "<|end|>"}) {
    spec.pieces.emplace_back(control);
    spec.types.push_back(text::TokenType::kControl);
    spec.scores.push_back(0);
  }
  spec.bos_id = 256;
  spec.eos_id = 257;
  Result<std::unique_ptr<text::Tokenizer>> tokenizer = text::Tokenizer::Create(std::move(spec));
  KVIK_CHECK(tokenizer.has_value(), "%s", tokenizer.error().message.c_str());
  return std::move(tokenizer).value();
}

// Answers every request at once, on the calling thread, with the text set before. Thread-safe.
class ScriptedEngine final : public EngineClient {
 public:
  // The answer to requests from now on, a byte a token; `stop` = ended by a stop token (257).
  void SetAnswer(const std::string& text, bool stop = true) {
    MutexLock lock(mutex_);
    text_ = text;
    stop_ = stop;
  }
  void SetMaxRequestTokens(int32_t tokens) {
    MutexLock lock(mutex_);
    max_request_tokens_ = tokens;
  }
  // Requests stay open: nothing comes until they are aborted.
  void Hang() {
    MutexLock lock(mutex_);
    hang_ = true;
  }
  [[nodiscard]] std::vector<engine::Request> requests() const {
    MutexLock lock(mutex_);
    return requests_;
  }
  [[nodiscard]] std::vector<engine::RequestId> aborted() const {
    MutexLock lock(mutex_);
    return aborted_;
  }

  Result<engine::RequestId> Submit(engine::Request request, engine::OutputSink sink) override {
    MutexLock lock(mutex_);
    requests_.push_back(request);
    const engine::RequestId id = requests_.size();
    if (hang_) {
      return id;
    }
    const auto limit = static_cast<size_t>(request.max_new_tokens);
    engine::Usage usage;
    usage.prompt_tokens = static_cast<int32_t>(request.prompt.size());
    usage.cached_tokens = 16;
    usage.prefix_tokens = 0;
    usage.cached_segments = 1;
    std::vector<TokenId> tokens;
    for (const char c : text_) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
    if (stop_) {
      tokens.push_back(257);
    }
    const bool cut = tokens.size() > limit;
    tokens.resize(std::min(tokens.size(), limit));
    for (size_t i = 0; i < tokens.size(); ++i) {
      engine::RequestOutput output;
      output.id = id;
      output.tokens.push_back({tokens[i], -0.5F, {{tokens[i], -0.5F}, {65, -1.5F}}});
      usage.completion_tokens = static_cast<int32_t>(i) + 1;
      output.usage = usage;
      if (i + 1 == tokens.size()) {
        output.finish = stop_ && !cut ? engine::FinishReason::kStop : engine::FinishReason::kLength;
      }
      sink(std::move(output));
    }
    return id;
  }
  void Abort(engine::RequestId id) override {
    MutexLock lock(mutex_);
    aborted_.push_back(id);
  }
  [[nodiscard]] engine::EngineStats stats() const override { return {}; }
  [[nodiscard]] int32_t max_request_tokens() const override {
    MutexLock lock(mutex_);
    return max_request_tokens_;
  }
  [[nodiscard]] bool draining() const override { return false; }
  void ResetPrefixCache() override {}

 private:
  mutable Mutex mutex_;
  std::string text_ KVIK_GUARDED_BY(mutex_) = "ok";
  bool stop_ KVIK_GUARDED_BY(mutex_) = true;
  bool hang_ KVIK_GUARDED_BY(mutex_) = false;
  int32_t max_request_tokens_ KVIK_GUARDED_BY(mutex_) = 4096;
  std::vector<engine::Request> requests_ KVIK_GUARDED_BY(mutex_);
  std::vector<engine::RequestId> aborted_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::server::testing
