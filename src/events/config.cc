// SPDX-License-Identifier: Apache-2.0
#include "events/config.h"

#include <nlohmann/json.hpp>

#include "base/json_parse.h"

namespace kvik::events {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxCount = 10'000'000;
constexpr size_t kMaxTopicBytes = 255;

Error Wrong(const std::string& name, const char* why) {
  return Err(ErrorCode::kInvalidInput, "'%s' %s", name.c_str(), why);
}

Result<std::string> Endpoint(const std::string& name, const Json& value) {
  if (!value.is_string()) {
    return Wrong(name, "must be a string");
  }
  auto endpoint = value.get<std::string>();
  if (!endpoint.starts_with("tcp://") && !endpoint.starts_with("ipc://")) {
    return Wrong(name, "must begin with tcp:// or ipc://");
  }
  return endpoint;
}

Result<int64_t> CountOf(const std::string& name, const Json& value) {
  if (!value.is_number_integer() || value < 1 || value > kMaxCount) {
    return Wrong(name, "must be an integer from 1 to 10000000");
  }
  return value.get<int64_t>();
}

Result<void> Read(const std::string& name, const Json& value, PublisherConfig& config,
                  std::optional<std::string>& publisher) {
  if (name == "enable_kv_cache_events" || name == "use_int_block_hashes") {
    if (!value.is_boolean()) {
      return Wrong(name, "must be true or false");
    }
    (name.front() == 'e' ? config.enable_kv_cache_events : config.use_int_block_hashes) =
        value.get<bool>();
  } else if (name == "publisher") {
    if (value != "zmq" && value != "null") {
      return Wrong(name, "must be \"zmq\" or \"null\"");
    }
    publisher = value.get<std::string>();
  } else if (name == "endpoint") {
    KVIK_ASSIGN(config.endpoint, Endpoint(name, value));
  } else if (name == "replay_endpoint") {
    config.replay_endpoint.reset();
    if (!value.is_null()) {
      KVIK_ASSIGN(config.replay_endpoint, Endpoint(name, value));
    }
  } else if (name == "buffer_steps") {
    KVIK_ASSIGN(config.buffer_steps, CountOf(name, value));
  } else if (name == "hwm") {
    KVIK_ASSIGN(config.hwm, CountOf(name, value));
  } else if (name == "max_queue_size") {
    KVIK_ASSIGN(config.max_queue_size, CountOf(name, value));
  } else if (name == "topic") {
    if (!value.is_string() || value.get_ref<const std::string&>().size() > kMaxTopicBytes) {
      return Wrong(name, "must be a string of at most 255 bytes");
    }
    config.topic = value.get<std::string>();
  } else {
    return Wrong(name.substr(0, 100), "is not a member of it");
  }
  return {};
}

}  // namespace

Result<PublisherConfig> ParsePublisherConfig(std::string_view json) {
  Result<Json> parsed = ParseJson<Json>(json, {.max_bytes = 65536, .max_nesting = 2});
  if (!parsed) {
    return parsed.error();
  }
  if (!parsed->is_object()) {
    return Err(ErrorCode::kInvalidInput, "is not a JSON object");
  }
  PublisherConfig config;
  std::optional<std::string> publisher;
  for (const auto& [name, value] : parsed->items()) {
    KVIK_TRY(Read(name, value, config, publisher));
  }
  if (publisher == "null") {
    config.enable_kv_cache_events = false;
  }
  const size_t switches = parsed->count("enable_kv_cache_events") + parsed->count("publisher");
  if (!config.enable_kv_cache_events && parsed->size() > switches) {
    return Err(ErrorCode::kInvalidInput,
               "describes events that are not published: \"enable_kv_cache_events\" must be true");
  }
  return config;
}

}  // namespace kvik::events
