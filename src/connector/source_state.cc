// SPDX-License-Identifier: Apache-2.0
#include "connector/source_state.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace kvik::connector {
namespace {

// Of a lossless encoding that no library has measured: what such coders reach on KV.
constexpr double kLosslessRatio = 1.35;
// Of a profile without measured speeds.
constexpr double kGuessedBytesPerS = 5e8;

}  // namespace

SourceState::SourceState(Setup setup, std::shared_ptr<const ProfileSet> profiles,
                         control::MachineSpeeds receiver)
    : goodput(setup.goodput),
      setup_(std::move(setup)),
      profiles_(std::move(profiles)),
      receiver_(std::move(receiver)) {
  report.name = setup_.source->name();
}

control::Controller* SourceState::Controller(bool live) {
  Slot& slot = slots_[live ? 1 : 0];
  std::optional<control::MachineSpeeds> sender;
  if (live && !slot.sender_known) {
    sender = setup_.source->sender_speeds();
  }
  if (slot.controller != nullptr && !sender.has_value()) {
    return slot.controller.get();
  }
  slot.sender_known = sender.has_value();

  control::ArmTableOptions options;
  const CodecProfile& lossless = profiles_->lossless();
  const codec::ProfileLibrary* const library = profiles_->library();
  if (library == nullptr || library->FindHash(lossless.hash) == nullptr) {
    options.exact_profiles.push_back({lossless.name, lossless.hash, kLosslessRatio});
  }
  auto table = control::ArmTable::Build(library, sender.has_value() ? *sender : receiver_,
                                        receiver_, options);
  if (!table.has_value()) {
    LogWarning("%s: no choice of profiles: %s", report.name.c_str(), table.error().message.c_str());
    return slot.controller.get();
  }
  slot.controller = nullptr;
  slot.table = std::make_unique<control::ArmTable>(std::move(table).value());
  control::ControllerOptions with_form = setup_.controller;
  with_form.form = live ? control::Form::kHandOver : control::Form::kPoolRead;
  slot.controller = std::make_unique<control::Controller>(*slot.table, with_form);
  ++slot.generation;
  return slot.controller.get();
}

control::Controller* SourceState::Existing(bool live, int generation) const {
  return slot(live).generation == generation ? slot(live).controller.get() : nullptr;
}

const CodecProfile* SourceState::ProfileOf(bool live, int32_t arm) const {
  const uint64_t hash = slot(live).table->arm(arm).profile_hash;
  return hash == control::kRawHash ? &profiles_->raw() : profiles_->FindHash(hash);
}

std::optional<int32_t> SourceState::ArmOf(bool live, const CodecProfile& profile) const {
  if (slot(live).table == nullptr) {
    return std::nullopt;
  }
  if (&profile == &profiles_->raw()) {
    return control::kRawArm;
  }
  return slot(live).table->FindHash(profile.hash);
}

void SourceState::Learn(const CodecProfile& profile, uint64_t wire_bytes, double raw_bytes) {
  if (raw_bytes > 0 && !ArmOf(true, profile).has_value() && !ArmOf(false, profile).has_value()) {
    Came& came = came_[profile.hash];
    came.wire_bytes += static_cast<double>(wire_bytes);
    came.raw_bytes += raw_bytes;
  }
}

ArmPrice SourceState::Price(bool live, const CodecProfile& profile, int64_t tokens,
                            double raw_bytes) const {
  ArmPrice price;
  const auto arm = ArmOf(live, profile);
  if (!arm.has_value()) {
    price.decode_us = raw_bytes * control::MicrosPerByte(kGuessedBytesPerS);
    if (const auto came = came_.find(profile.hash); came != came_.end()) {
      price.wire_ratio = came->second.wire_bytes / came->second.raw_bytes;
    }
    return price;
  }
  price.arm = *arm;
  const size_t length = control::LengthBucket(std::max<int64_t>(tokens, 1));
  const control::ArmCost& cost = slot(live).table->arm(*arm).cost[length];
  price.wire_ratio = cost.wire_bytes;
  const control::Controller& controller = *slot(live).controller;
  const double decode_us =
      cost.decode_frame_us * controller.FramesOf(std::max<int64_t>(tokens, 1)) +
      cost.decode_us_per_byte * raw_bytes;
  price.decode_us = decode_us * controller.Belief(*arm, length).decode_factor;
  return price;
}

}  // namespace kvik::connector
