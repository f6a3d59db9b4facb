// SPDX-License-Identifier: Apache-2.0
#include "app/registration.h"

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/result.h"
#include "server/http.h"

namespace kvik::app {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kInterval{2};
constexpr int64_t kLeaseMs = 10'000;
constexpr int kTimeoutS = 2;

Result<void> Tell(const std::string& router, const std::string& api_key, const char* method,
                  const Json& body) {
  KVIK_ASSIGN(const std::unique_ptr<server::HttpClient> client,
              server::HttpClient::Create(router, api_key, kTimeoutS, kTimeoutS));
  server::HttpExchange exchange;
  exchange.method = method;
  exchange.path = "/nodes";
  exchange.body = body.dump();
  std::string reply;
  exchange.on_bytes = [&](std::string_view bytes) {
    reply += bytes;
    return reply.size() < 65536;
  };
  KVIK_ASSIGN(const int status, client->Send(exchange));
  if (status != 200) {
    return Err(ErrorCode::kUnavailable, "%s/nodes says %d: %s", router.c_str(), status,
               reply.substr(0, 200).c_str());
  }
  return {};
}

}  // namespace

Registration::Registration(std::string router, std::string url, std::string role,
                           std::string api_key)
    : router_(std::move(router)),
      url_(std::move(url)),
      role_(std::move(role)),
      api_key_(std::move(api_key)),
      thread_([this] { Join(); }) {}

Registration::~Registration() { Leave(); }

void Registration::Leave() {
  if (!thread_.joinable()) {
    return;
  }
  stop_.Close();
  thread_.join();
  if (const Result<void> left = Tell(router_, api_key_, "DELETE", Json{{"url", url_}}); !left) {
    LogWarning("cannot leave the router: %s", left.error().message.c_str());
  }
}

void Registration::Join() {
  const Json body = {{"url", url_}, {"role", role_}, {"lease_ms", kLeaseMs}};
  std::optional<bool> known;  // what was last said
  while (!stop_.closed()) {
    const Result<void> joined = Tell(router_, api_key_, "POST", body);
    if (known != joined.has_value()) {
      known = joined.has_value();
      if (joined) {
        LogInfo("known to the router at %s", router_.c_str());
      } else {
        LogWarning("not known to the router: %s", joined.error().message.c_str());
      }
    }
    stop_.PopFor(kInterval);
  }
}

}  // namespace kvik::app
