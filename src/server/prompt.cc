// SPDX-License-Identifier: Apache-2.0
#include "server/prompt.h"

#include <algorithm>
#include <utility>

namespace kvik::server {

// Marks control tokens that a client spelled: `mark` goes behind the first character of the
// spelling, so that the template carries it along and the encoder sees that this one is plain text.
// The mark is a Unicode noncharacter that occurs nowhere in the request.
struct PromptBuilder::Guard {
  std::string mark;
  bool used = false;
};

namespace {

using text::JinjaDict;
using text::JinjaValue;

// The noncharacters U+FDD0..U+FDEF.
std::string Noncharacter(int index) {
  const unsigned code = 0xFDD0U + static_cast<unsigned>(index);
  return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}
constexpr int kNumNoncharacters = 32;

size_t CharacterBytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Applies fn to every string of a value, keys included. Values nest at most kMaxJsonNesting deep.
template <typename Fn>
JinjaValue MapStrings(const JinjaValue& value, const Fn& fn) {
  if (value.is_string()) {
    return JinjaValue::String(fn(value.text()));
  }
  if (value.is_list()) {
    std::vector<JinjaValue> items;
    items.reserve(value.items().size());
    for (const JinjaValue& item : value.items()) {
      items.push_back(MapStrings(item, fn));
    }
    return JinjaValue::List(std::move(items));
  }
  if (value.is_dict()) {
    JinjaDict dict;
    for (const auto& [key, member] : value.dict().entries()) {
      dict.Set(MapStrings(key, fn), MapStrings(member, fn));
    }
    return JinjaValue::Dict(std::move(dict));
  }
  return value;
}

template <typename Fn>
void ForEachString(const JinjaValue& value, const Fn& fn) {
  if (value.is_string()) {
    fn(value.text());
  } else if (value.is_list()) {
    for (const JinjaValue& item : value.items()) {
      ForEachString(item, fn);
    }
  } else if (value.is_dict()) {
    for (const auto& [key, member] : value.dict().entries()) {
      ForEachString(key, fn);
      ForEachString(member, fn);
    }
  }
}

// A noncharacter that occurs in none of the values; empty when all do.
std::string FreeMark(const std::vector<const JinjaValue*>& values) {
  for (int i = 0; i < kNumNoncharacters; ++i) {
    std::string mark = Noncharacter(i);
    bool occurs = false;
    for (const JinjaValue* value : values) {
      ForEachString(*value, [&](const std::string& text) {
        occurs = occurs || text.find(mark) != std::string::npos;
      });
    }
    if (!occurs) {
      return mark;
    }
  }
  return {};
}

std::string Trim(const std::string& text) {
  const char* white = " \t\r\n";
  const size_t begin = text.find_first_not_of(white);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(white) - begin + 1);
}

// The text of a message whose end is to be continued: its string, or its last text part.
std::string FinalContent(const JinjaValue& messages) {
  const JinjaValue* content = messages.items().back().Find("content");
  if (content == nullptr) {
    return {};
  }
  if (content->is_list() && !content->items().empty()) {
    const JinjaValue* part = content->items().back().Find("text");
    return part != nullptr && part->is_string() ? Trim(part->text()) : "";
  }
  return content->is_string() ? Trim(content->text()) : "";
}

}  // namespace

namespace {

// Hermes and Qwen, Llama 3, Mistral. Where the marker is no token of its own it is spelled; without
// its last character then, which could be one token with what follows.
std::vector<std::vector<TokenId>> ToolCallMarkers(const text::Tokenizer& tokenizer) {
  std::vector<std::vector<TokenId>> markers;
  for (const std::string_view text : {"<tool_call>", "<|python_tag|>", "[TOOL_CALLS]"}) {
    std::vector<TokenId> token = tokenizer.Encode(text, {.parse_special = true});
    if (token.size() == 1) {
      markers.push_back(std::move(token));
    } else {
      markers.push_back(tokenizer.Encode(text.substr(0, text.size() - 1)));
    }
  }
  std::erase_if(markers, [](const std::vector<TokenId>& marker) { return marker.empty(); });
  return markers;
}

}  // namespace

PromptBuilder::PromptBuilder(const text::Tokenizer& tokenizer,
                             const text::ChatTemplate* chat_template,
                             std::function<int64_t()> unix_seconds)
    : tokenizer_(tokenizer),
      template_(chat_template != nullptr ? *chat_template : text::ChatTemplate::ChatMl()),
      has_template_(chat_template != nullptr),
      unix_seconds_(std::move(unix_seconds)),
      controls_(256) {
  for (size_t i = 0; i < tokenizer.vocab_size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string_view spelling = tokenizer.Spelling(id);
    if (tokenizer.IsControl(id) && !spelling.empty()) {
      controls_[static_cast<unsigned char>(spelling[0])].push_back({std::string(spelling), id});
    }
  }
  tool_call_markers_ =
      std::make_shared<const std::vector<std::vector<TokenId>>>(ToolCallMarkers(tokenizer));
  for (std::vector<Control>& list : controls_) {
    std::sort(list.begin(), list.end(), [](const Control& a, const Control& b) {
      return a.spelling.size() > b.spelling.size();
    });
  }
}

