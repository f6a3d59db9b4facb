// SPDX-License-Identifier: Apache-2.0
#include "server/engine_client.h"

#include <utility>

namespace kvik::server {
namespace {

class LoopClient final : public EngineClient {
 public:
  explicit LoopClient(engine::EngineLoop& loop) : loop_(loop) {}

  Result<engine::RequestId> Submit(engine::Request request, engine::OutputSink sink) override {
    return loop_.Submit(std::move(request), std::move(sink));
  }
  void Abort(engine::RequestId id) override { loop_.Abort(id); }
  [[nodiscard]] engine::EngineStats stats() const override { return loop_.stats(); }
  [[nodiscard]] int32_t max_request_tokens() const override { return loop_.max_request_tokens(); }
  [[nodiscard]] bool draining() const override { return loop_.draining(); }
  void ResetPrefixCache() override {
    loop_.RunOnEngineThread([](engine::Engine& engine) { engine.cache().Clear(); });
  }

 private:
  engine::EngineLoop& loop_;
};

}  // namespace

std::unique_ptr<EngineClient> MakeEngineClient(engine::EngineLoop& loop) {
  return std::make_unique<LoopClient>(loop);
}

}  // namespace kvik::server
