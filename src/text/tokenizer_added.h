// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_added.h: finds the pieces that are recognised whole in text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace kvik::text {

struct AddedToken {
  TokenId id = 0;
  std::string text;          // not empty
  bool is_special = false;   // only with parse_special
  bool strip_left = false;   // the match takes white space before it too
  bool strip_right = false;  // and after it
  bool single_word = false;  // no match next to a letter, digit, mark or underscore
};

// Immutable and thread-safe.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    TokenId id = 0;
  };
  // The first match at or after `from`: of those that begin at the same place the longest.
  // O(distance * longest token) at worst; bytes that begin no token are skipped fast.
  [[nodiscard]] std::optional<Match> Find(std::string_view text, size_t from,
                                          bool with_special) const;

  [[nodiscard]] bool empty() const { return tokens_.empty(); }

 private:
  // A trie; an edge is keyed by node << 8 | byte.
  struct Node {
    int32_t token = -1;  // index into tokens_ that ends here
  };
  [[nodiscard]] std::optional<size_t> Longest(std::string_view text, size_t at,
                                              bool with_special) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::array<bool, 256> first_byte_{};          // of tokens that are always recognised
  std::array<bool, 256> first_special_byte_{};  // of all tokens
};

}  // namespace kvik::text
