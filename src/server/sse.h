// SPDX-License-Identifier: Apache-2.0
// server/sse.h: server-sent events as OpenAI streams use them: "data: ..." and an empty line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvik::server {

// One event. REQUIRES: `data` has no line breaks (JSON never has).
std::string SseEvent(std::string_view data);

// Takes a stream apart again, wherever it was cut. Thread-compatible.
class SseParser {
 public:
  // The data of the events that became complete. Comments and other fields are skipped.
  std::vector<std::string> Push(std::string_view bytes);

 private:
  std::string line_;  // not ended yet
  std::string data_;  // of the event not ended yet
  bool has_data_ = false;
};

}  // namespace kvik::server
