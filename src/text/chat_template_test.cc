// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kvik::text {
namespace {

JinjaValue Json(std::string_view text) {
  Result<JinjaValue> value = JinjaValue::FromJson(text);
  EXPECT_TRUE(value) << (value ? "" : value.error().message);
  return value ? *value : JinjaValue();
}

ChatTemplate Parsed(std::string_view source) {
  Result<ChatTemplate> parsed = ChatTemplate::Parse(source);
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return parsed ? *std::move(parsed) : ChatTemplate::ChatMl();
}

std::string Rendered(const ChatTemplate& parsed, const ChatInput& input) {
  const Result<std::string> text = parsed.Render(input);
  return text ? *text : "error: " + text.error().message;
}

// A template with tools, written for this test after the habits of published ones.
constexpr std::string_view kTools = R"({{- bos_token }}
{%- if tools %}
{{- '<tools>\n' }}
{%- for tool in tools %}{{ tool|tojson }}{{ '\n' }}{% endfor %}
{{- '</tools>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<result>' + message.content + '</result>' }}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '<call>' + call.function.name + ' ' }}{{ call.function.arguments|tojson }}{{ '</call>' }}
        {%- endfor %}
    {%- else %}
        {{- '<' + message.role + '>' + message.content + '</' + message.role + '>' }}
    {%- endif %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('unknown role ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %})";

TEST(ChatTemplate, ChatMlIsTheFallback) {
  ChatInput input;
  input.messages = Json(R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"},
                            {"role": "assistant", "content": null}])");
  EXPECT_EQ(Rendered(ChatTemplate::ChatMl(), input),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n");
  input.add_generation_prompt = false;
  input.messages = Json(R"([{"role": "user", "content": "Hi"}])");
  EXPECT_EQ(Rendered(ChatTemplate::ChatMl(), input), "<|im_start|>user\nHi<|im_end|>\n");
  EXPECT_FALSE(ChatTemplate::ChatMl().WritesBos());
  EXPECT_FALSE(ChatTemplate::ChatMl().KnowsTools());
}

TEST(ChatTemplate, ToolsAndArgumentText) {
  const ChatTemplate parsed = Parsed(kTools);
  EXPECT_TRUE(parsed.WritesBos());
  EXPECT_TRUE(parsed.KnowsTools());
  EXPECT_FALSE(parsed.WantsArgumentText());
  ChatInput input;
  input.bos_token = "<s>";
  input.tools =
      Json(R"([{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}])");
  input.messages = Json(R"([{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
       "function": {"name": "f", "arguments": "{\"x\": 1.0, \"y\": [true]}"}}]},
      {"role": "tool", "content": "42"}])");
  EXPECT_EQ(Rendered(parsed, input),
            "<s><tools>\n"
            R"({"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}})"
            "\n</tools>\n<user>Hi</user>"
            R"(<call>f {"x": 1.0, "y": [true]}</call><result>42</result><assistant>)");
}

TEST(ChatTemplate, ArgumentTextStaysTextWhereTheTemplateConcatenatesIt) {
  const ChatTemplate parsed = Parsed(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name + "
      "c.function.arguments }}"
      "{% endfor %}{% endfor %}");
  EXPECT_TRUE(parsed.WantsArgumentText());
  ChatInput input;
  input.messages = Json(
      R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\":1}"}}]}])");
  EXPECT_EQ(Rendered(parsed, input), "f{\"x\":1}");
}

TEST(ChatTemplate, TextPartsAreJoinedUnlessTheTemplateWalksThem) {
  ChatInput input;
  input.messages = Json(R"([{"role": "user", "content": [{"type": "text", "text": "a"},
                                                         {"type": "text", "text": "b"}]}])");
  const ChatTemplate plain = Parsed("{% for m in messages %}[{{ m.content }}]{% endfor %}");
  EXPECT_FALSE(plain.WalksContentParts());
  EXPECT_EQ(Rendered(plain, input), "[a\nb]");
  const ChatTemplate walks = Parsed(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in "
      "m.content %}"
      "<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}");
  EXPECT_TRUE(walks.WalksContentParts());
  EXPECT_EQ(Rendered(walks, input), "<a><b>");
  // Parts that are not text stay for the template to refuse or print.
  input.messages = Json(R"([{"role": "user", "content": [{"type": "image"}]}])");
  EXPECT_EQ(Rendered(plain, input), "[[{'type': 'image'}]]");
}

