// SPDX-License-Identifier: Apache-2.0
#include "server/tool_name.h"

#include <gtest/gtest.h>

namespace kvik::server {
namespace {

TEST(ToolName, IsFoundAsModelsWriteCalls) {
  EXPECT_EQ(ToolName("\n{\"name\": \"web_search\", \"arguments\": {}}\n"), "web_search");
  EXPECT_EQ(ToolName(">\n{\"arguments\": {\"x\": 1}, \"name\":\"f\"}"), "f");
  EXPECT_EQ(ToolName("] [{\"name\" : \"get-time\"}]"), "get-time");
  EXPECT_EQ(ToolName("brave_search.call(query=\"x\")"), "brave_search");
  EXPECT_EQ(ToolName(" calculate{\"x\": 1}"), "calculate");
}

TEST(ToolName, IsEmptyWhereNoneIsOrNoneEnds) {
  for (const char* call : {"", "   ", "{", "{\"name\"", "{\"name\": ", "{\"name\": \"sea",
                           "{\"name\": 3}", "search", "{\"x\": 1}"}) {
    EXPECT_EQ(ToolName(call), "") << call;
  }
}

}  // namespace
}  // namespace kvik::server
