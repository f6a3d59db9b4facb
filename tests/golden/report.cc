// SPDX-License-Identifier: Apache-2.0
#include "golden/report.h"

#include <cinttypes>
#include <cstdio>

namespace kvik::golden {
namespace {

void Line(const char* verdict, const std::string& check, const std::string& detail) {
  std::printf("%-4s %s: %s\n", verdict, check.c_str(), detail.c_str());
  std::fflush(stdout);
}

}  // namespace

void Report::Pass(const std::string& check, const std::string& detail) {
  Line("ok", check, detail);
}

void Report::Fail(const std::string& check, const std::string& detail) {
  ++failures_;
  Line("FAIL", check, detail);
}

void Report::Skip(const std::string& check, const std::string& reason) {
  ++skipped_checks_;
  Line("skip", check, reason);
}

void Report::Note(const std::string& check, const std::string& detail) {
  Line("note", check, detail);
}

void Report::PrintSummary() const {
  std::printf("golden: strings %" PRId64 " compared %" PRId64 " skipped, templates %" PRId64
              " compared %" PRId64 " skipped, positions %" PRId64 " compared %" PRId64
              " skipped, checks skipped %d, failed %d\n",
              strings.compared, strings.skipped, templates.compared, templates.skipped,
              positions.compared, positions.skipped, skipped_checks_, failures_);
}

}  // namespace kvik::golden
