// SPDX-License-Identifier: Apache-2.0
#include "kv/hint_policy.h"

#include <utility>

namespace kvik::kv {
namespace {

constexpr int32_t kEndsPriority = 10;
constexpr int32_t kGoesOnPriority = 50;
constexpr uint64_t kGoesOnKind = 0;  // of durations

uint64_t SessionOf(const Access& access) {
  constexpr uint64_t kRequestBit = uint64_t{1} << 63;
  return access.request.session != 0 ? access.request.session
                                     : access.request.request | kRequestBit;
}

}  // namespace

HintPolicy::HintPolicy(std::unique_ptr<EvictionPolicy> inner, const PolicyOptions& options,
                       bool leave_tool_calls)
    : WithholdingPolicy(std::move(inner), options.num_blocks, kMaxPinnedShare),
      leave_tool_calls_(leave_tool_calls),
      uses_(static_cast<size_t>(options.num_blocks)),
      returns_(options.num_blocks) {}

void HintPolicy::Track(const TrackedBlock& block) {
  if (listening_) {
    uses_[static_cast<size_t>(block.block)] = Use{.shared = false};
    returns_.Track(block);
  }
  WithholdingPolicy::Track(block);
}

void HintPolicy::NoteUse(BlockId block, uint64_t session) {
  Use& use = uses_[static_cast<size_t>(block)];
  use.shared = use.shared || (use.session != 0 && use.session != session);
  use.session = session;
}

void HintPolicy::Hit(std::span<const BlockId> blocks, const Access& access) {
  listening_ = listening_ || access.request.will_continue.has_value();
  if (listening_) {
    const uint64_t session = SessionOf(access);
    for (const BlockId block : blocks) {
      NoteUse(block, session);
    }
    returns_.Hit(blocks, access);
  }
  WithholdingPolicy::Hit(blocks, access);
}

void HintPolicy::Missed(std::span<const uint64_t> contents, const Access& access) {
  if (listening_) {
    returns_.Missed(contents, access);
  }
  WithholdingPolicy::Missed(contents, access);
}

void HintPolicy::Forget(BlockId block) {
  returns_.Forgotten(block);
  WithholdingPolicy::Forget(block);
}

std::vector<BlockId> HintPolicy::SelectVictims(size_t count, int64_t now_us) {
  std::vector<BlockId> victims = WithholdingPolicy::SelectVictims(count, now_us);
  if (listening_) {
    returns_.Evicted(victims);
  }
  return victims;
}

void HintPolicy::Judge(std::span<const BlockId> blocks, const Access& access,
                       std::vector<Verdict>& verdicts) {
  listening_ = listening_ || access.request.will_continue.has_value();
  if (!listening_) {
    return;
  }
  const uint64_t session = SessionOf(access);
  for (const BlockId block : blocks) {
    NoteUse(block, session);
  }
  const RequestFacts& request = access.request;
  if (!request.will_continue.has_value() || blocks.empty()) {
    return;
  }
  if (!*request.will_continue) {
    for (const BlockId block : blocks) {
      const bool shared = uses_[static_cast<size_t>(block)].shared;
      verdicts.push_back(shared ? Verdict{} : Verdict{.priority = kEndsPriority});
    }
    return;
  }
  if (leave_tool_calls_ && request.tool_call) {
    return;
  }
  const int64_t wait_us = returns_.durations().ExpectedUs(kGoesOnKind);
  returns_.Depart(kGoesOnKind, blocks, access);
  verdicts.assign(
      blocks.size(),
      Verdict{.priority = kGoesOnPriority, .until_us = access.now_us + wait_us, .pin = true});
}

}  // namespace kvik::kv
