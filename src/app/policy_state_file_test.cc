// SPDX-License-Identifier: Apache-2.0
#include "app/policy_state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "app/text_file.h"
#include "base/testing/temp_path.h"
#include "engine/testing/fake_executor.h"
#include "kv/policy_state.h"

namespace kvik::app {
namespace {

using ::testing::HasSubstr;

std::string FreshPath() {
  std::string path = kvik::testing::TempPath("state");
  std::filesystem::remove(path);
  return path;
}

TEST(PolicyStateFile, IsReadBackAndSaysWhatToDoWhenItIsNone) {
  const std::string path = FreshPath();
  EXPECT_EQ(LoadPolicyState(path, "hazard", 16).error().code, ErrorCode::kNotFound);
  const auto policy = kv::MakeEvictionPolicy({.name = "hazard", .num_blocks = 9}).value();
  ASSERT_TRUE(ReplaceTextFile(path, kv::WritePolicyState(*policy, 16)).has_value());
  EXPECT_EQ(LoadPolicyState(path, "hazard", 16).value(), policy->SaveState());

  const Error foreign = LoadPolicyState(path, "asym", 16).error();
  EXPECT_EQ(foreign.code, ErrorCode::kInvalidInput);
  EXPECT_EQ(foreign.message,
            path +
                " was learned by policy hazard, not by asym; give --policy-state another file, "
                "or remove this one to learn anew");
  const Error useless = LoadPolicyState(path, "lru", 16).error();
  EXPECT_EQ(useless.code, ErrorCode::kInvalidInput);
  EXPECT_THAT(useless.message, HasSubstr("leave --policy-state out"));
}

TEST(PolicyStateSaver, WritesNowAndThenAndAtTheEnd) {
  const std::string path = FreshPath();
  ManualClock clock;
  engine::FakeExecutor executor(engine::FakeExecutorOptions{.num_blocks = 20});
  engine::EngineOptions engine_options;
  engine_options.cache.num_blocks = 20;
  engine_options.cache.policy.name = "hazard";
  PolicyStateSaver saver(path, 16, clock);
  engine::EngineLoopOptions loop_options;
  loop_options.on_stop = [&](engine::Engine& engine) { saver.Note(engine); };
  engine::EngineLoop loop(engine::Engine::Create(engine_options, executor, clock).value(),
                          loop_options);
  const auto use = [&] {  // so that something was learned
    ASSERT_TRUE(loop.RunOnEngineThread([&](engine::Engine& engine) {
      for (int turn = 0; turn < 2; ++turn) {
        engine::Request request;
        request.prompt.assign(100, 1);
        ASSERT_TRUE(engine.Submit(std::move(request), [](auto) {}));
        while (engine.HasWork()) {
          engine.Step();
        }
        clock.Advance(1'000'000);
      }
    }));
  };
  use();
  saver.SaveIfDue(loop);
  EXPECT_FALSE(std::filesystem::exists(path));
  clock.Advance(300'000'000);
  saver.SaveIfDue(loop);
  const std::string first = LoadPolicyState(path, "hazard", 16).value();
  use();
  saver.SaveIfDue(loop);
  EXPECT_EQ(LoadPolicyState(path, "hazard", 16).value(), first);
  loop.Drain();
  loop.Join();
  saver.Save();
  EXPECT_NE(LoadPolicyState(path, "hazard", 16).value(), first);
}

}  // namespace
}  // namespace kvik::app
