// SPDX-License-Identifier: Apache-2.0
#include "base/byte_size.h"

#include <cctype>
#include <cstdio>
#include <iterator>
#include <optional>

namespace kvik {
namespace {

struct Unit {
  std::string_view name;  // lower case
  uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"b", 1},
    {"k", 1ULL << 10},
    {"kib", 1ULL << 10},
    {"kb", 1'000},
    {"m", 1ULL << 20},
    {"mib", 1ULL << 20},
    {"mb", 1'000'000},
    {"g", 1ULL << 30},
    {"gib", 1ULL << 30},
    {"gb", 1'000'000'000},
    {"t", 1ULL << 40},
    {"tib", 1ULL << 40},
    {"tb", 1'000'000'000'000},
};

std::optional<uint64_t> UnitBytes(std::string_view text) {
  std::string lower;
  for (const char c : text) {
    lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  for (const Unit& unit : kUnits) {
    if (unit.name == lower) {
      return unit.bytes;
    }
  }
  return std::nullopt;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Result<uint64_t> ParseByteSize(std::string_view text) {
  const auto bad = [&](const char* why) {
    return Err(ErrorCode::kInvalidInput,
               "\"%.*s\" is not a size (%s); write it like 512MiB, 1.5GiB or 1048576",
               static_cast<int>(text.size()), text.data(), why);
  };
  // 128-bit integers: exact, and every overflow of 64 bits is seen.
  using Wide = unsigned __int128;
  constexpr Wide kLimit = ~uint64_t{0};
  size_t at = 0;
  Wide whole = 0;
  while (at < text.size() && IsDigit(text[at])) {
    whole = whole * 10 + static_cast<Wide>(text[at++] - '0');
    if (whole > kLimit) {
      return bad("too large");
    }
  }
  if (at == 0) {
    return bad("no number");
  }
  Wide fraction = 0;
  Wide scale = 1;
  if (at < text.size() && text[at] == '.') {
    ++at;
    const size_t first = at;
    for (; at < text.size() && IsDigit(text[at]); ++at) {
      if (scale < 1'000'000'000'000'000ULL) {  // further digits are below one byte of a TiB
        fraction = fraction * 10 + static_cast<Wide>(text[at] - '0');
        scale *= 10;
      }
    }
    if (at == first) {
      return bad("no digits after the point");
    }
  }
  while (at < text.size() && text[at] == ' ') {
    ++at;
  }
  const std::optional<uint64_t> unit = UnitBytes(text.substr(at));
  if (!unit) {
    return bad("unknown unit");
  }
  const Wide size_bytes = whole * *unit + fraction * *unit / scale;
  if (size_bytes > kLimit) {
    return bad("too large");
  }
  return static_cast<uint64_t>(size_bytes);
}

std::string FormatByteSize(uint64_t size_bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(size_bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kNames)) {  // would print as 1024.0
    value /= 1024;
    ++unit;
  }
  char text[40];
  std::snprintf(text, sizeof text, "%.1f", value);
  std::string formatted = text;
  if (formatted.ends_with(".0")) {
    formatted.resize(formatted.size() - 2);
  }
  return formatted.append(" ").append(kNames[unit]);
}

}  // namespace kvik
