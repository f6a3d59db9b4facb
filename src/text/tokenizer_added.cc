// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_added.h"

#include <utf8proc.h>

#include <utility>

#include "base/check.h"
#include "text/tokenizer_utf8.h"

namespace kvik::text {
namespace {

// As \w of Unicode's recommendation for regular expressions.
bool IsWordCharacter(char32_t c) {
  const bool other_alphabetic = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                                (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  const bool join_control = c == 0x200C || c == 0x200D;
  if (other_alphabetic || join_control) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    KVIK_CHECK(!token.text.empty());
    const auto first = static_cast<uint8_t>(token.text[0]);
    first_special_byte_[first] = true;
    first_byte_[first] = first_byte_[first] || !token.is_special;
    uint32_t node = 0;
    for (const char c : token.text) {
      const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
      const auto [edge, added] = edges_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
      if (added) {
        nodes_.emplace_back();
      }
      node = edge->second;
    }
    // Two tokens may be spelled alike: the one that is recognised in more texts counts, then the
    // first.
    int32_t& here = nodes_[node].token;
    if (here < 0 || (tokens_[static_cast<size_t>(here)].is_special && !token.is_special)) {
      here = static_cast<int32_t>(i);
    }
  }
}

std::optional<size_t> AddedTokens::Longest(std::string_view text, size_t at,
                                           bool with_special) const {
  std::optional<size_t> longest;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto edge = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
    if (edge == edges_.end()) {
      break;
    }
    node = edge->second;
    const int32_t index = nodes_[node].token;
    if (index < 0) {
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (token.is_special && !with_special) {
      continue;
    }
    if (token.single_word &&
        ((at > 0 && IsWordCharacter(ReadLastUtf8(text.substr(0, at)).code_point)) ||
         (i + 1 < text.size() && IsWordCharacter(ReadUtf8(text.substr(i + 1)).code_point)))) {
      continue;
    }
    longest = static_cast<size_t>(index);
  }
  return longest;
}

std::optional<AddedTokens::Match> AddedTokens::Find(std::string_view text, size_t from,
                                                    bool with_special) const {
  if (tokens_.empty()) {
    return std::nullopt;
  }
  const auto& first = with_special ? first_special_byte_ : first_byte_;
  for (size_t at = from; at < text.size(); ++at) {
    if (!first[static_cast<uint8_t>(text[at])]) {
      continue;
    }
    const std::optional<size_t> index = Longest(text, at, with_special);
    if (!index) {
      continue;
    }
    const AddedToken& token = tokens_[*index];
    Match match{.begin = at, .end = at + token.text.size(), .id = token.id};
    while (token.strip_left && match.begin > from) {
      const Utf8Sequence c = ReadLastUtf8(text.substr(from, match.begin - from));
      if (!IsWhiteSpace(c.code_point)) {
        break;
      }
      match.begin -= c.bytes;
    }
    while (token.strip_right && match.end < text.size()) {
      const Utf8Sequence c = ReadUtf8(text.substr(match.end));
      if (!IsWhiteSpace(c.code_point)) {
        break;
      }
      match.end += c.bytes;
    }
    return match;
  }
  return std::nullopt;
}

}  // namespace kvik::text
