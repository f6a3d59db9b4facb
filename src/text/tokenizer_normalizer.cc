// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "base/check.h"
#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

constexpr double kMaxGrowth = 1024;
// No character's decomposition is longer than this many times its own bytes.
constexpr double kDecompositionGrowth = 12;

void AppendCodePoint(char32_t c, std::string* out) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

std::string Map(std::string_view text, int options) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (bytes == UTF8PROC_ERROR_NOMEM) {
    throw std::bad_alloc();
  }
  KVIK_CHECK(bytes >= 0, "utf8proc: %s", utf8proc_errmsg(bytes));
  return {reinterpret_cast<const char*>(mapped), static_cast<size_t>(bytes)};
}

template <typename F>
void ForEachCodePoint(std::string_view text, F&& f) {
  while (!text.empty()) {
    const Utf8Sequence c = ReadUtf8(text);
    f(c.code_point, text.substr(0, c.bytes));
    text.remove_prefix(c.bytes);
  }
}

std::string Lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCodePoint(text, [&](char32_t c, std::string_view) {
    if (c == 0x130) {
      out += "i\xCC\x87";  // the one lower case letter that is two code points
    } else {
      AppendCodePoint(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
                      &out);
    }
  });
  return out;
}

std::string StripAccents(std::string_view text) {
  std::string out;
  ForEachCodePoint(text, [&](char32_t c, std::string_view bytes) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    if (category != UTF8PROC_CATEGORY_MN && category != UTF8PROC_CATEGORY_MC &&
        category != UTF8PROC_CATEGORY_ME) {
      out += bytes;
    }
  });
  return out;
}

std::string_view StripSpace(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8Sequence c = ReadUtf8(text);
    if (!IsWhiteSpace(c.code_point)) {
      break;
    }
    text.remove_prefix(c.bytes);
  }
  while (right && !text.empty()) {
    const Utf8Sequence c = ReadLastUtf8(text);
    if (!IsWhiteSpace(c.code_point)) {
      break;
    }
    text.remove_suffix(c.bytes);
  }
  return text;
}

double Growth(const NormalizerStep& step) {
  const auto content_bytes = static_cast<double>(step.content.size());
  switch (step.kind) {
    case NormalizerStep::Kind::kNfc:
    case NormalizerStep::Kind::kNfd:
    case NormalizerStep::Kind::kNfkc:
    case NormalizerStep::Kind::kNfkd:
      return kDecompositionGrowth;
    case NormalizerStep::Kind::kLowercase:
      return 2;
    case NormalizerStep::Kind::kStripAccents:
    case NormalizerStep::Kind::kStrip:
      return 1;
    case NormalizerStep::Kind::kPrepend:
    case NormalizerStep::Kind::kReplaceRegex:
      return 1 + content_bytes;
    case NormalizerStep::Kind::kReplace:
      return std::max(1.0, content_bytes / static_cast<double>(step.pattern.size()));
  }
  return 1;
}

}  // namespace

Result<Normalizer> Normalizer::Compile(std::vector<NormalizerStep> steps) {
  Normalizer normalizer;
  double growth = 1;
  for (NormalizerStep& step : steps) {
    if (step.kind == NormalizerStep::Kind::kReplace && step.pattern.empty()) {
      return Err(ErrorCode::kUnsupported, "normalizer replaces an empty pattern");
    }
    if (ValidUtf8Prefix(step.content) != step.content.size() ||
        ValidUtf8Prefix(step.pattern) != step.pattern.size()) {
      return Err(ErrorCode::kCorrupt, "normalizer text is not UTF-8");
    }
    growth *= Growth(step);
    if (growth > kMaxGrowth) {
      return Err(ErrorCode::kUnsupported, "normalizer could make a text %g times as long", growth);
    }
    std::optional<TokenizerRegex> regex;
    if (step.kind == NormalizerStep::Kind::kReplaceRegex) {
      KVIK_ASSIGN(regex, TokenizerRegex::Compile(step.pattern));
    }
    normalizer.steps_.push_back({std::move(step), std::move(regex)});
  }
  return normalizer;
}

std::string Normalizer::Apply(std::string_view text) const {
  std::string current(text);
  for (const auto& [step, regex] : steps_) {
    switch (step.kind) {
      case NormalizerStep::Kind::kNfc:
      case NormalizerStep::Kind::kNfd:
      case NormalizerStep::Kind::kNfkc:
      case NormalizerStep::Kind::kNfkd:
        // ASCII is in every normal form.
        if (AsciiPrefix(current) != current.size()) {
          const bool compose =
              step.kind == NormalizerStep::Kind::kNfc || step.kind == NormalizerStep::Kind::kNfkc;
          const bool compatible =
              step.kind == NormalizerStep::Kind::kNfkc || step.kind == NormalizerStep::Kind::kNfkd;
          current = Map(current, (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                     (compatible ? UTF8PROC_COMPAT : 0));
        }
        break;
      case NormalizerStep::Kind::kLowercase:
        current = Lowercase(current);
        break;
      case NormalizerStep::Kind::kStripAccents:
        current = StripAccents(current);
        break;
      case NormalizerStep::Kind::kStrip:
        current = std::string(StripSpace(current, step.strip_left, step.strip_right));
        break;
      case NormalizerStep::Kind::kPrepend:
        if (!current.empty()) {
          current.insert(0, step.content);
        }
        break;
      case NormalizerStep::Kind::kReplace:
        current = ReplaceEvery(current, step.pattern, step.content);
        break;
      case NormalizerStep::Kind::kReplaceRegex: {
        std::string out;
        size_t pos = 0;
        const std::string& content = step.content;  // clang 14 captures no structured binding
        regex->ForEach(current, [&](size_t begin, size_t end) {
          out.append(current, pos, begin - pos);
          out += content;
          pos = end;
        });
        out.append(current, pos);
        current = std::move(out);
        break;
      }
    }
  }
  return current;
}

}  // namespace kvik::text
