// SPDX-License-Identifier: Apache-2.0
// Templates do not say which form of messages they expect, so a new one is tried out: it renders
// small conversations, and what comes out (or that nothing does) tells.
#include "text/chat_template.h"

#include <algorithm>
#include <utility>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content or '') ~ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// A text that no template contains.
constexpr std::string_view kMark = "kvik-probe-5b21";

// What trying out a template may use.
constexpr JinjaLimits kProbeLimits = {.max_template_bytes = 0,
                                      .max_output_bytes = size_t{1} << 20,
                                      .max_working_bytes = size_t{1} << 22,
                                      .max_steps = 50'000,
                                      .max_depth = 700};

JinjaValue Text(std::string_view text) { return JinjaValue::String(std::string(text)); }

JinjaValue Message(std::string_view role, JinjaValue content) {
  JinjaDict message;
  message.Set("role", Text(role));
  message.Set("content", std::move(content));
  return JinjaValue::Dict(std::move(message));
}

JinjaValue ToolCallMessage(JinjaValue content, JinjaValue arguments) {
  JinjaDict function;
  function.Set("name", Text("probe"));
  function.Set("arguments", std::move(arguments));
  JinjaDict call;
  call.Set("id", Text("call00001"));
  call.Set("type", Text("function"));
  call.Set("function", JinjaValue::Dict(std::move(function)));
  JinjaDict message;
  message.Set("role", Text("assistant"));
  message.Set("content", std::move(content));
  message.Set("tool_calls", JinjaValue::List({JinjaValue::Dict(std::move(call))}));
  return JinjaValue::Dict(std::move(message));
}

// A content of text parts as one string, nullopt if it is none.
std::optional<std::string> JoinTextParts(const JinjaValue& content) {
  if (!content.is_list()) return std::nullopt;
  std::string joined;
  for (const JinjaValue& part : content.items()) {
    const JinjaValue* type = part.Find("type");
    const JinjaValue* text = part.Find("text");
    const bool is_text = type != nullptr && type->is_string() && type->text() == "text" &&
                         text != nullptr && text->is_string();
    if (!is_text) return std::nullopt;
    if (!joined.empty()) joined += '\n';
    joined += text->text();
  }
  return joined;
}

// `call` with its arguments parsed, if they are the JSON text of an object.
JinjaValue ParseArguments(const JinjaValue& call) {
  const JinjaValue* function = call.Find("function");
  const JinjaValue* arguments = function != nullptr ? function->Find("arguments") : nullptr;
  if (arguments == nullptr || !arguments->is_string()) return call;
  Result<JinjaValue> parsed = JinjaValue::FromJson(arguments->text());
  // The call around the arguments takes up to four levels of nesting more.
  if (!parsed || !parsed->is_dict() || parsed->nesting() > JinjaValue::kMaxNesting - 8) return call;
  JinjaDict new_function = function->dict();
  new_function.Set("arguments", *parsed);
  JinjaDict new_call = call.dict();
  new_call.Set("function", JinjaValue::Dict(std::move(new_function)));
  return JinjaValue::Dict(std::move(new_call));
}

}  // namespace

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source, const JinjaLimits& limits) {
  if (source.size() > limits.max_template_bytes) {
    return Err(ErrorCode::kInvalidInput, "chat template: %zu bytes, at most %zu are accepted",
               source.size(), limits.max_template_bytes);
  }
  if (!IsValidUtf8(source)) return Err(ErrorCode::kInvalidInput, "chat template: not UTF-8");
  Result<std::shared_ptr<const JinjaTemplate>> parsed = JinjaParse(source);
  if (!parsed) return parsed.error().Wrap("chat template");
  ChatTemplate result;
  result.source_ = std::make_shared<const std::string>(source);
  result.parsed_ = *std::move(parsed);
  result.limits_ = limits;
  result.Probe();
  return result;
}

const ChatTemplate& ChatTemplate::ChatMl() {
  static const ChatTemplate chat_ml = [] {
    Result<ChatTemplate> parsed = Parse(kChatMl);
    KVIK_CHECK(parsed.has_value(), "ChatML: %s", parsed.error().message.c_str());
    return *std::move(parsed);
  }();
  return chat_ml;
}

