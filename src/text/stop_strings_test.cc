// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace kvik::text {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> matched;
};

Outcome Feed(StopStrings stops, const std::vector<std::string>& pieces) {
  Outcome outcome;
  for (const std::string& piece : pieces) {
    outcome.text += stops.Push(piece);
  }
  outcome.text += stops.Flush();
  outcome.matched = stops.matched();
  return outcome;
}

TEST(StopStrings, InsideOnePiece) {
  const Outcome outcome = Feed(StopStrings({"DEFGHIJ"}), {"ABCDEFGHIJK"});
  EXPECT_EQ(outcome.text, "ABC");
  EXPECT_EQ(outcome.matched, 0u);
}

TEST(StopStrings, SplitOverPieces) {
  StopStrings stops({"DEFGHIJ"});
  EXPECT_EQ(stops.Push("ABCDE"), "ABC");  // what may be the beginning of a stop is not shown
  EXPECT_EQ(stops.Push("FGH"), "");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.Push("IJK"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.Push("more"), "");
  EXPECT_EQ(stops.Flush(), "");
}

TEST(StopStrings, NearMissIsHandedOutInFull) {
  StopStrings stops({"DEFGHIJ"});
  EXPECT_EQ(stops.Push("ABCDEFGHI"), "ABC");
  EXPECT_EQ(stops.Push("X"), "DEFGHIX");
  EXPECT_FALSE(stops.stopped());
}

TEST(StopStrings, EndHandsOutWhatWasHeld) {
  StopStrings stops({"\n\nUser:"});
  EXPECT_EQ(stops.Push("yes\n\n"), "yes");
  EXPECT_EQ(stops.Flush(), "\n\n");
  EXPECT_EQ(stops.Flush(), "");
  EXPECT_FALSE(stops.stopped());
}

TEST(StopStrings, IncludeStop) {
  EXPECT_EQ(Feed(StopStrings({"END"}, true), {"a", "E", "ND", "b"}).text, "aEND");
}

TEST(StopStrings, TheFirstToBeCompleteCounts) {
  EXPECT_EQ(Feed(StopStrings({"abcd", "bc"}), {"xabcd"}).text, "xa");
  EXPECT_EQ(Feed(StopStrings({"abcd", "bc"}), {"xa", "b", "c", "d"}).text, "xa");
  // Of those that end together the longest.
  const Outcome outcome = Feed(StopStrings({"c", "abc", "bc"}), {"xab", "c"});
  EXPECT_EQ(outcome.text, "x");
  EXPECT_EQ(outcome.matched, 1u);
}

TEST(StopStrings, OverlapsWithItself) {
  EXPECT_EQ(Feed(StopStrings({"aab"}), {"aa", "ab"}).text, "a");
  EXPECT_EQ(Feed(StopStrings({"abab!"}), {"ababab", "!"}).text, "ab");
}

TEST(StopStrings, CharactersOfManyBytes) {
  StopStrings stops({"é"});
  EXPECT_EQ(stops.Push("è"), "è");  // shares its first byte
  EXPECT_EQ(stops.Push("aéb"), "a");
  EXPECT_EQ(Feed(StopStrings({"结束"}), {"完结", "束了"}).text, "完");
}

TEST(StopStrings, WithoutStopsNothingIsHeld) {
  StopStrings stops({"", ""});
  EXPECT_EQ(stops.Push("abc"), "abc");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(Feed(StopStrings({"", "b"}), {"abc"}).matched, 1u);
}

// The definition: the least end over all stop strings, of equal ends the longest string.
Outcome Naive(const std::vector<std::string>& stops, bool include_stop, const std::string& text) {
  size_t best_end = std::string::npos;
  size_t best = 0;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t begin = stops[i].empty() ? std::string::npos : text.find(stops[i]);
    if (begin == std::string::npos) {
      continue;
    }
    const size_t end = begin + stops[i].size();
    if (best_end == std::string::npos || end < best_end ||
        (end == best_end && stops[i].size() > stops[best].size())) {
      best_end = end;
      best = i;
    }
  }
  if (best_end == std::string::npos) {
    return {text, std::nullopt};
  }
  return {text.substr(0, include_stop ? best_end : best_end - stops[best].size()), best};
}

// However the text is cut: the definition's result, and nothing is handed out that the end takes
// back.
TEST(StopStrings, EqualsTheDefinitionForAnyCut) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  const auto word = [&](size_t longest) {
    std::string out;
    const size_t length = rng.Below(longest + 1);
    for (size_t i = 0; i < length; ++i) {
      out += static_cast<char>('a' + rng.Below(2));
    }
    return out;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(rng.Below(4));
    for (std::string& stop : stops) {
      stop = word(6);
    }
    const bool include_stop = rng.Below(2) == 0;
    const std::string text = word(30);
    std::vector<std::string> pieces;
    for (size_t pos = 0; pos < text.size();) {
      const size_t length = 1 + rng.Below(5);
      pieces.push_back(text.substr(pos, length));
      pos += length;
    }
    const Outcome expected = Naive(stops, include_stop, text);
    const Outcome got = Feed(StopStrings(stops, include_stop), pieces);
    ASSERT_EQ(got.text, expected.text) << "round " << round << " text " << text;
    ASSERT_EQ(got.matched.has_value(), expected.matched.has_value());
    if (got.matched) {
      ASSERT_EQ(stops[*got.matched], stops[*expected.matched]);
    }
  }
}

}  // namespace
}  // namespace kvik::text
