// SPDX-License-Identifier: Apache-2.0
#include "connector/io_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "base/bounded_queue.h"

namespace kvik::connector {
namespace {

TEST(IoPoolTest, ByHandTasksRunInOrderAndTimedOnesWhenTheyAreDue) {
  ManualClock clock(100);
  IoPool io(0, clock);
  std::string ran;
  EXPECT_TRUE(io.PostAt(200, [&] { ran += 't'; }));
  EXPECT_TRUE(io.Post([&] { ran += '1'; }));
  EXPECT_TRUE(io.Post([&] { ran += '2'; }));
  while (io.RunDue()) {
  }
  EXPECT_EQ(ran, "12");
  clock.Set(200);
  EXPECT_TRUE(io.RunDue());
  EXPECT_FALSE(io.RunDue());
  EXPECT_EQ(ran, "12t");
}

TEST(IoPoolTest, StopRunsWhatWasPostedAndDropsWhatWasTimed) {
  ManualClock clock;
  for (const int threads : {0, 1, 3}) {
    IoPool io(threads, clock);
    std::atomic<int> ran = 0;
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(io.Post([&] { ++ran; }));
    }
    EXPECT_TRUE(io.PostAt(1'000'000, [&] { ran += 1000; }));
    io.Stop();
    EXPECT_EQ(ran, 100);
    EXPECT_FALSE(io.Post([&] { ++ran; }));
    EXPECT_FALSE(io.PostAt(0, [&] { ++ran; }));
  }
}

// More wake-ups than fit, tasks that post tasks, timers in between: nothing is slept over.
TEST(IoPoolTest, NothingIsLostBetweenThreads) {
  const SystemClock clock;
  constexpr int kTasks = 20'000;
  std::atomic<int> left = kTasks;
  BoundedQueue<int> done(1);
  IoPool io(2, clock, IoPriority::kYielding);  // ends first
  for (int i = 0; i < kTasks / 2; ++i) {
    const auto count = [&] {
      if (--left == 0) {
        done.Push(1);
      }
    };
    io.Post([&io, i, &clock, count] {
      if (i % 3 == 0) {
        io.PostAt(clock.NowMicros() + i % 50, count);
      } else {
        io.Post(count);
      }
      count();
    });
  }
  EXPECT_EQ(done.Pop(), 1);
}

}  // namespace
}  // namespace kvik::connector
