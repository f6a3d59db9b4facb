// SPDX-License-Identifier: Apache-2.0
// app/policy_state_file.h: the file that --policy-state names.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "engine/engine_loop.h"

namespace kvik::app {

// What policies take as their state. kNotFound: there is no file; kInvalidInput: the policy learns
// nothing, or the file is not one it can start from; kUnavailable: the file cannot be read. One
// line that says what to do about it.
Result<std::string> LoadPolicyState(const std::string& path, const std::string& policy,
                                    int32_t block_size_tokens);

// Writes what an engine's policy learned to the file: every five minutes, so that a crash loses
// little, and at the end. A file that cannot be written is a warning. Note is for the engine
// thread, the others are for the one that owns the object.
class PolicyStateSaver {
 public:
  // An empty path: nothing is ever written. `clock` must outlive the object.
  PolicyStateSaver(std::string path, int32_t block_size_tokens, const Clock& clock);

  // EngineLoopOptions::on_stop. Touches no file.
  void Note(engine::Engine& engine);
  // Waits for the engine's step when it is time. Cheap when it is not.
  void SaveIfDue(engine::EngineLoop& loop);
  // What was noted last; after EngineLoop::Join.
  void Save();

 private:
  std::string path_;
  int32_t block_size_tokens_;
  const Clock& clock_;
  int64_t asked_us_;  // when the engine was asked last
  std::string text_;
  std::string saved_text_;
};

}  // namespace kvik::app
