// SPDX-License-Identifier: Apache-2.0
// text/stop_strings.h: ends a generated text at the first stop string.
//
// The text comes in pieces cut anywhere between characters. What could be the beginning of a stop
// string is held back until it is decided. The match that is complete first counts; of those that
// end together, the longest. So the result does not depend on how the text was cut into pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvik::text {

// Owned by one thread. O(bytes * stop strings) in all.
class StopStrings {
 public:
  // Empty strings are ignored. With `include_stop` the matched string is part of the text.
  explicit StopStrings(std::vector<std::string> stops, bool include_stop = false);

  // The text that is now certain; after a match everything before it, later always empty.
  std::string Push(std::string_view text);

  // The end without a match: what is held back, in full. After a match empty.
  std::string Flush();

  // Index into the constructor's `stops` of the string that matched.
  [[nodiscard]] std::optional<size_t> matched() const { return matched_; }
  [[nodiscard]] bool stopped() const { return matched_.has_value(); }

 private:
  // A stop string and how much of it the text so far ends with (Knuth, Morris, Pratt).
  struct Pattern {
    std::string text;
    size_t index = 0;              // in the constructor's `stops`
    std::vector<uint32_t> border;  // border[i]: longest proper border of text[0, i]
    size_t matched_bytes = 0;
  };
  std::vector<Pattern> patterns_;
  bool include_stop_;
  std::string held_;  // the end of the text that is not handed out
  std::optional<size_t> matched_;
};

}  // namespace kvik::text
