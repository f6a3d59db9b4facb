// SPDX-License-Identifier: Apache-2.0
#include "events/config.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvik::events {
namespace {

TEST(PublisherConfig, ReadsVllmsMembers) {
  const Result<PublisherConfig> config = ParsePublisherConfig(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:6000",
          "replay_endpoint": "tcp://*:6001", "buffer_steps": 7, "hwm": 8, "max_queue_size": 9,
          "topic": "kv", "use_int_block_hashes": false})");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_TRUE(config->enable_kv_cache_events);
  EXPECT_EQ(config->endpoint, "tcp://*:6000");
  EXPECT_EQ(config->replay_endpoint, "tcp://*:6001");
  EXPECT_EQ(config->buffer_steps, 7);
  EXPECT_EQ(config->hwm, 8);
  EXPECT_EQ(config->max_queue_size, 9);
  EXPECT_EQ(config->topic, "kv");
  EXPECT_FALSE(config->use_int_block_hashes);
}

TEST(PublisherConfig, HasVllmsDefaults) {
  const auto config = ParsePublisherConfig(R"({"enable_kv_cache_events": true})").value();
  EXPECT_EQ(config.endpoint, "tcp://*:5557");
  EXPECT_FALSE(config.replay_endpoint);
  EXPECT_EQ(config.buffer_steps, 10'000);
  EXPECT_EQ(config.hwm, 100'000);
  EXPECT_EQ(config.max_queue_size, 100'000);
  EXPECT_TRUE(config.topic.empty());
  EXPECT_TRUE(config.use_int_block_hashes);
}

TEST(PublisherConfig, CanSayNo) {
  EXPECT_FALSE(ParsePublisherConfig("{}").value().enable_kv_cache_events);
  EXPECT_FALSE(
      ParsePublisherConfig(R"({"enable_kv_cache_events": false})").value().enable_kv_cache_events);
  EXPECT_FALSE(ParsePublisherConfig(R"({"enable_kv_cache_events": true, "publisher": "null"})")
                   .value()
                   .enable_kv_cache_events);
}

TEST(PublisherConfig, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"7", "not a JSON object"},
      {"{", "not valid JSON"},
      {R"({"enable_kv_cache_events": 1})", "'enable_kv_cache_events' must be true or false"},
      {R"({"enable_kv_cache_events": true, "publisher": "kafka"})", "'publisher' must be"},
      {R"({"enable_kv_cache_events": true, "endpoint": "http://x"})", "'endpoint' must begin"},
      {R"({"enable_kv_cache_events": true, "replay_endpoint": 5})", "'replay_endpoint' must be"},
      {R"({"enable_kv_cache_events": true, "buffer_steps": 0})", "'buffer_steps' must be"},
      {R"({"enable_kv_cache_events": true, "hwm": 1e9})", "'hwm' must be"},
      {R"({"enable_kv_cache_events": true, "max_queue_size": -1})", "'max_queue_size' must be"},
      {R"({"enable_kv_cache_events": true, "topic": ["a"]})", "'topic' must be"},
      {R"({"enable_kv_cache_events": true, "endpont": "tcp://*:1"})", "'endpont' is not"},
      {R"({"endpoint": "tcp://*:1"})", "must be true"},
  };
  for (const auto& [json, message] : wrong) {
    const Result<PublisherConfig> config = ParsePublisherConfig(json);
    ASSERT_FALSE(config) << json;
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidInput);
    EXPECT_NE(config.error().message.find(message), std::string::npos)
        << json << ": " << config.error().message;
  }
}

}  // namespace
}  // namespace kvik::events
