// SPDX-License-Identifier: Apache-2.0
#include "text/pretokenizer.h"

#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

using Range = std::pair<size_t, size_t>;

// Calls emit(begin, end) for every word that `step` makes of text[begin, end).
template <typename Emit>
void SplitRange(const PreTokenizerStep& step, const TokenizerRegex& regex, std::string_view text,
                Range range, Emit&& emit) {
  const auto word = [&](size_t begin, size_t end) {
    if (begin < end) {
      emit(begin, end);
    }
  };
  // Pieces alternate between matches and what lies between them; `previous_end` is where the last
  // one ended, `open` where the word began that a merging behaviour has not closed.
  size_t previous_end = range.first;
  size_t open = range.first;
  bool open_is_delimiter = false;
  const auto piece = [&](size_t begin, size_t end, bool matched) {
    if (begin == end) {
      return;
    }
    const bool delimiter = matched != step.invert;
    switch (step.behavior) {
      case SplitBehavior::kRemoved:
        if (!delimiter) {
          word(begin, end);
        }
        open = end;
        break;
      case SplitBehavior::kIsolated:
        word(begin, end);
        open = end;
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (delimiter) {
          word(open, end);
          open = end;
        } else {
          word(open, begin);
          open = begin;
        }
        break;
      case SplitBehavior::kMergedWithNext:
        if (delimiter || !open_is_delimiter) {
          word(open, begin);
          open = begin;
        }
        break;
      case SplitBehavior::kContiguous:
        if (delimiter != open_is_delimiter) {
          word(open, begin);
          open = begin;
        }
        break;
    }
    open_is_delimiter = delimiter;
  };
  regex.ForEach(text.substr(range.first, range.second - range.first),
                [&](size_t begin, size_t end) {
                  piece(previous_end, range.first + begin, false);
                  piece(range.first + begin, range.first + end, true);
                  previous_end = range.first + end;
                });
  piece(previous_end, range.second, false);
  word(open, range.second);
}

void ApplyPrefixSpace(Words* words) {
  std::string text;
  for (auto& [begin, end] : words->ranges) {
    const std::string_view word = std::string_view(words->text).substr(begin, end - begin);
    begin = text.size();
    if (!IsWhiteSpace(ReadUtf8(word).code_point)) {
      text += ' ';
    }
    text += word;
    end = text.size();
  }
  words->text = std::move(text);
}

void ApplyMetaspace(const PreTokenizerStep& step, bool at_start, Words* words) {
  std::string text;
  std::vector<Range> ranges;
  for (size_t i = 0; i < words->ranges.size(); ++i) {
    const auto [begin, end] = words->ranges[i];
    std::string word;
    for (const char c : std::string_view(words->text).substr(begin, end - begin)) {
      if (c == ' ') {
        word += kSpaceSymbol;
      } else {
        word += c;
      }
    }
    const bool prepend =
        step.prepend == PreTokenizerStep::Prepend::kAlways ||
        (step.prepend == PreTokenizerStep::Prepend::kFirst && at_start && begin == 0);
    if (prepend && !word.starts_with(kSpaceSymbol)) {
      word.insert(0, kSpaceSymbol);
    }
    size_t open = text.size();
    text += word;
    if (step.split) {
      for (size_t hit = text.find(kSpaceSymbol, open + 1); hit != std::string::npos;
           hit = text.find(kSpaceSymbol, hit + 1)) {
        ranges.emplace_back(open, hit);
        open = hit;
      }
    }
    ranges.emplace_back(open, text.size());
  }
  words->text = std::move(text);
  words->ranges = std::move(ranges);
}

PreTokenizerStep SplitStep(std::string_view pattern) {
  return {.kind = PreTokenizerStep::Kind::kSplit, .pattern = std::string(pattern)};
}

// The two newer families differ only in how many digits make a word.
std::string ContractionsWordsDigits(std::string_view digits) {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" + std::string(digits) +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

// Words that change from lower to upper case are two; `suffix` follows each, `digits` as above.
std::string CaseAwareWords(std::string_view suffix, std::string_view digits) {
  const std::string end = std::string(suffix) + "|";
  return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" + end +
         R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" + end +
         std::string(digits) + R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  for (const std::string_view candidate : names) {
    if (name == candidate) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::optional<std::vector<PreTokenizerStep>> NamedPreTokenizer(std::string_view name) {
  std::vector<PreTokenizerStep> steps;
  if (name.empty() || name == "default") {
    // What files without a name get: punctuation alone, GPT-2's words, digits by threes.
    steps = {SplitStep(R"([\p{P}\$\+<=>\^~\|]+)"), SplitStep(kGpt2Split), SplitStep(R"(\p{N}+)"),
             SplitStep(R"([0-9][0-9][0-9])")};
  } else if (IsOneOf(name, {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "roberta-bpe"})) {
    steps = {SplitStep(kGpt2Split)};
  } else if (IsOneOf(name, {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone",
                            "minerva-7b"})) {
    steps = {SplitStep(kOneDigitSplit), SplitStep(kGpt2Split)};
  } else if (IsOneOf(name, {"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"})) {
    steps = {SplitStep(ContractionsWordsDigits(R"(\p{N})"))};
  } else if (IsOneOf(name, {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral",
                            "lfm2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"})) {
    steps = {SplitStep(ContractionsWordsDigits(R"(\p{N}{1,3})"))};
  } else if (name == "tekken") {
    steps = {SplitStep(CaseAwareWords("", R"(\p{N})"))};
  } else if (IsOneOf(name, {"gpt-4o", "llama4"})) {
    steps = {SplitStep(CaseAwareWords(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)", R"(\p{N}{1,3})"))};
  } else {
    return std::nullopt;
  }
  return steps;
}

Result<PreTokenizer> PreTokenizer::Compile(std::vector<PreTokenizerStep> steps) {
  PreTokenizer pre_tokenizer;
  for (PreTokenizerStep& step : steps) {
    std::optional<TokenizerRegex> regex;
    if (step.kind == PreTokenizerStep::Kind::kSplit) {
      KVIK_ASSIGN(regex, TokenizerRegex::Compile(step.pattern));
    }
    pre_tokenizer.steps_.push_back({std::move(step), std::move(regex)});
  }
  return pre_tokenizer;
}

Words PreTokenizer::Split(std::string text, bool at_start) const {
  Words words{.text = std::move(text), .ranges = {}};
  if (words.text.empty()) {
    return words;
  }
  words.ranges.emplace_back(0, words.text.size());
  for (const auto& [step, regex] : steps_) {
    switch (step.kind) {
      case PreTokenizerStep::Kind::kSplit: {
        std::vector<Range> ranges;
        ranges.reserve(words.text.size() / 4 + 1);
        for (const Range& range : words.ranges) {
          SplitRange(step, *regex, words.text, range,
                     [&](size_t begin, size_t end) { ranges.emplace_back(begin, end); });
        }
        words.ranges = std::move(ranges);
        break;
      }
      case PreTokenizerStep::Kind::kPrefixSpace:
        ApplyPrefixSpace(&words);
        break;
      case PreTokenizerStep::Kind::kMetaspace:
        ApplyMetaspace(step, at_start, &words);
        break;
    }
  }
  return words;
}

}  // namespace kvik::text
