// SPDX-License-Identifier: Apache-2.0
#include "eval/prompts.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/fnv.h"
#include "base/rng.h"
#include "text/jinja_value.h"

namespace kvik::eval {
namespace {

using text::JinjaDict;
using text::JinjaValue;

// Cells up to here are about prompts as they come: nothing is added.
constexpr int32_t kShortTokens = 256;
// A turn's or a passage's frame, about; what is too much is taken out again.
constexpr int32_t kFrameTokens = 10;
// 2026-01-01, for templates that print a date.
constexpr int64_t kNow = 1'767'225'600;

bool IsMath(const Cell& cell) { return cell.workload == "math"; }
bool IsSummary(const Cell& cell) { return cell.workload == "summarization"; }
bool TakesPassages(const Cell& cell) { return cell.workload == "qa"; }
bool TakesExamples(const Cell& cell) {
  return IsMath(cell) || IsSummary(cell) || cell.workload == "code";
}

// Worked solutions of grade-school problems carry their arithmetic once more as <<1+1=2>>.
std::string WithoutAnnotations(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t end = text.compare(i, 2, "<<") == 0 ? text.find(">>", i) : std::string::npos;
    if (end != std::string::npos && end - i < 80) {
      i = end + 2;
    } else {
      out += text[i++];
    }
  }
  return out;
}

std::string Answer(const Cell& cell, const EvalItem& item) {
  return IsMath(cell) ? WithoutAnnotations(item.reference) : item.reference;
}

std::string Passage(const EvalItem& item) {
  return (item.title.empty() ? "" : item.title + ": ") + item.context;
}

// What the user of the chat says. `text` stands for the item's prompt.
std::string Question(const Cell& cell, const EvalItem& item, std::string_view text,
                     std::span<const std::string> passages) {
  std::string out;
  if (IsMath(cell)) {
    return out.append(text).append(
        "\n\nThink step by step. End with a line of #### and the number.");
  }
  if (cell.workload == "code") {
    return out.append("Write the body of this Python function and nothing else.\n\n").append(text);
  }
  if (IsSummary(cell)) {
    return out.append(text).append("\n\nWrite a detailed summary of the text above.");
  }
  if (TakesPassages(cell)) {
    out = "Answer the question from the passages, then quote and explain what says so.\n\n";
    for (size_t i = 0; i < passages.size(); ++i) {
      out += "Passage " + std::to_string(i + 1) + ": " + passages[i] + "\n\n";
    }
    return out.append("Question: ").append(text).append("?");
  }
  if (cell.workload == "retrieval") {
    return out.append("Find the value of a key in this JSON object.\n\n")
        .append(item.context)
        .append("\n\nWhat is the value of the key \"")
        .append(text)
        .append("\"? Repeat the key and its value.");
  }
  return (item.context.empty() ? out : out.append(item.context).append("\n\n")).append(text);
}

JinjaValue Message(const char* role, std::string content) {
  JinjaDict dict;
  dict.Set("role", JinjaValue::String(role));
  dict.Set("content", JinjaValue::String(std::move(content)));
  return JinjaValue::Dict(std::move(dict));
}

// A permutation of [0, n).
std::vector<size_t> Shuffled(size_t n, Rng rng) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = n; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(rng.Below(i))]);
  }
  return order;
}

std::optional<std::string> Spelled(const text::Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::optional<std::string>(tokenizer.Spelling(*id)) : std::nullopt;
}

}  // namespace

// A prompt on its way to its length.
struct CellPrompts::Draft {
  const EvalItem* item = nullptr;
  size_t place = 0;             // in order_
  std::string text;             // the item's prompt, maybe cut
  std::vector<size_t> fillers;  // places in order_
  double own_place = 0;         // of the item's passage among them, in [0, 1)
  std::vector<TokenId> tokens;  // as rendered last
};

CellPrompts::CellPrompts(std::span<const EvalItem> items, const Cell& cell, uint64_t seed,
                         const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
                         bool add_special)
    : items_(items),
      cell_(cell),
      seed_(seed),
      tokenizer_(tokenizer),
      template_(chat_template),
      add_special_(add_special) {}

Result<CellPrompts> CellPrompts::Create(std::span<const EvalItem> items, const Cell& cell,
                                        uint64_t seed, const text::Tokenizer& tokenizer,
                                        const text::ChatTemplate* chat_template) {
  // A published template writes the BOS it needs; ChatML for models without one does not.
  CellPrompts prompts(items, cell, seed, tokenizer,
                      chat_template != nullptr ? *chat_template : text::ChatTemplate::ChatMl(),
                      chat_template == nullptr);
  std::vector<size_t> own;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].workload == cell.workload) {
      own.push_back(i);
    }
  }
  if (own.empty()) {
    return Err(ErrorCode::kNotFound, "the data has no items of the workload '%s'",
               cell.workload.c_str());
  }
  for (const size_t at : Shuffled(own.size(), Rng(seed, Fnv1a(cell.workload)))) {
    prompts.order_.push_back(own[at]);
  }
  if (cell.target_tokens > kShortTokens && (TakesPassages(cell) || TakesExamples(cell))) {
    for (const size_t index : prompts.order_) {
      const EvalItem& item = items[index];
      const std::string filler = TakesPassages(cell)
                                     ? Passage(item)
                                     : Question(cell, item, item.prompt, {}) + Answer(cell, item);
      const int32_t frames = TakesPassages(cell) ? 1 : 2;
      prompts.filler_tokens_.push_back(static_cast<int32_t>(tokenizer.Encode(filler).size()) +
                                       frames * kFrameTokens);
    }
  }
  return prompts;
}

