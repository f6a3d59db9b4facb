// SPDX-License-Identifier: Apache-2.0
#include "control/goodput.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace kvik::control {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kMegabyte = 1'000'000;

// A sample of `busy_us` at a rate.
void Send(Goodput& goodput, double bytes_per_s, int64_t busy_us, int64_t now_us) {
  goodput.Add(static_cast<uint64_t>(bytes_per_s * static_cast<double>(busy_us) / 1e6), busy_us,
              now_us);
}

TEST(Goodput, TheFirstSampleReplacesTheGuess) {
  Goodput goodput({.initial_bytes_per_s = 1e9});
  EXPECT_EQ(goodput.bytes_per_s(), 1e9);
  EXPECT_EQ(goodput.Evidence(0), 0);
  EXPECT_EQ(goodput.AgeUs(5), -1);
  goodput.Add(kMegabyte, 100'000, kSecond);
  EXPECT_NEAR(goodput.bytes_per_s(), 1e7, 1e-3);
  EXPECT_EQ(goodput.AgeUs(3 * kSecond), 2 * kSecond);
}

TEST(Goodput, AveragesTimePerByteNotBytesPerSecond) {
  Goodput goodput;
  Send(goodput, 1e7, 100'000, 0);
  Send(goodput, 1.5e7, 100'000, 0);
  EXPECT_NEAR(goodput.us_per_byte(), (0.1 + 1 / 15.0) / 2, 1e-6);
}

TEST(Goodput, NoiseIsAveragedAway) {
  Rng rng(1);
  Goodput goodput;
  double worst = 1;
  for (int i = 0; i < 400; ++i) {
    Send(goodput, 1e8 * (0.7 + 0.6 * rng.Uniform()), 20'000, i * 50'000);
    if (i > 50) {
      worst = std::max({worst, goodput.bytes_per_s() / 1e8, 1e8 / goodput.bytes_per_s()});
    }
  }
  EXPECT_LT(worst, 1.15);
}

TEST(Goodput, OneStallIsNotBelieved) {
  Goodput goodput;
  for (int i = 0; i < 20; ++i) {
    Send(goodput, 1e8, 20'000, i * 50'000);
  }
  goodput.Add(2 * kMegabyte, 220'000, kSecond);  // a retransmission timeout in it
  EXPECT_GT(goodput.bytes_per_s(), 0.35e8);
  Send(goodput, 1e8, 20'000, kSecond + 50'000);
  const double after = goodput.bytes_per_s();
  EXPECT_GT(after, 0.35e8);
}

TEST(Goodput, TwoSamplesThatAgreeReplaceAnEstimateThatIsFarOff) {
  for (const double factor : {0.05, 0.25, 4.0, 20.0}) {
    Goodput goodput;
    for (int i = 0; i < 50; ++i) {
      Send(goodput, 1e8, 20'000, i * 50'000);
    }
    Send(goodput, 1e8 * factor, 20'000, 3 * kSecond);
    Send(goodput, 1.1e8 * factor, 20'000, 3 * kSecond + 50'000);
    EXPECT_NEAR(goodput.bytes_per_s() / (1.05e8 * factor), 1, 0.06) << factor;
  }
}

TEST(Goodput, AFactorInOppositeDirectionsIsNoChange) {
  Goodput goodput;
  for (int i = 0; i < 50; ++i) {
    Send(goodput, 1e8, 20'000, i * 50'000);
  }
  for (int i = 0; i < 20; ++i) {
    Send(goodput, i % 2 == 0 ? 3e8 : 0.45e8, 2'000, 3 * kSecond + i * 50'000);
  }
  EXPECT_GT(goodput.bytes_per_s(), 0.6e8);
  EXPECT_LT(goodput.bytes_per_s(), 1.6e8);
}

TEST(Goodput, AfterAPauseASampleWeighsMore) {
  const auto moved = [](int64_t pause_us) {
    Goodput goodput;
    for (int i = 0; i < 50; ++i) {
      Send(goodput, 1e8, 20'000, i * 50'000);
    }
    Send(goodput, 1.5e8, 20'000, 50 * 50'000 + pause_us);
    return goodput.bytes_per_s();
  };
  EXPECT_LT(moved(0), 1.05e8);
  EXPECT_GT(moved(600 * kSecond), 1.45e8);
}

TEST(Goodput, AFloorOnlyRaises) {
  Goodput goodput;
  Send(goodput, 1e8, 20'000, 0);
  goodput.AddFloor(kMegabyte, 100'000, 1000);  // a slow encoder, not a slow link
  EXPECT_EQ(goodput.bytes_per_s(), 1e8);
  goodput.AddFloor(10 * kMegabyte, 50'000, 2000);
  EXPECT_GT(goodput.bytes_per_s(), 1.2e8);
}

TEST(Goodput, SmallMessagesSayNothing) {
  Goodput goodput({.initial_bytes_per_s = 1e9});
  goodput.Add(100, 10'000, 0);
  goodput.Add(kMegabyte, 0, 0);
  EXPECT_EQ(goodput.bytes_per_s(), 1e9);
}

TEST(Goodput, AsksForAProbeWhenItKnowsNothingNew) {
  Goodput goodput({.initial_bytes_per_s = 1e8});
  EXPECT_EQ(goodput.TakeProbe(0), 2 * kMegabyte);
  EXPECT_FALSE(goodput.TakeProbe(1000).has_value());        // it is on its way
  EXPECT_TRUE(goodput.TakeProbe(6 * kSecond).has_value());  // it never came back
  Send(goodput, 1e8, 20'000, 7 * kSecond);
  EXPECT_FALSE(goodput.TakeProbe(11 * kSecond).has_value());
  EXPECT_EQ(goodput.TakeProbe(12 * kSecond), 2 * kMegabyte);
}

// A link of so many bytes a second, whose frames of 256 KiB tell how fast it is from the second one
// on. The probes that were needed.
int ProbeOver(Goodput& goodput, double bytes_per_s, int64_t& now_us) {
  constexpr uint64_t kFrame = 256 << 10;
  int probes = 0;
  for (auto size = goodput.TakeProbe(now_us); size.has_value(); ++probes) {
    const auto us = [&](uint64_t bytes) {
      return static_cast<int64_t>(static_cast<double>(bytes) * 1e6 / bytes_per_s);
    };
    const uint64_t timed = *size - std::min(*size, kFrame);
    const int64_t elapsed_us = 200 + us(*size);
    now_us += elapsed_us;
    size = goodput.AddProbe({*size, elapsed_us, timed, us(timed)}, now_us);
  }
  return probes;
}

// A peer that stood still for a while had left an estimate with which nothing was worth loading, so
// that nothing was ever sent that would have corrected it, and probes for such a slow link were too
// small to be timed.
TEST(Goodput, OneRoundOfProbesFindsALinkThatIsFastAgain) {
  for (const double before : {1e4, 1e6, 1e8}) {
    for (const double after : {2e6, 2e7, 1e8, 1e9, 1e10}) {
      Goodput goodput;
      int64_t now_us = 0;
      for (int i = 0; i < 3; ++i) {
        Send(goodput, before, 400'000, now_us += 400'000);
      }
      now_us += 6 * kSecond;
      const int probes = ProbeOver(goodput, after, now_us);
      EXPECT_LE(probes, 6);
      const double least = after > before ? std::max(before, 0.3 * after) : 0.9 * after;
      EXPECT_GT(goodput.bytes_per_s(), least) << before << " -> " << after;
      EXPECT_LT(goodput.bytes_per_s(), 2.2 * std::max(before, after)) << before << " -> " << after;
    }
  }
}

TEST(Goodput, AProbeThatSaysWhatIsKnownIsOne) {
  for (const double rate : {4e6, 1e8, 1e10}) {
    Goodput goodput;
    Send(goodput, rate, 400'000, 0);
    int64_t now_us = 6 * kSecond;
    EXPECT_EQ(ProbeOver(goodput, rate, now_us), 1) << rate;
    EXPECT_NEAR(goodput.bytes_per_s() / rate, 1, 0.01);
  }
}

TEST(Goodput, AProbeThatDoesNotComeBackIsNotSentAgainAtOnce) {
  Goodput goodput;
  Send(goodput, 1e8, 400'000, 0);
  ASSERT_TRUE(goodput.TakeProbe(6 * kSecond).has_value());
  EXPECT_FALSE(goodput.AddProbe({}, 6 * kSecond + 500'000).has_value());
  EXPECT_NEAR(goodput.bytes_per_s(), 1e8, 1);
}

}  // namespace
}  // namespace kvik::control