TEST(ChatTemplate, ExtraVariablesCannotReplaceTheOthers) {
  const ChatTemplate parsed =
      Parsed("{{ enable_thinking }}{{ tools is none }}{{ bos_token is defined }}");
  ChatInput input;
  input.messages = Json("[]");
  input.extra = Json(R"({"enable_thinking": false})");
  EXPECT_EQ(Rendered(parsed, input), "FalseTrueFalse");
  input.extra = Json(R"({"messages": []})");
  EXPECT_EQ(Rendered(parsed, input), "error: extra: 'messages' cannot be replaced");
  input.extra = Json("[]");
  EXPECT_EQ(Rendered(parsed, input), "error: extra: a mapping is needed");
  input.extra = JinjaValue();
  input.messages = Json("{}");
  EXPECT_EQ(Rendered(parsed, input), "error: messages: a list is needed");
}

TEST(ChatTemplate, RefusalsOfTheTemplateAreErrors) {
  ChatInput input;
  input.messages = Json(R"([{"role": "robot", "content": "x"}])");
  const Result<std::string> text = Parsed(kTools).Render(input);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidInput);
  EXPECT_EQ(text.error().message, "chat template: line 18: unknown role robot");
}

TEST(ChatTemplate, BeginsWithBos) {
  EXPECT_TRUE(PromptBeginsWithBos("<s>hi", "<s>"));
  EXPECT_FALSE(PromptBeginsWithBos("\n<s>hi", "<s>"));
  EXPECT_FALSE(PromptBeginsWithBos("hi", ""));
}

TEST(ChatTemplate, RendersFromManyThreadsAtOnce) {
  const ChatTemplate parsed = Parsed(kTools);
  ChatInput input;
  input.messages = Json(R"([{"role": "user", "content": "Hi"}])");
  input.tools = Json(R"([{"name": "f"}])");
  const std::string expected = Rendered(parsed, input);
  std::vector<std::string> got(4);
  std::vector<std::thread> threads;
  for (std::string& text : got) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) text = Rendered(parsed, input);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : got) EXPECT_EQ(text, expected);
}

TEST(JinjaValue, FromJsonKeepsOrderAndRefusesWhatItCannotHold) {
  const JinjaValue value = Json(R"({"b": 1, "a": [1.5, null, "é"], "b": true})");
  ASSERT_TRUE(value.is_dict());
  ASSERT_EQ(value.dict().size(), 2U);
  EXPECT_EQ(value.dict().entries()[0].first.text(), "b");
  EXPECT_TRUE(value.Find("b")->boolean());
  EXPECT_EQ(value.Find("a")->items()[0].floating(), 1.5);
  EXPECT_EQ(value.Find("c"), nullptr);
  const std::string deep(101, '[');
  for (const std::string& bad :
       {std::string("{"), std::string(""), std::string("[1,]"), std::string("\"\xff\""),
        std::string("nope"), std::string("18446744073709551616"),
        std::string("9223372036854775808"), deep + std::string(101, ']')}) {
    const Result<JinjaValue> got = JinjaValue::FromJson(bad);
    ASSERT_FALSE(got) << bad;
    EXPECT_EQ(got.error().code, ErrorCode::kInvalidInput);
    EXPECT_EQ(got.error().message.find('\n'), std::string::npos);
  }
}

TEST(JinjaValue, LargeDictsFindEveryKey) {
  JinjaDict dict;
  const auto key = [](int i) { return std::string("k").append(std::to_string(i * 7 % 1000)); };
  for (int i = 0; i < 1000; ++i) dict.Set(key(i), JinjaValue::Int(i));
  dict.Set(JinjaValue::Int(5), JinjaValue::Int(-1));
  dict.Set(JinjaValue::Float(5.0), JinjaValue::Int(-2));
  EXPECT_EQ(dict.size(), 1001U);
  EXPECT_EQ(dict.Find(JinjaValue::Int(5))->integer(), -2);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(dict.Find(key(i))->integer(), i);
  }
  EXPECT_EQ(dict.Find("nope"), nullptr);
}

}  // namespace
}  // namespace kvik::text
