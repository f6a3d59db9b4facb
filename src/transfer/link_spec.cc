// SPDX-License-Identifier: Apache-2.0
#include "transfer/link_spec.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>

#include "base/byte_size.h"
#include "base/check.h"
#include "transfer/byte_channel.h"

namespace kvik::transfer {
namespace {

struct Unit {
  const char* name;
  double factor;
};

constexpr Unit kRateUnits[] = {{"gbit", 1e9 / 8}, {"mbit", 1e6 / 8}, {"kbit", 1e3 / 8},
                               {"bit", 1.0 / 8},  {"gb", 1e9},       {"mb", 1e6},
                               {"kb", 1e3},       {"b", 1}};
constexpr Unit kTimeUnits[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}};
constexpr Unit kPlainUnits[] = {{"", 1}};

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
}

// A number with one of the units; the unit may be missing only for 0 (and for plain numbers).
Result<double> ParseNumber(std::string_view text, std::span<const Unit> units) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit = Lower(text.substr(static_cast<size_t>(end - text.data())));
  if (error == std::errc() && std::isfinite(value) && value >= 0) {
    if (value == 0 && unit.empty()) {
      return 0.0;
    }
    for (const Unit& candidate : units) {
      if (unit == candidate.name) {
        return value * candidate.factor;
      }
    }
  }
  std::string names;
  for (const Unit& candidate : units) {
    names += std::string(names.empty() ? "" : ", ") + candidate.name;
  }
  return Err(ErrorCode::kInvalidInput, "\"%s\" is not a number%s%s", std::string(text).c_str(),
             units.size() > 1 ? " with a unit: " : "", units.size() > 1 ? names.c_str() : "");
}

Result<LinkSchedule> ParseSchedule(std::string_view text, std::span<const Unit> units) {
  std::vector<std::pair<int64_t, double>> steps;
  while (true) {
    const size_t slash = text.find('/');
    const std::string_view step = text.substr(0, slash);
    const size_t at = step.find('@');
    KVIK_ASSIGN(const double value, ParseNumber(step.substr(0, at), units));
    double time_us = 0;
    if (at != std::string_view::npos) {
      KVIK_ASSIGN(time_us, ParseNumber(step.substr(at + 1), kTimeUnits));
    }
    if (!steps.empty() &&
        (at == std::string_view::npos || time_us <= static_cast<double>(steps.back().first))) {
      return Err(ErrorCode::kInvalidInput, "times of \"%s\" must ascend",
                 std::string(text).c_str());
    }
    if (time_us > 1e15) {
      return Err(ErrorCode::kInvalidInput, "\"%s\" is too late", std::string(step).c_str());
    }
    steps.emplace_back(static_cast<int64_t>(time_us), value);
    if (slash == std::string_view::npos) {
      break;
    }
    text.remove_prefix(slash + 1);
  }
  return LinkSchedule(std::move(steps));
}

Result<size_t> ParseSize(std::string_view text) {
  KVIK_ASSIGN(const uint64_t size_bytes, ParseByteSize(text));
  return static_cast<size_t>(size_bytes);
}

// The shortest text that parses to the same number.
std::string Number(double value, const char* unit) {
  char text[64];
  const auto [end, error] =
      std::to_chars(text, text + sizeof text, value, std::chars_format::fixed);
  return std::string(text, error == std::errc() ? end : text) + unit;
}

std::string Text(const LinkSchedule& schedule, double factor, const char* unit) {
  std::string text;
  for (const auto& [time_us, value] : schedule.steps()) {
    text.append(text.empty() ? "" : "/").append(Number(value * factor, unit));
    if (schedule.steps().size() > 1 || time_us != 0) {
      text.append("@").append(std::to_string(time_us)).append("us");
    }
  }
  return text;
}

}  // namespace

LinkSchedule::LinkSchedule(std::vector<std::pair<int64_t, double>> steps)
    : steps_(std::move(steps)) {
  KVIK_CHECK(!steps_.empty());
  for (size_t i = 1; i < steps_.size(); ++i) {
    KVIK_CHECK(steps_[i - 1].first < steps_[i].first);
  }
}

