// SPDX-License-Identifier: Apache-2.0
// app/registration.h: keeps a server known to a router.
#pragma once

#include <string>
#include <thread>

#include "base/bounded_queue.h"

namespace kvik::app {

class Registration {
 public:
  // Joins now and again and again, so that the router notices when this process is gone. `router`
  // and `url` are URLs, `role` as the router's POST /nodes takes it.
  Registration(std::string router, std::string url, std::string role, std::string api_key);
  // Leaves, unless Leave was called.
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Tells the router to send nothing more. Idempotent; not thread-safe.
  void Leave();

 private:
  void Join();

  const std::string router_;
  const std::string url_;
  const std::string role_;
  const std::string api_key_;
  BoundedQueue<bool> stop_{1};
  std::thread thread_;
};

}  // namespace kvik::app
