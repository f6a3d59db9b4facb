// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer_regex.h"

#include <pcre2.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

// PCRE2's own \s has U+180E, which lost White_Space in Unicode 6.3.
constexpr std::string_view kSpaceClass =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// PCRE2's own \w has neither marks nor all connector punctuation. (The Latin-1 numbers are
// Oniguruma's.)
constexpr std::string_view kWordClass =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

constexpr size_t kMaxPatternBytes = 16384;
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;

// `pattern` with \s \S \w \W spelled out. (\S and \W inside brackets stay PCRE2's: a class cannot
// hold the complement of another.)
std::string Rewrite(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  size_t class_start = 0;  // where a ']' would be a literal
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      const bool negated = next == 'S' || next == 'W';
      const std::string_view members = next == 's' || next == 'S'   ? kSpaceClass
                                       : next == 'w' || next == 'W' ? kWordClass
                                                                    : std::string_view();
      if (members.empty() || (negated && in_class)) {
        out += c;
        out += next;
      } else if (in_class) {
        out += members;
      } else {
        out += negated ? "[^" : "[";
        out += members;
        out += ']';
      }
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      class_start = i + 1 < pattern.size() && pattern[i + 1] == '^' ? i + 2 : i + 1;
    } else if (in_class && c == ']' && i != class_start) {
      in_class = false;
    } else if (in_class && c == '[' && i + 1 < pattern.size() && pattern[i + 1] == ':') {
      // A POSIX class: its bracket does not end ours.
      const size_t end = pattern.find(":]", i + 2);
      if (end != std::string_view::npos) {
        out += pattern.substr(i, end + 2 - i);
        i = end + 1;
        continue;
      }
    }
    out += c;
  }
  return out;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

struct TokenizerRegex::Code {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context;
  bool jit = false;
};

TokenizerRegex::TokenizerRegex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
TokenizerRegex::~TokenizerRegex() = default;
TokenizerRegex::TokenizerRegex(TokenizerRegex&&) noexcept = default;
TokenizerRegex& TokenizerRegex::operator=(TokenizerRegex&&) noexcept = default;

std::string TokenizerRegex::Quote(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || c == '_' ||
                       (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (c == '\0') {
      out += "\\x{0}";
      continue;
    }
    if (!plain) {
      out += '\\';
    }
    out += c;
  }
  return out;
}

Result<TokenizerRegex> TokenizerRegex::Compile(std::string_view pattern) {
  std::string shown(pattern.substr(0, 60));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  if (pattern.size() > kMaxPatternBytes || ValidUtf8Prefix(pattern) != pattern.size()) {
    return Err(ErrorCode::kUnsupported,
               "regular expression '%s...' is longer than %zu bytes or not UTF-8", shown.c_str(),
               kMaxPatternBytes);
  }
  const std::string rewritten = Rewrite(pattern);
  int error_code = 0;
  PCRE2_SIZE error_offset = 0;
  auto compiled = std::make_unique<Code>();
  compiled->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error_code, &error_offset, nullptr));
  if (compiled->code == nullptr) {
    PCRE2_UCHAR reason[160] = {};
    pcre2_get_error_message(error_code, reason, sizeof(reason));
    return Err(ErrorCode::kUnsupported, "regular expression '%s' cannot be compiled: %s",
               shown.c_str(), reinterpret_cast<const char*>(reason));
  }
  compiled->jit = pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE) == 0;
  compiled->context.reset(pcre2_match_context_create(nullptr));
  if (compiled->context == nullptr) {
    return Err(ErrorCode::kExhausted, "no memory for a regular expression");
  }
  pcre2_set_match_limit(compiled->context.get(), kMatchLimit);
  pcre2_set_heap_limit(compiled->context.get(), kHeapLimitKib);
  return TokenizerRegex(std::move(compiled));
}

void TokenizerRegex::ForEach(std::string_view text,
                             const std::function<void(size_t, size_t)>& match) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create(1, nullptr));  // only the whole match is asked for
  if (data == nullptr) {
    throw std::bad_alloc();
  }
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
  size_t pos = 0;
  while (pos < text.size()) {
    int found = code_->jit ? pcre2_jit_match(code_->code.get(), subject, text.size(), pos, 0,
                                             data.get(), code_->context.get())
                           : PCRE2_ERROR_JIT_STACKLIMIT;
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The interpreter's stack is the heap.
      found = pcre2_match(code_->code.get(), subject, text.size(), pos,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), code_->context.get());
    }
    if (found < 0) {
      return;
    }
    // \K in a look-ahead could move the start behind the end or before the search's start.
    const size_t begin = bounds[0];
    const size_t end = bounds[1];
    if (begin < pos || end < begin) {
      return;
    }
    if (begin < end) {
      match(begin, end);
      pos = end;
    } else if (end < text.size()) {
      pos = end + ReadUtf8(text.substr(end)).bytes;
    } else {
      return;
    }
  }
}

}  // namespace kvik::text
