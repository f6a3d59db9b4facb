// SPDX-License-Identifier: Apache-2.0
// transfer/testing/manual_network.h: endpoints in one thread under one manual clock: what happens
// depends on the test alone, and waiting takes no time.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "transfer/endpoint.h"
#include "transfer/loopback.h"

namespace kvik::transfer::testing {

// Thread-compatible. Endpoints are closed with it.
class ManualNetwork {
 public:
  ManualNetwork() = default;
  ~ManualNetwork() { Close(); }
  ManualNetwork(const ManualNetwork&) = delete;
  ManualNetwork& operator=(const ManualNetwork&) = delete;

  ManualClock& clock() { return clock_; }

  Endpoint& Add(EndpointOptions options, StreamHandler* handler) {
    options.own_thread = false;
    auto endpoint = Endpoint::Create(std::move(options), clock_, handler);
    KVIK_CHECK(endpoint.has_value(), "%s", endpoint.error().message.c_str());
    endpoints_.push_back(std::move(*endpoint));
    return *endpoints_.back();
  }

  void Close() {
    for (const auto& endpoint : endpoints_) {
      endpoint->Close();
    }
  }

  // Until nobody can do anything at this time.
  void Settle() {
    for (bool any = true; any;) {
      any = false;
      for (const auto& endpoint : endpoints_) {
        any = endpoint->Poll() || any;
      }
    }
  }

  // Lets time pass from event to event, for `us` or until `done`; whether it was done.
  bool RunFor(int64_t us, const std::function<bool()>& done = nullptr) {
    const int64_t end_us = clock_.NowMicros() + us;
    for (;;) {
      Settle();
      if (done && done()) {
        return true;
      }
      int64_t next_us = end_us;
      for (const auto& endpoint : endpoints_) {
        next_us = std::min(next_us, endpoint->NextEventMicros());
      }
      if (clock_.NowMicros() >= end_us) {
        return false;
      }
      clock_.Set(std::max(next_us, clock_.NowMicros() + 1));
    }
  }

  using Wrap = std::function<std::unique_ptr<ByteChannel>(std::unique_ptr<ByteChannel>)>;
  // A connection over the loopback, each end through its wrapper, after its handshake.
  Result<std::shared_ptr<Connection>> Connect(Endpoint& from, Endpoint& to,
                                              const Wrap& near_wrap = nullptr,
                                              const Wrap& far_wrap = nullptr) {
    auto [near, far] = MakeLoopbackPair();
    to.Adopt(far_wrap ? far_wrap(std::move(far)) : std::move(far), false, kNever, nullptr);
    auto outcome = std::make_shared<std::optional<Result<std::shared_ptr<Connection>>>>();
    from.Adopt(near_wrap ? near_wrap(std::move(near)) : std::move(near), true, kNever,
               [outcome](Result<std::shared_ptr<Connection>> made) { *outcome = std::move(made); });
    RunFor(60'000'000, [&] { return outcome->has_value(); });
    if (!outcome->has_value()) {
      return Err(ErrorCode::kTimeout, "nothing came of a connection");
    }
    return std::move(**outcome);
  }

 private:
  ManualClock clock_{1'000'000};
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace kvik::transfer::testing
