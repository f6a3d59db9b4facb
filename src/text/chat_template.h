// SPDX-License-Identifier: Apache-2.0
// text/chat_template.h: chat messages to prompt text, by the template a model was published with.
//
// Templates are Jinja as Hugging Face transformers runs it: Python jinja2's immutable sandbox with
// trim_blocks, lstrip_blocks, loop controls, `tojson` without HTML escapes, `raise_exception`,
// `strftime_now` and `{% generation %}`. The own interpreter behind it knows no files, no network
// and no clock; a hostile template ends in an error, never in a crash, a hang or a full memory.
// A ChatTemplate is immutable and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/jinja_value.h"

namespace kvik::text {

struct JinjaTemplate;

// What one rendering may use before it ends in an error (kExhausted).
struct JinjaLimits {
  size_t max_template_bytes = size_t{1} << 20;
  size_t max_output_bytes = size_t{64} << 20;
  // All strings and lists made on the way, together.
  size_t max_working_bytes = size_t{1} << 30;
  // Evaluated nodes, loop iterations, values walked by filters.
  uint64_t max_steps = 50'000'000;
  // Nested evaluations (expressions, blocks and macro calls together).
  int max_depth = 700;
};

struct ChatInput {
  // A list of messages as in OpenAI's API: dicts with `role`, `content` (a string, null or a list
  // of parts), `tool_calls`, `name`, and whatever else the template knows.
  JinjaValue messages;
  bool add_generation_prompt = true;
  // Unset leaves the name undefined in the template.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  JinjaValue tools;      // a list of dicts, or None
  JinjaValue documents;  // a list of dicts, or None
  // A dict of further variables (chat_template_kwargs such as enable_thinking), or None. They may
  // not replace the variables above.
  JinjaValue extra;
  // The time `strftime_now` formats, in seconds since 1970; add the local offset if local time is
  // wanted.
  int64_t now_s = 0;
};

class ChatTemplate {
 public:
  // Checks the whole syntax. Errors are one line with the template's line number: kInvalidInput
  // for what Jinja rejects, kUnsupported for what it would load from elsewhere (extends, include).
  static Result<ChatTemplate> Parse(std::string_view source, const JinjaLimits& limits = {});

  // ChatML, for models that bring no template.
  static const ChatTemplate& ChatMl();

  // The prompt. What templates expect differs from what clients send in two points, which are
  // mended here: tool-call arguments given as JSON text become the values they spell, unless the
  // template wants the text, and a content made only of text parts is joined with new lines to one
  // string, unless the template walks over parts.
  // Fails with kInvalidInput (the messages, or the template's own raise_exception) or kExhausted.
  [[nodiscard]] Result<std::string> Render(const ChatInput& input) const;

  // Renders with exactly the variables in `context` (a dict) and no mending.
  [[nodiscard]] Result<std::string> RenderContext(const JinjaValue& context, int64_t now_s) const;

  // True if the template uses the variable `bos_token`, so that it writes the BOS itself. Hugging
  // Face never adds a BOS to a rendered chat: one that does must ask this, or PromptBeginsWithBos,
  // first.
  [[nodiscard]] bool WritesBos() const { return writes_bos_; }
  // True if the template handles contents that are lists of parts.
  [[nodiscard]] bool WalksContentParts() const { return walks_content_parts_; }
  // True if the template wants a tool call's arguments as JSON text rather than as values.
  [[nodiscard]] bool WantsArgumentText() const { return wants_argument_text_; }
  // True if the template uses the variable `tools`.
  [[nodiscard]] bool KnowsTools() const { return knows_tools_; }

  [[nodiscard]] const std::string& source() const { return *source_; }

 private:
  ChatTemplate() = default;
  void Probe();
  [[nodiscard]] JinjaValue Mend(const JinjaValue& message) const;

  std::shared_ptr<const std::string> source_;
  std::shared_ptr<const JinjaTemplate> parsed_;
  JinjaLimits limits_;
  bool writes_bos_ = false;
  bool walks_content_parts_ = false;
  bool wants_argument_text_ = false;
  bool knows_tools_ = false;
};

// True if `prompt` already starts with the (non-empty) text of the BOS token, so that adding the
// token's id as well would give the model two.
bool PromptBeginsWithBos(std::string_view prompt, std::string_view bos_token);

}  // namespace kvik::text
