// SPDX-License-Identifier: Apache-2.0
#include "app/kv_events.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "base/host_port.h"
#include "base/log.h"
#include "kv/block_hasher.h"
#include "store/object.h"

namespace kvik::app {
namespace {

double UnixSeconds() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

Result<events::PublisherConfig> EventsAt(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.empty() ? nullptr : host.c_str(), "0", &hints, &found);
  if (failed != 0) {
    return Err(ErrorCode::kInvalidInput, "%s has no address: %s", host.c_str(),
               gai_strerror(failed));
  }
  std::array<char, NI_MAXHOST> text{};
  const int unnamed = getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(),
                                  nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  if (unnamed != 0) {
    return Err(ErrorCode::kInvalidInput, "%s: %s", host.c_str(), gai_strerror(unnamed));
  }
  events::PublisherConfig config;
  config.enable_kv_cache_events = true;
  config.endpoint = "tcp://" + JoinHostPort(text.data(), "*");
  config.replay_endpoint = config.endpoint;
  return config;
}

// Events of a store in the terms of those of a cache.
class KvEvents::StoreSink final : public store::EventSink {
 public:
  StoreSink(const Options& options, std::shared_ptr<events::Publisher> publisher)
      : accepted_(options.accepted), numerics_(options.numerics), publisher_(std::move(publisher)) {
    for (const kv::HashAlgorithm algorithm :
         {kv::HashAlgorithm::kXxh3, kv::HashAlgorithm::kSha256Cbor}) {
      kv::HashOptions hash;
      hash.algorithm = algorithm;
      roots_.push_back(kv::BlockHasher(hash).root());
    }
  }

  // Of everybody's objects only: nobody but its tenant finds another one.
  [[nodiscard]] bool Concerns(const store::ObjectMeta& meta) const override {
    if (meta.key.tenant != store::TenantId::FromName("")) {
      return false;
    }
    if (!accepted_) {
      return true;
    }
    kv::BlockQuality quality = meta.quality;
    if (!(meta.key.block.numerics == numerics_)) {
      quality.fidelity = kv::Fidelity::kLossy;
    }
    return accepted_->Accepts(quality);
  }

  void OnEvent(kv::BlockEvent event) override {
    if (event.parent && std::find(roots_.begin(), roots_.end(), *event.parent) != roots_.end()) {
      event.parent.reset();
    }
    publisher_->Publish({std::move(event)});
  }

 private:
  const std::optional<kv::MinQuality> accepted_;
  const kv::NumericsTag numerics_;
  std::vector<kv::BlockHash> roots_;
  const std::shared_ptr<events::Publisher> publisher_;
};

Result<std::unique_ptr<KvEvents>> KvEvents::Create(Options options) {
  events::PublisherOptions publisher_options;
  publisher_options.config = options.config;
  publisher_options.unix_seconds = UnixSeconds;
  publisher_options.block_size_tokens = options.block_size_tokens;
  KVIK_ASSIGN(std::unique_ptr<events::Publisher> publisher,
              events::Publisher::Create(std::move(publisher_options)));
  std::unique_ptr<KvEvents> made(new KvEvents(options, std::move(publisher)));
  const events::Publisher& bound = *made->publisher_;
  LogInfo("KV events at %s%s%s",
          bound.endpoint() ? bound.endpoint()->c_str() : options.config.endpoint.c_str(),
          bound.replay_endpoint() ? ", again at " : "",
          bound.replay_endpoint() ? bound.replay_endpoint()->c_str() : "");
  return made;
}

KvEvents::KvEvents(const Options& options, std::unique_ptr<events::Publisher> publisher)
    : topic_(options.config.topic),
      publisher_(std::move(publisher)),
      sink_(std::make_shared<StoreSink>(options, publisher_)) {}

std::optional<server::EventsAddress> KvEvents::address() const {
  if (!publisher_->endpoint()) {
    return std::nullopt;
  }
  return server::EventsAddress{*publisher_->endpoint(), publisher_->replay_endpoint().value_or(""),
                               topic_};
}

}  // namespace kvik::app