std::optional<TokenId> PromptBuilder::ControlAt(std::string_view text, size_t at) const {
  for (const Control& control : controls_[static_cast<unsigned char>(text[at])]) {
    if (text.compare(at, control.spelling.size(), control.spelling) == 0) {
      return control.id;
    }
  }
  return std::nullopt;
}

std::vector<TokenId> PromptBuilder::Text(std::string_view text, bool add_special_tokens) const {
  return tokenizer_.Encode(text, {.parse_special = true, .add_special = add_special_tokens});
}

ApiResult<std::string> PromptBuilder::Render(const ChatPrompt& chat, Guard& guard) const {
  const std::vector<const JinjaValue*> sent = {&chat.messages, &chat.tools, &chat.documents,
                                               &chat.kwargs};
  bool spells_control = false;
  for (const JinjaValue* value : sent) {
    ForEachString(*value, [&](const std::string& text) {
      for (size_t i = 0; i < text.size() && !spells_control; ++i) {
        spells_control = ControlAt(text, i).has_value();
      }
    });
  }
  if (spells_control) {
    guard.used = true;
    guard.mark = FreeMark(sent);
    if (guard.mark.empty()) {
      ApiError error;
      error.message = "The messages hold all of U+FDD0 to U+FDEF, which no text needs.";
      error.param = "messages";
      return error;
    }
  }
  text::ChatInput input;
  const auto mark = [&](const std::string& text) {
    std::string marked;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool control = ControlAt(text, i).has_value();
      marked += text[i];
      if (control) {
        const size_t rest = CharacterBytes(text[i]) - 1;
        marked.append(text, i + 1, rest);
        marked += guard.mark;
        i += rest;
      }
    }
    return marked;
  };
  const auto guarded = [&](const JinjaValue& value) {
    return spells_control ? MapStrings(value, mark) : value;
  };
  input.messages = guarded(chat.messages);
  input.tools = guarded(chat.tools);
  input.documents = guarded(chat.documents);
  input.extra = guarded(chat.kwargs);
  input.add_generation_prompt = chat.add_generation_prompt;
  if (const std::optional<TokenId> bos = tokenizer_.bos_id()) {
    input.bos_token = std::string(tokenizer_.Spelling(*bos));
  }
  if (const std::optional<TokenId> eos = tokenizer_.eos_id()) {
    input.eos_token = std::string(tokenizer_.Spelling(*eos));
  }
  input.now_s = unix_seconds_();
  Result<std::string> rendered = template_.Render(input);
  if (!rendered) {
    ApiError error;
    error.message = "The chat template refuses the messages: " + rendered.error().message;
    error.param = "messages";
    return error;
  }
  std::string text = std::move(rendered).value();
  if (chat.continue_final_message) {
    const std::string content = FinalContent(input.messages);
    const size_t at = content.empty() ? std::string::npos : text.rfind(content);
    if (at == std::string::npos) {
      ApiError error;
      error.message =
          "'continue_final_message' needs a last message with text that the chat template prints "
          "as it is.";
      error.param = "continue_final_message";
      return error;
    }
    text.resize(at + content.size());
  }
  return text;
}

std::vector<TokenId> PromptBuilder::EncodeGuarded(std::string_view rendered, const Guard& guard,
                                                  bool add_special) const {
  // Control tokens that are still whole are the template's. Between them is plain text.
  std::vector<TokenId> ids;
  std::string plain;
  const auto flush = [&] {
    const std::vector<TokenId> part = tokenizer_.Encode(plain);
    ids.insert(ids.end(), part.begin(), part.end());
    plain.clear();
  };
  for (size_t i = 0; i < rendered.size();) {
    if (rendered.compare(i, guard.mark.size(), guard.mark) == 0) {
      i += guard.mark.size();
    } else if (const std::optional<TokenId> control = ControlAt(rendered, i)) {
      flush();
      ids.push_back(*control);
      i += tokenizer_.Spelling(*control).size();
    } else {
      plain += rendered[i++];
    }
  }
  flush();
  if (add_special && tokenizer_.add_bos() && tokenizer_.bos_id() &&
      (ids.empty() || ids.front() != *tokenizer_.bos_id())) {
    ids.insert(ids.begin(), *tokenizer_.bos_id());
  }
  return ids;
}

ApiResult<std::vector<TokenId>> PromptBuilder::Chat(const ChatPrompt& chat) const {
  Guard guard;
  ApiResult<std::string> rendered = Render(chat, guard);
  if (Failed(rendered)) {
    return std::get<ApiError>(rendered);
  }
  const std::string& text = std::get<std::string>(rendered);
  // A published template writes the BOS it needs; ours for models without one does not.
  const bool add_special = chat.add_special_tokens.value_or(!has_template_);
  if (guard.used) {
    return EncodeGuarded(text, guard, add_special);
  }
  return tokenizer_.Encode(text, {.parse_special = true, .add_special = add_special});
}

}  // namespace kvik::server
