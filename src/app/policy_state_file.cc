// SPDX-License-Identifier: Apache-2.0
#include "app/policy_state_file.h"

#include <utility>

#include "app/text_file.h"
#include "base/log.h"
#include "kv/policy_state.h"

namespace kvik::app {
namespace {

constexpr int64_t kSaveEveryUs = 300'000'000;

}  // namespace

Result<std::string> LoadPolicyState(const std::string& path, const std::string& policy,
                                    int32_t block_size_tokens) {
  if (!kv::PolicyLearns(policy)) {
    return Err(ErrorCode::kInvalidInput,
               "policy %s learns nothing that could be kept in %s: leave --policy-state out",
               policy.c_str(), path.c_str());
  }
  KVIK_ASSIGN(const std::string text, ReadTextFile(path));
  Result<std::string> state = kv::ReadPolicyState(text, policy, block_size_tokens);
  if (!state) {
    return Err(ErrorCode::kInvalidInput,
               "%s %s; give --policy-state another file, or remove this one to learn anew",
               path.c_str(), state.error().message.c_str());
  }
  return state;
}

PolicyStateSaver::PolicyStateSaver(std::string path, int32_t block_size_tokens, const Clock& clock)
    : path_(std::move(path)),
      block_size_tokens_(block_size_tokens),
      clock_(clock),
      asked_us_(clock.NowMicros()) {}

void PolicyStateSaver::Note(engine::Engine& engine) {
  if (!path_.empty()) {
    text_ = kv::WritePolicyState(engine.cache().policy(), block_size_tokens_);
  }
}

void PolicyStateSaver::SaveIfDue(engine::EngineLoop& loop) {
  if (path_.empty() || clock_.NowMicros() - asked_us_ < kSaveEveryUs) {
    return;
  }
  asked_us_ = clock_.NowMicros();
  if (loop.RunOnEngineThread([this](engine::Engine& engine) { Note(engine); })) {
    Save();
  }
}

void PolicyStateSaver::Save() {
  if (text_ == saved_text_) {
    return;
  }
  if (auto saved = ReplaceTextFile(path_, text_); !saved.has_value()) {
    LogWarning("what the policy learned is not kept: %s", saved.error().message.c_str());
    return;
  }
  saved_text_ = text_;
}

}  // namespace kvik::app
