// SPDX-License-Identifier: Apache-2.0
#include "base/wake_fd.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <thread>

namespace kvik {
namespace {

bool Readable(const WakeFd& wake, int timeout_ms = 0) {
  pollfd waits{wake.fd(), POLLIN, 0};
  return poll(&waits, 1, timeout_ms) == 1 && (waits.revents & POLLIN) != 0;
}

TEST(WakeFd, IsReadableFromWakeUntilDrain) {
  const WakeFd wake;
  ASSERT_TRUE(wake.valid());
  EXPECT_FALSE(Readable(wake));
  wake.Wake();
  EXPECT_TRUE(Readable(wake));
  EXPECT_TRUE(Readable(wake)) << "looking takes nothing away";
  wake.Wake();
  wake.Drain();
  EXPECT_FALSE(Readable(wake)) << "several wake-ups are one";
  wake.Drain();
  wake.Wake();
  EXPECT_TRUE(Readable(wake));
}

TEST(WakeFd, WakesAThreadThatWaits) {
  const WakeFd wake;
  bool woken = false;
  std::thread waiter([&] { woken = Readable(wake, /*timeout_ms=*/60'000); });
  wake.Wake();
  waiter.join();
  EXPECT_TRUE(woken);
}

TEST(WakeFd, WithoutADescriptorItSaysSoAndDoesNothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const WakeFd wake;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(wake.valid());
  wake.Wake();
  wake.Drain();
}

}  // namespace
}  // namespace kvik
