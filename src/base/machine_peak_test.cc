// SPDX-License-Identifier: Apache-2.0
#include "base/machine_peak.h"

#include <gtest/gtest.h>

namespace kvik {
namespace {

// Every reading is 5 ms after the last, so measurements end at once and are exact.
class TickingClock final : public Clock {
 public:
  [[nodiscard]] int64_t NowMicros() const override { return now_us_ += 5000; }

 private:
  mutable int64_t now_us_ = 0;
};

TEST(MachinePeak, CountsOperationsOfAllThreads) {
  const TickingClock clock;
  for (Isa isa : SupportedIsas()) {
    for (ComputeType type : {ComputeType::kF32, ComputeType::kBf16}) {
      if (!ComputeSupported(isa, type)) {
        continue;
      }
      ThreadPool one(1);
      ThreadPool two(2);
      const double single = MeasurePeakGflops(clock, isa, type, one);
      EXPECT_GT(single, 0) << IsaName(isa);
      EXPECT_DOUBLE_EQ(MeasurePeakGflops(clock, isa, type, two), 2 * single) << IsaName(isa);
    }
  }
}

TEST(MachinePeak, CountsBytesRead) {
  const TickingClock clock;
  ThreadPool pool(1);
  const Result<ReadProbe> probe = ReadProbe::Create();
  ASSERT_TRUE(probe.has_value());
  EXPECT_DOUBLE_EQ(probe->PassGbps(clock, SupportedIsas().back(), pool), 268435456 / 5000.0 * 1e-3);
}

}  // namespace
}  // namespace kvik
