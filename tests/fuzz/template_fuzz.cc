// SPDX-License-Identifier: Apache-2.0
// Any bytes are a template that renders or an error of one line, within small limits. The bytes
// before the first NUL are the template, those after it the variables as JSON (a fixed conversation
// if that is none).
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/chat_template.h"

using kvik::text::ChatInput;
using kvik::text::ChatTemplate;
using kvik::text::JinjaLimits;
using kvik::text::JinjaValue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  static const JinjaValue kConversation = *JinjaValue::FromJson(R"({
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": [{"type": "text", "text": "Hi é"}]},
                 {"role": "assistant", "content": null, "tool_calls": [
                   {"id": "1", "function": {"name": "f", "arguments": "{\"x\": [1, 2.5]}"}}]}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": 3
  })");
  const JinjaLimits limits = {.max_template_bytes = 1 << 14,
                              .max_output_bytes = 1 << 16,
                              .max_working_bytes = 1 << 22,
                              .max_steps = 50'000,
                              .max_depth = 300};
  const std::string_view input(reinterpret_cast<const char*>(data), size_bytes);
  const size_t end = input.find('\0');
  const auto parsed = ChatTemplate::Parse(input.substr(0, end), limits);
  if (!parsed) {
    KVIK_CHECK(parsed.error().message.find('\n') == std::string_view::npos);
    return 0;
  }
  JinjaValue context = kConversation;
  if (end != std::string_view::npos) {
    const auto variables = JinjaValue::FromJson(input.substr(end + 1));
    if (variables && variables->is_dict()) context = *variables;
  }
  const auto text = parsed->RenderContext(context, 1'767'312'000);
  KVIK_CHECK(text ? text->size() <= limits.max_output_bytes
                  : text.error().message.find('\n') == std::string_view::npos);
  ChatInput chat;
  const JinjaValue* messages = context.Find("messages");
  if (messages != nullptr) chat.messages = *messages;
  const auto prompt = parsed->Render(chat);
  KVIK_CHECK(prompt || prompt.error().message.find('\n') == std::string_view::npos);
  return 0;
}
