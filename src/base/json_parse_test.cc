// SPDX-License-Identifier: Apache-2.0
#include "base/json_parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/rng.h"

namespace kvik {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StartsWith;

std::string Repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += text;
  }
  return out;
}

TEST(JsonParse, NestingUpToTheLimitIsParsedAndOneMoreIsNot) {
  const JsonLimits limits{.max_nesting = 10};
  EXPECT_TRUE(ParseJson<Json>(Repeat("[", 10) + Repeat("]", 10), limits));
  EXPECT_TRUE(ParseJson<Json>(Repeat(R"({"a":)", 10) + "1" + Repeat("}", 10), limits));
  const auto deep = ParseJson<Json>(Repeat(R"([{"a":)", 5) + "[]" + Repeat("}]", 5), limits);
  ASSERT_FALSE(deep);
  EXPECT_EQ(deep.error().code, ErrorCode::kInvalidInput);
  EXPECT_EQ(deep.error().message, "nests deeper than 10 levels");
  // Breadth is not depth, and no length of brackets costs more than the limit.
  EXPECT_TRUE(ParseJson<Json>("[" + Repeat("[],", 1000).append("[]]"), {.max_nesting = 2}));
  EXPECT_TRUE(JsonExcess(Repeat(std::string(1000, '['), 10'000), limits));
}

TEST(JsonParse, BracketsAndCommasInStringsAreText) {
  const JsonLimits limits{.max_nesting = 1, .max_members = 1};
  EXPECT_TRUE(ParseJson<Json>(R"(["[[[[", "{{,,\"[[", "\\", "\\\"{"])", limits));
  EXPECT_TRUE(ParseJson<Json>(R"({"a,[": ",,,"})", limits));
}

TEST(JsonParse, MembersAreCountedPerObjectAndItemsOfArraysAreNot) {
  const JsonLimits limits{.max_members = 3};
  EXPECT_TRUE(ParseJson<Json>(R"({"a":[1,2,3,4,5],"b":{"c":1,"d":2,"e":3},"f":0})", limits));
  const auto wide = ParseJson<Json>(R"([{"a":{"b":1,"c":2,"d":3,"e":4}}])", limits);
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().message, "has an object of more than 3 members");
}

TEST(JsonParse, LengthIsLimited) {
  EXPECT_TRUE(ParseJson<Json>("[1]", {.max_bytes = 3}));
  const auto is_long = ParseJson<Json>("[10]", {.max_bytes = 3});
  ASSERT_FALSE(is_long);
  EXPECT_EQ(is_long.error().message, "has 4 bytes, more than 3");
}

TEST(JsonParse, WhatIsNotJsonIsSaidWithItsPlaceAndWithoutTheLibrarysTag) {
  for (const char* text : {"", "{", "[1,]", "]", "}}}]", "\"", "\"\\", "{\"a\":1}x", "\xff"}) {
    const auto json = ParseJson<Json>(text, {});
    ASSERT_FALSE(json) << text;
    EXPECT_EQ(json.error().code, ErrorCode::kInvalidInput);
    EXPECT_THAT(json.error().message, StartsWith("is not valid JSON: parse error at line 1"));
  }
  EXPECT_FALSE(ParseJson<Json>("1e999", {}));  // not a parse error, another exception
}

// A parser quotes what it read last, and that may be megabytes of anything.
TEST(JsonParse, MessagesAreShortAndPrintable) {
  const auto json = ParseJson<Json>("[\"\xC3\xA9" + std::string(1'000'000, 'a'), {});
  ASSERT_FALSE(json);
  EXPECT_LT(json.error().message.size(), 300U);
  EXPECT_TRUE(std::all_of(json.error().message.begin(), json.error().message.end(),
                          [](char c) { return c >= 0x20 && c < 0x7F; }));
  EXPECT_EQ(JsonExceptionText("[1] apples"), "[1] apples");
}

// Depth and widest object of a tree: the reference the scan is compared with.
void Measure(const Json& json, int depth, int& nesting, size_t& members) {
  if (!json.is_structured()) {
    return;
  }
  nesting = std::max(nesting, depth + 1);
  members = std::max(members, json.is_object() ? json.size() : 0);
  for (const Json& child : json) {
    Measure(child, depth + 1, nesting, members);
  }
}

Json RandomTree(Rng& rng, int depth) {
  const uint64_t kind = depth == 0 ? 2 : rng.Below(3);
  if (kind == 2) {
    return rng.Below(2) == 0 ? Json(rng.Below(100)) : Json(R"(,[{\"}]",)");
  }
  Json json = kind == 0 ? Json::array() : Json::object();
  for (uint64_t i = rng.Below(5); i > 0; --i) {
    if (kind == 0) {
      json.push_back(RandomTree(rng, depth - 1));
    } else {
      json["k[" + std::to_string(i)] = RandomTree(rng, depth - 1);
    }
  }
  return json;
}

// For any tree, printed in any way: limits equal to its measures pass, one less does not.
TEST(JsonParse, TheScanAgreesWithTheTree) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Json tree = RandomTree(rng, static_cast<int>(rng.Below(7)));
    int nesting = 0;
    size_t members = 0;
    Measure(tree, 0, nesting, members);
    const std::string text = tree.dump(rng.Below(2) == 0 ? -1 : 2);
    const auto parsed = ParseJson<Json>(text, {.max_nesting = nesting, .max_members = members});
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(*parsed, tree);
    if (nesting > 0) {
      EXPECT_THAT(JsonExcess(text, {.max_nesting = nesting - 1}), Optional(HasSubstr("nests")));
    }
    if (members > 1) {
      EXPECT_THAT(JsonExcess(text, {.max_members = members - 1}), Optional(HasSubstr("object of")));
    }
  }
}

}  // namespace
}  // namespace kvik
