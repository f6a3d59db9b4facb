// SPDX-License-Identifier: Apache-2.0
// server/engine_client.h: what the server asks of an engine. EngineLoop behind it in production,
// a scripted one in tests.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "engine/engine_loop.h"
#include "engine/request.h"

namespace kvik::server {

// All methods are thread-safe; the contracts are EngineLoop's.
class EngineClient {
 public:
  virtual ~EngineClient() = default;
  virtual Result<engine::RequestId> Submit(engine::Request request, engine::OutputSink sink) = 0;
  virtual void Abort(engine::RequestId id) = 0;
  [[nodiscard]] virtual engine::EngineStats stats() const = 0;
  [[nodiscard]] virtual int32_t max_request_tokens() const = 0;
  // Takes no more requests.
  [[nodiscard]] virtual bool draining() const = 0;
  // Forgets all blocks that no request holds.
  virtual void ResetPrefixCache() = 0;
};

// `loop` must outlive the client.
std::unique_ptr<EngineClient> MakeEngineClient(engine::EngineLoop& loop);

}  // namespace kvik::server
