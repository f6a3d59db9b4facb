// SPDX-License-Identifier: Apache-2.0
// events/config.h: --kv-events-config: a JSON object with vLLM's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvik::events {

struct PublisherConfig {
  bool enable_kv_cache_events = false;
  // Where batches are published. With a "*" or "::" in it, or ipc://: bound here; else connected to
  // whoever listens there.
  std::string endpoint = "tcp://*:5557";
  // Where batches are sent again, always bound here; none: nowhere.
  std::optional<std::string> replay_endpoint;
  int64_t buffer_steps = 10'000;  // batches that can be sent again
  int64_t hwm = 100'000;          // batches that wait for a slow subscriber before it misses some
  int64_t max_queue_size = 100'000;  // batches that wait to be published
  std::string topic;
  bool use_int_block_hashes = true;
};

// kInvalidInput says which member is wrong. A member that is not known is wrong, and so is
// describing what is not enabled.
[[nodiscard]] Result<PublisherConfig> ParsePublisherConfig(std::string_view json);

}  // namespace kvik::events
