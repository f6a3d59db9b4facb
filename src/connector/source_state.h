// SPDX-License-Identifier: Apache-2.0
// connector/source_state.h: what is known of a source besides what it has: how fast it is and what
// to ask it for.
//
// Thread-compatible, but for `source` itself.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connector/connector.h"
#include "connector/profile_set.h"
#include "connector/source.h"
#include "control/arm_table.h"
#include "control/controller.h"
#include "control/goodput.h"

namespace kvik::connector {

// What an arm costs a request, as believed now.
struct ArmPrice {
  int32_t arm = -1;       // -1: not an arm of the table
  double wire_ratio = 1;  // wire bytes for a byte of KV
  double decode_us = 0;
};

class SourceState {
 public:
  struct Setup {
    std::shared_ptr<ObjectSource> source;
    control::GoodputOptions goodput;
    control::ControllerOptions controller;  // complete but for the form
    int32_t decode_threads = 1;
  };
  SourceState(Setup setup, std::shared_ptr<const ProfileSet> profiles,
              control::MachineSpeeds receiver);

  [[nodiscard]] ObjectSource& source() const { return *setup_.source; }
  [[nodiscard]] const std::shared_ptr<ObjectSource>& shared() const { return setup_.source; }

  // For KV that the other side encodes (`live`) or that is encoded already: what there is to choose
  // from and its costs differ. Made when it can be, and anew once the sender's speeds are known.
  // Null: nothing has speeds.
  control::Controller* Controller(bool live);
  // Null: never made, or replaced since `generation`.
  [[nodiscard]] control::Controller* Existing(bool live, int generation) const;
  [[nodiscard]] int generation(bool live) const { return slot(live).generation; }

  // REQUIRES: there is a controller.
  [[nodiscard]] const CodecProfile* ProfileOf(bool live, int32_t arm) const;
  [[nodiscard]] std::optional<int32_t> ArmOf(bool live, const CodecProfile& profile) const;
  // Of `raw_bytes` in a transfer of `tokens`.
  [[nodiscard]] ArmPrice Price(bool live, const CodecProfile& profile, int64_t tokens,
                               double raw_bytes) const;

  // So many bytes came for `raw_bytes` of KV. What no library has measured is priced by what came.
  void Learn(const CodecProfile& profile, uint64_t wire_bytes, double raw_bytes);

  control::Goodput goodput;
  SourceReport report;

 private:
  const Setup setup_;
  const std::shared_ptr<const ProfileSet> profiles_;
  const control::MachineSpeeds receiver_;
  struct Slot {
    std::unique_ptr<control::ArmTable> table;
    std::unique_ptr<control::Controller> controller;  // refers to the table
    int generation = 0;
    bool sender_known = false;
  };
  [[nodiscard]] const Slot& slot(bool live) const { return slots_[live ? 1 : 0]; }
  Slot slots_[2];
  struct Came {
    double wire_bytes = 0;
    double raw_bytes = 0;
  };
  std::map<uint64_t, Came> came_;  // by profile hash, of those that are no arms
};

}  // namespace kvik::connector
