// SPDX-License-Identifier: Apache-2.0
// server/prompt.h: requests to prompt tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "server/api_error.h"
#include "server/openai_request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvik::server {

// Immutable and thread-safe.
class PromptBuilder {
 public:
  // `chat_template` null: the model has none, ChatML stands in. `unix_seconds` is the time that
  // templates may print. All must outlive the builder.
  PromptBuilder(const text::Tokenizer& tokenizer, const text::ChatTemplate* chat_template,
                std::function<int64_t()> unix_seconds);

  // The template writes control tokens; what the client sent (contents, names, tools, keys) may
  // spell them but never becomes one.
  [[nodiscard]] ApiResult<std::vector<TokenId>> Chat(const ChatPrompt& chat) const;

  // Text of a completion: whoever sends it wrote the whole prompt, control tokens included.
  [[nodiscard]] std::vector<TokenId> Text(std::string_view text, bool add_special_tokens) const;

  [[nodiscard]] const text::Tokenizer& tokenizer() const { return tokenizer_; }
  // How answers of known models begin a tool call, as this tokenizer's tokens.
  [[nodiscard]] const std::shared_ptr<const std::vector<std::vector<TokenId>>>& tool_call_markers()
      const {
    return tool_call_markers_;
  }

 private:
  struct Guard;
  [[nodiscard]] ApiResult<std::string> Render(const ChatPrompt& chat, Guard& guard) const;
  [[nodiscard]] std::vector<TokenId> EncodeGuarded(std::string_view rendered, const Guard& guard,
                                                   bool add_special) const;
  // The longest control token that text spells at `at`, or nullopt.
  [[nodiscard]] std::optional<TokenId> ControlAt(std::string_view text, size_t at) const;

  struct Control {
    std::string spelling;
    TokenId id;
  };
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  bool has_template_;
  std::function<int64_t()> unix_seconds_;
  std::shared_ptr<const std::vector<std::vector<TokenId>>> tool_call_markers_;
  std::vector<std::vector<Control>> controls_;  // [256] by first byte, longest first
};

}  // namespace kvik::server
