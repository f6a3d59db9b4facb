// SPDX-License-Identifier: Apache-2.0
#include "connector/connector.h"

#include <utility>

#include "base/check.h"
#include "connector/core.h"

namespace kvik::connector {
namespace {

class ConnectorImpl final : public Connector {
 public:
  explicit ConnectorImpl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~ConnectorImpl() override { core_->Shutdown(); }

  void Attach(const kv::ConnectorHost& host) override { core_->Attach(host); }
  void Detach() override { core_->Detach(); }
  void Ask(const kv::LoadRequest& request) override { core_->Ask(request); }
  std::vector<kv::BlockRange> Claim(kv::TicketId ticket, int32_t /*front_block*/,
                                    std::span<const kv::BlockRange> missing) override {
    return core_->Claim(ticket, missing);
  }
  void Load(kv::TicketId ticket, const kv::BlockRange& range,
            std::span<const BlockId> blocks) override {
    core_->Load(ticket, range, blocks);
  }
  int64_t Yield(kv::TicketId ticket, int32_t front_block) override {
    return core_->Yield(ticket, front_block);
  }
  std::shared_ptr<const kv::TransferReport> Close(kv::TicketId ticket,
                                                  const kv::TicketFate& fate) override {
    return core_->Close(ticket, fate);
  }
  bool Offer(const kv::SealedBlocks& sealed) override { return core_->Offer(sealed); }
  void NeedRoom(int32_t missing_blocks) override { core_->NeedRoom(missing_blocks); }
  std::vector<kv::ConnectorEvent> Poll() override { return core_->Poll(); }

  ConnectorCounters counters() const override { return core_->counters(); }
  std::vector<SourceReport> sources() const override { return core_->sources(); }
  std::vector<std::string> Decisions(size_t limit) const override {
    return core_->Decisions(limit);
  }
  void Flush() override { core_->Flush(); }
  bool RunDue() override { return core_->RunDue(); }

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace

Result<std::unique_ptr<Connector>> Connector::Create(ConnectorOptions options,
                                                     ConnectorParts parts) {
  KVIK_CHECK(parts.clock != nullptr && parts.profiles != nullptr);
  auto core = std::make_shared<Core>(std::move(options), parts);
  KVIK_TRY(core->Open(parts));
  return std::unique_ptr<Connector>(std::make_unique<ConnectorImpl>(std::move(core)));
}

Result<void> CheckQuality(const ProfileSet& profiles, const std::string& kv_profile,
                          const kv::MinQuality& quality) {
  if (kv_profile == kAdaptive) {
    return {};
  }
  const CodecProfile* const profile = profiles.Find(kv_profile);
  if (profile == nullptr) {
    return Err(ErrorCode::kInvalidInput, "no profile is called \"%s\"", kv_profile.c_str());
  }
  const kv::BlockQuality gives{profile->lossy ? kv::Fidelity::kLossy : kv::Fidelity::kExact,
                               profile->q};
  if (!quality.Accepts(gives)) {
    return Err(ErrorCode::kInvalidInput,
               "this server moves KV as \"%s\" (quality %.3f), the request asks for %s: set "
               "kvik.quality to what it may cost, or serve with --kv-profile adaptive",
               kv_profile.c_str(), static_cast<double>(profile->q),
               quality.allow_lossy ? "more" : "exact answers");
  }
  return {};
}

}  // namespace kvik::connector
