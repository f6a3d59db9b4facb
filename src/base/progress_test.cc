// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace kvik {
namespace {

// A stream in memory, and what was written to it.
class MemoryStream {
 public:
  MemoryStream() : stream_(::open_memstream(&text_, &size_)) {}
  ~MemoryStream() {
    std::fclose(stream_);
    std::free(text_);
  }
  MemoryStream(const MemoryStream&) = delete;
  MemoryStream& operator=(const MemoryStream&) = delete;
  std::FILE* get() { return stream_; }
  std::string Text() {
    std::fflush(stream_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* stream_;
};

TEST(Progress, LinesWhenNotATerminal) {
  ManualClock clock;
  MemoryStream out;
  Progress progress(
      clock,
      {.label = "pull", .total = 10ULL << 20, .unit = Progress::Unit::kBytes, .stream = out.get()});
  for (int i = 1; i <= 100; ++i) {  // 1 MiB a second, in steps of a tenth
    clock.Advance(100'000);
    progress.Update(static_cast<uint64_t>(i) * (10ULL << 20) / 100);
  }
  progress.Finish();
  progress.Finish();
  const std::string text = out.Text();
  EXPECT_EQ(text.find("pull: 0 B of 10 MiB (0%)\n"), 0U) << text;
  EXPECT_NE(text.find("(50%), 1 MiB/s, 0:05 left\n"), std::string::npos) << text;
  EXPECT_NE(text.find("pull: 10 MiB of 10 MiB (100%), 1 MiB/s, 0:10\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 11) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(Progress, BarRedrawsOneLineAtMostTenTimesASecond) {
  ManualClock clock;
  MemoryStream out;
  Progress progress(
      clock, {.label = "load", .total = 4, .mode = Progress::Mode::kBar, .stream = out.get()});
  for (int i = 0; i < 1000; ++i) {
    clock.Advance(1'000);
    progress.Update(2);
  }
  progress.Finish();
  const std::string text = out.Text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 12) << text;  // start, 10, end
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_NE(text.find("\rload [############............] 2 of 4 (50%), 0:00 left\x1b[K"),
            std::string::npos)
      << text;
}

TEST(Progress, AnUnknownTotalHasNoBarAndQuietPrintsNothing) {
  ManualClock clock;
  MemoryStream out;
  {
    Progress quiet(clock, {.label = "q", .mode = Progress::Mode::kQuiet, .stream = out.get()});
    quiet.Update(5);
  }
  EXPECT_EQ(out.Text(), "");
  {
    Progress lines(clock, {.label = "scan", .mode = Progress::Mode::kLines, .stream = out.get()});
    clock.Advance(6'000'000);
    lines.Update(7);
  }
  EXPECT_EQ(out.Text(), "scan: 0\nscan: 7, 0:06\nscan: 7, 0:06\n");
}

TEST(Progress, FormatsDurations) {
  EXPECT_EQ(FormatDuration(7), "0:07");
  EXPECT_EQ(FormatDuration(750), "12:30");
  EXPECT_EQ(FormatDuration(11045), "3:04:05");
  EXPECT_EQ(FormatDuration(-1), "0:00");
}

}  // namespace
}  // namespace kvik