void ChatTemplate::Probe() {
  const auto uses = [this](std::string_view name) {
    return std::find(parsed_->names.begin(), parsed_->names.end(), name) != parsed_->names.end();
  };
  writes_bos_ = uses("bos_token");
  knows_tools_ = uses("tools");
  const auto render = [this](std::vector<JinjaValue> messages) -> std::string {
    JinjaDict context;
    context.Set("messages", JinjaValue::List(std::move(messages)));
    context.Set("add_generation_prompt", JinjaValue::Bool(false));
    context.Set("bos_token", Text(""));
    context.Set("eos_token", Text(""));
    context.Set("tools", JinjaValue());
    context.Set("documents", JinjaValue());
    const Result<std::string> text =
        JinjaRender(*parsed_, JinjaValue::Dict(std::move(context)), kProbeLimits, 0);
    return text ? *text : "";
  };

  JinjaDict part;
  part.Set("type", Text("text"));
  part.Set("text", Text(kMark));
  const std::string with_parts =
      render({Message("user", JinjaValue::List({JinjaValue::Dict(std::move(part))}))});
  // A template that does not walk the parts fails, leaves them out, or prints the list: then the
  // text stands in quotes.
  const size_t mark = with_parts.find(kMark);
  const bool quoted = mark != std::string::npos && mark > 0 &&
                      (with_parts[mark - 1] == '\'' || with_parts[mark - 1] == '"');
  walks_content_parts_ = mark != std::string::npos && !quoted;

  const std::string json = "{\"" + std::string(kMark) + "\": 1}";
  const std::string python = "{'" + std::string(kMark) + "': 1}";
  JinjaDict arguments;
  arguments.Set(std::string(kMark), JinjaValue::Int(1));
  const JinjaValue values = JinjaValue::Dict(std::move(arguments));
  for (const JinjaValue& content : {JinjaValue(), Text("")}) {
    const std::string from_values =
        render({Message("user", Text("x")), ToolCallMessage(content, values)});
    const std::string from_text =
        render({Message("user", Text("x")), ToolCallMessage(content, Text(json))});
    const bool values_work = from_values.find(kMark) != std::string::npos &&
                             from_values.find(python) == std::string::npos;
    if (!values_work && from_text.find(json) != std::string::npos) wants_argument_text_ = true;
    if (values_work) {
      wants_argument_text_ = false;
      break;
    }
  }
}

JinjaValue ChatTemplate::Mend(const JinjaValue& message) const {
  if (!message.is_dict()) return message;
  const JinjaValue* content = message.Find("content");
  const JinjaValue* calls = message.Find("tool_calls");
  std::optional<std::string> joined;
  if (content != nullptr && !walks_content_parts_) joined = JoinTextParts(*content);
  const bool parse_calls = calls != nullptr && calls->is_list() && !wants_argument_text_;
  if (!joined && !parse_calls) return message;
  JinjaDict mended = message.dict();
  if (joined) mended.Set("content", JinjaValue::String(*std::move(joined)));
  if (parse_calls) {
    std::vector<JinjaValue> parsed;
    parsed.reserve(calls->items().size());
    for (const JinjaValue& call : calls->items()) parsed.push_back(ParseArguments(call));
    mended.Set("tool_calls", JinjaValue::List(std::move(parsed)));
  }
  return JinjaValue::Dict(std::move(mended));
}

Result<std::string> ChatTemplate::Render(const ChatInput& input) const {
  if (!input.messages.is_list()) {
    return Err(ErrorCode::kInvalidInput, "messages: a list is needed");
  }
  std::vector<JinjaValue> messages;
  messages.reserve(input.messages.items().size());
  for (const JinjaValue& message : input.messages.items()) messages.push_back(Mend(message));
  JinjaDict context;
  context.Set("messages", JinjaValue::List(std::move(messages)));
  context.Set("add_generation_prompt", JinjaValue::Bool(input.add_generation_prompt));
  context.Set("tools", input.tools);
  context.Set("documents", input.documents);
  if (input.bos_token) context.Set("bos_token", JinjaValue::String(*input.bos_token));
  if (input.eos_token) context.Set("eos_token", JinjaValue::String(*input.eos_token));
  if (input.extra.is_dict()) {
    for (const auto& [name, value] : input.extra.dict().entries()) {
      if (!name.is_string()) return Err(ErrorCode::kInvalidInput, "extra: names are strings");
      if (context.Find(name) != nullptr) {
        return Err(ErrorCode::kInvalidInput, "extra: '%s' cannot be replaced", name.text().c_str());
      }
      context.Set(name, value);
    }
  } else if (!input.extra.is_none()) {
    return Err(ErrorCode::kInvalidInput, "extra: a mapping is needed");
  }
  if (context.nesting() > JinjaValue::kMaxNesting) {
    return Err(ErrorCode::kInvalidInput, "messages: nested deeper than %d levels",
               JinjaValue::kMaxNesting - 1);
  }
  return RenderContext(JinjaValue::Dict(std::move(context)), input.now_s);
}

Result<std::string> ChatTemplate::RenderContext(const JinjaValue& context, int64_t now_s) const {
  Result<std::string> text = JinjaRender(*parsed_, context, limits_, now_s);
  if (!text) return text.error().Wrap("chat template");
  return text;
}

bool PromptBeginsWithBos(std::string_view prompt, std::string_view bos_token) {
  return !bos_token.empty() && prompt.starts_with(bos_token);
}

}  // namespace kvik::text
