// SPDX-License-Identifier: Apache-2.0
#include "server/sse.h"

#include <utility>

namespace kvik::server {

std::string SseEvent(std::string_view data) {
  std::string event = "data: ";
  event += data;
  event += "\n\n";
  return event;
}

std::vector<std::string> SseParser::Push(std::string_view bytes) {
  std::vector<std::string> events;
  for (const char c : bytes) {
    if (c != '\n') {
      line_ += c;
      continue;
    }
    if (!line_.empty() && line_.back() == '\r') {
      line_.pop_back();
    }
    if (line_.empty()) {
      if (has_data_) {
        events.push_back(std::exchange(data_, {}));
        has_data_ = false;
      }
    } else if (line_.compare(0, 5, "data:") == 0) {
      if (has_data_) {
        data_ += '\n';
      }
      data_.append(line_, line_.size() > 5 && line_[5] == ' ' ? 6 : 5);
      has_data_ = true;
    }
    line_.clear();
  }
  return events;
}

}  // namespace kvik::server
