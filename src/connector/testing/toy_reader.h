// SPDX-License-Identifier: Apache-2.0
// connector/testing/toy_reader.h: one engine whose connector has the given parts and stores
// nothing; every step by hand.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "connector/connector.h"
#include "connector/testing/toy_engine.h"

namespace kvik::connector::testing {

class ToyReader {
 public:
  // `others` does what else there is to do; whether it did anything.
  ToyReader(ConnectorOptions options, ConnectorParts parts, ManualClock& clock,
            std::shared_ptr<const ProfileSet> profiles, std::function<bool()> others = nullptr)
      : clock_(clock), others_(std::move(others)) {
    options.io_threads = 0;
    options.compute.token_us = 1000;
    options.store_new_kv = false;
    parts.clock = &clock;
    parts.profiles = std::move(profiles);
    auto made = Connector::Create(std::move(options), std::move(parts));
    KVIK_CHECK(made.has_value(), "%s", made.error().message.c_str());
    connector_ = std::move(made).value();
    engine_ = std::make_unique<ToyEngine>(*connector_, clock, 64, 1);
  }
  ~ToyReader() { connector_->Detach(); }
  ToyReader(const ToyReader&) = delete;
  ToyReader& operator=(const ToyReader&) = delete;

  void Run(ToyRequest request) {
    engine_->Submit(std::move(request));
    Drain();
  }
  // Until every request is answered.
  void Drain() {
    for (int i = 0; i < 1000 && !engine_->idle(); ++i) {
      Settle();
      engine_->Step();
      Settle();
      clock_.Advance(1000);
    }
    EXPECT_TRUE(engine_->idle());
    Settle();
  }
  // What can be done without the engine.
  void Settle() {
    for (bool any = true; any;) {
      any = others_ != nullptr && others_();
      while (connector_->RunDue()) {
        any = true;
      }
    }
  }

  Connector& connector() { return *connector_; }
  ToyEngine& engine() { return *engine_; }

 private:
  ManualClock& clock_;
  const std::function<bool()> others_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<ToyEngine> engine_;
};

}  // namespace kvik::connector::testing