Result<std::vector<TokenId>> CellPrompts::Render(const Draft& draft) const {
  std::vector<JinjaValue> messages;
  std::vector<std::string> passages;
  if (TakesPassages(cell_)) {
    for (const size_t place : draft.fillers) {
      passages.push_back(Passage(items_[order_[place]]));
    }
    const auto at = static_cast<size_t>(draft.own_place * static_cast<double>(passages.size() + 1));
    passages.insert(passages.begin() + static_cast<ptrdiff_t>(at), Passage(*draft.item));
  } else {
    for (const size_t place : draft.fillers) {
      const EvalItem& example = items_[order_[place]];
      messages.push_back(Message("user", Question(cell_, example, example.prompt, {})));
      messages.push_back(Message("assistant", Answer(cell_, example)));
    }
  }
  messages.push_back(Message("user", Question(cell_, *draft.item, draft.text, passages)));
  text::ChatInput input;
  input.messages = JinjaValue::List(std::move(messages));
  input.bos_token = Spelled(tokenizer_, tokenizer_.bos_id());
  input.eos_token = Spelled(tokenizer_, tokenizer_.eos_id());
  input.now_s = kNow;
  const Result<std::string> rendered = template_.Render(input);
  if (!rendered) {
    return rendered.error().Wrap("chat template");
  }
  return tokenizer_.Encode(*rendered, {.parse_special = true, .add_special = add_special_});
}

// Until the prompt has the cell's length: at white space, so that no character is torn.
Result<void> CellPrompts::CutText(Draft& draft) const {
  const auto target = static_cast<size_t>(cell_.target_tokens);
  while (draft.tokens.size() > target && !draft.text.empty()) {
    const double share = static_cast<double>(target) / static_cast<double>(draft.tokens.size());
    const auto keep = static_cast<size_t>(static_cast<double>(draft.text.size()) * share * 0.995);
    const size_t space = draft.text.find_last_of(" \n", keep);
    draft.text.resize(space == std::string::npos ? 0 : space);
    KVIK_ASSIGN(draft.tokens, Render(draft));
  }
  return {};
}

Result<void> CellPrompts::FillUp(Draft& draft) const {
  auto used = static_cast<int32_t>(draft.tokens.size());
  Rng rng(seed_, Fnv1a(CellName(cell_)) + draft.place + 1);
  draft.own_place = rng.Uniform();
  for (const size_t place : Shuffled(order_.size(), rng)) {
    const EvalItem& filler = items_[order_[place]];
    const bool usable = TakesPassages(cell_)
                            ? filler.context != draft.item->context
                            : filler.prompt != draft.item->prompt && !filler.reference.empty();
    if (usable && used + filler_tokens_[place] <= cell_.target_tokens) {
      draft.fillers.push_back(place);
      used += filler_tokens_[place];
    }
  }
  KVIK_ASSIGN(draft.tokens, Render(draft));
  while (draft.tokens.size() > static_cast<size_t>(cell_.target_tokens) && !draft.fillers.empty()) {
    draft.fillers.pop_back();
    KVIK_ASSIGN(draft.tokens, Render(draft));
  }
  return {};
}

Result<std::optional<EvalPrompt>> CellPrompts::Build(size_t candidate) const {
  KVIK_CHECK(candidate < order_.size());
  const size_t index = order_[candidate];
  Draft draft;
  draft.item = &items_[index];
  draft.place = candidate;
  draft.text = draft.item->prompt;
  KVIK_ASSIGN(draft.tokens, Render(draft));
  if (cell_.target_tokens > 0) {
    const auto target = static_cast<size_t>(cell_.target_tokens);
    if (IsSummary(cell_)) {
      KVIK_TRY(CutText(draft));
    }
    if (draft.tokens.size() > (cell_.target_tokens > kShortTokens ? target : 2 * target)) {
      return std::optional<EvalPrompt>();
    }
    if (!filler_tokens_.empty()) {
      KVIK_TRY(FillUp(draft));
    }
  }
  return std::optional<EvalPrompt>(
      EvalPrompt{.item = index,
                 .tokens = std::move(draft.tokens),
                 .reference = tokenizer_.Encode(Answer(cell_, *draft.item))});
}

}  // namespace kvik::eval
