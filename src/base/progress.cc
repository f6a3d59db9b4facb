// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/byte_size.h"

namespace kvik {
namespace {

constexpr int64_t kRedrawUs = 100'000;
constexpr int64_t kLineUs = 5'000'000;
constexpr size_t kBarCells = 24;

size_t TerminalColumns(std::FILE* stream) {
  winsize size{};
  if (::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return 80;
}

std::string Amount(uint64_t value, Progress::Unit unit) {
  return unit == Progress::Unit::kBytes ? FormatByteSize(value) : std::to_string(value);
}

}  // namespace

std::string FormatDuration(int64_t seconds) {
  seconds = std::max<int64_t>(seconds, 0);
  char text[40];
  if (seconds >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(seconds / 3600),
                  static_cast<long long>(seconds / 60 % 60), static_cast<long long>(seconds % 60));
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", static_cast<long long>(seconds / 60),
                  static_cast<long long>(seconds % 60));
  }
  return text;
}

Progress::Progress(const Clock& clock, Options options)
    : clock_(clock), options_(std::move(options)), start_us_(clock.NowMicros()) {
  if (options_.mode == Mode::kAuto) {
    options_.mode = ::isatty(::fileno(options_.stream)) == 1 ? Mode::kBar : Mode::kLines;
  }
  shown_us_ = start_us_;
  if (options_.mode == Mode::kBar) {
    DrawBar();
  } else if (options_.mode == Mode::kLines) {
    PrintLine();
  }
}

Progress::~Progress() { Finish(); }

void Progress::Update(uint64_t done) {
  done_ = done;
  if (options_.mode == Mode::kQuiet || finished_) {
    return;
  }
  const int64_t waited_us = clock_.NowMicros() - shown_us_;
  if (options_.mode == Mode::kBar) {
    if (waited_us >= kRedrawUs) {
      DrawBar();
    }
    return;
  }
  const bool another_tenth = done_ < options_.total && Tenths() > shown_tenths_;
  if (another_tenth || waited_us >= kLineUs) {
    PrintLine();
  }
}

void Progress::Finish() {
  if (finished_) {
    return;
  }
  finished_ = true;
  if (options_.mode == Mode::kBar) {
    DrawBar();
    std::fputc('\n', options_.stream);
    std::fflush(options_.stream);
  } else if (options_.mode == Mode::kLines) {
    PrintLine();
  }
}

int Progress::Tenths() const {
  return options_.total == 0 ? 0
                             : static_cast<int>(static_cast<double>(done_) * 10 /
                                                static_cast<double>(options_.total));
}

// "label: 3 MiB of 10 MiB (30%), 1 MiB/s, 0:07 left"
std::string Progress::Describe() const {
  const int64_t elapsed_us = clock_.NowMicros() - start_us_;
  std::string text = Amount(done_, options_.unit);
  if (options_.total > 0) {
    const double share = static_cast<double>(done_) / static_cast<double>(options_.total);
    char percent[24];
    std::snprintf(percent, sizeof percent, " (%d%%)", static_cast<int>(std::min(share, 1.0) * 100));
    text += " of " + Amount(options_.total, options_.unit) + percent;
  }
  if (elapsed_us <= 0 || done_ == 0) {
    return text;
  }
  const double per_second = static_cast<double>(done_) * 1e6 / static_cast<double>(elapsed_us);
  if (options_.unit == Unit::kBytes) {
    text += ", " + FormatByteSize(static_cast<uint64_t>(per_second)) + "/s";
  }
  if (finished_ || options_.total == 0 || done_ >= options_.total) {
    return text + ", " + FormatDuration(elapsed_us / 1'000'000);
  }
  const double left = static_cast<double>(options_.total - done_) / per_second;
  // A first byte after a long wait predicts years: show nothing rather than nonsense.
  if (left < 100.0 * 3600) {
    text += ", " + FormatDuration(std::llround(left)) + " left";
  }
  return text;
}

void Progress::DrawBar() {
  shown_us_ = clock_.NowMicros();
  std::string line = options_.label + " ";
  if (options_.total > 0) {
    const double share =
        std::min(1.0, static_cast<double>(done_) / static_cast<double>(options_.total));
    const auto filled = static_cast<size_t>(share * static_cast<double>(kBarCells));
    line.append("[").append(filled, '#').append(kBarCells - filled, '.').append("] ");
  }
  line += Describe();
  line.resize(std::min(line.size(), TerminalColumns(options_.stream) - 1));
  // Return to the start, write, erase what a longer line left behind.
  std::fprintf(options_.stream, "\r%s\x1b[K", line.c_str());
  std::fflush(options_.stream);
}

void Progress::PrintLine() {
  shown_us_ = clock_.NowMicros();
  shown_tenths_ = Tenths();
  std::fprintf(options_.stream, "%s: %s\n", options_.label.c_str(), Describe().c_str());
  std::fflush(options_.stream);
}

}  // namespace kvik