double LinkSchedule::At(int64_t time_us) const {
  const auto after = std::upper_bound(steps_.begin(), steps_.end(), time_us,
                                      [](int64_t t, const auto& step) { return t < step.first; });
  return after == steps_.begin() ? steps_.front().second : std::prev(after)->second;
}

int64_t LinkSchedule::NextChange(int64_t time_us) const {
  const auto after = std::upper_bound(steps_.begin(), steps_.end(), time_us,
                                      [](int64_t t, const auto& step) { return t < step.first; });
  return after == steps_.end() ? kNever : after->first;
}

Result<LinkSpec> LinkSpec::Parse(std::string_view text) {
  LinkSpec spec;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const size_t equals = part.find('=');
    const std::string key(part.substr(0, equals));
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    const auto parse = [&]() -> Result<void> {
      if (key == "rate") {
        KVIK_ASSIGN(spec.rate_bytes_per_second, ParseSchedule(value, kRateUnits));
      } else if (key == "delay") {
        KVIK_ASSIGN(spec.delay_us, ParseSchedule(value, kTimeUnits));
      } else if (key == "jitter") {
        KVIK_ASSIGN(spec.jitter_us, ParseSchedule(value, kTimeUnits));
      } else if (key == "loss") {
        KVIK_ASSIGN(spec.loss, ParseSchedule(value, kPlainUnits));
        for (const auto& [time_us, chance] : spec.loss.steps()) {
          if (chance > 1) {
            return Err(ErrorCode::kInvalidInput, "a chance is 0 to 1");
          }
        }
      } else if (key == "resets") {
        KVIK_ASSIGN(spec.resets, ParseSchedule(value, kPlainUnits));
      } else if (key == "rto") {
        KVIK_ASSIGN(const double timeout_us, ParseNumber(value, kTimeUnits));
        spec.rto_us = static_cast<int64_t>(std::min(timeout_us, 1e12));
      } else if (key == "burst") {
        KVIK_ASSIGN(spec.burst_bytes, ParseSize(value));
      } else if (key == "queue") {
        KVIK_ASSIGN(spec.queue_bytes, ParseSize(value));
      } else if (key == "packet") {
        KVIK_ASSIGN(spec.packet_bytes, ParseSize(value));
        if (spec.packet_bytes == 0) {
          return Err(ErrorCode::kInvalidInput, "a packet has at least a byte");
        }
      } else if (key == "seed") {
        KVIK_ASSIGN(const double number, ParseNumber(value, kPlainUnits));
        spec.seed = static_cast<uint64_t>(std::min(number, 1e15));
      } else {
        return Err(ErrorCode::kInvalidInput,
                   "unknown; known are rate, delay, jitter, loss, resets, rto, burst, queue, "
                   "packet and seed");
      }
      return {};
    };
    const Result<void> parsed = parse();
    if (!parsed) {
      return parsed.error().Wrap("link \"" + key + "\"");
    }
  }
  return spec;
}

std::string LinkSpec::ToString() const {
  std::string text;
  const auto add = [&text](const std::string& part) {
    text.append(text.empty() ? "" : ",").append(part);
  };
  const LinkSpec plain;
  if (rate_bytes_per_second != plain.rate_bytes_per_second) {
    add("rate=" + Text(rate_bytes_per_second, 8, "bit"));
  }
  if (delay_us != plain.delay_us) {
    add("delay=" + Text(delay_us, 1, "us"));
  }
  if (jitter_us != plain.jitter_us) {
    add("jitter=" + Text(jitter_us, 1, "us"));
  }
  if (loss != plain.loss) {
    add("loss=" + Text(loss, 1, ""));
  }
  if (resets != plain.resets) {
    add("resets=" + Text(resets, 1, ""));
  }
  if (rto_us != plain.rto_us) {
    add("rto=" + std::to_string(rto_us) + "us");
  }
  if (burst_bytes != plain.burst_bytes) {
    add("burst=" + std::to_string(burst_bytes) + "b");
  }
  if (queue_bytes != plain.queue_bytes) {
    add("queue=" + std::to_string(queue_bytes) + "b");
  }
  if (packet_bytes != plain.packet_bytes) {
    add("packet=" + std::to_string(packet_bytes) + "b");
  }
  if (seed != plain.seed) {
    add("seed=" + std::to_string(seed));
  }
  return text;
}

}  // namespace kvik::transfer
