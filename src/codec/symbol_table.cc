// SPDX-License-Identifier: Apache-2.0
#include "codec/symbol_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "base/check.h"

namespace kvik::codec {
namespace {

// One binary digit of the logarithm a squaring.
uint32_t Log2Of(uint32_t v) {
  const auto whole = static_cast<uint32_t>(std::bit_width(v) - 1);
  uint64_t mantissa = uint64_t{v} << (31 - whole);  // in [2^31, 2^32): 1.0 to 2.0
  uint32_t log = whole << 16;
  for (uint32_t digit = 1U << 15; digit != 0; digit >>= 1) {
    mantissa = (mantissa * mantissa) >> 31;
    if (mantissa >= uint64_t{1} << 32) {
      mantissa >>= 1;
      log |= digit;
    }
  }
  return log;
}

}  // namespace

uint32_t Log2Cost(uint32_t v) {
  static const std::array<uint32_t, 4097> kLogs = [] {
    std::array<uint32_t, 4097> logs{};
    for (uint32_t i = 1; i <= 4096; ++i) {
      logs[i] = Log2Of(i);
    }
    return logs;
  }();
  return kLogs[v];
}

uint64_t CodingCost(std::span<const uint32_t> counts, std::span<const uint16_t> freq,
                    uint32_t bits) {
  uint64_t cost = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] == 0) {
      continue;
    }
    if (s >= freq.size() || freq[s] == 0) {
      return kNoCost;
    }
    cost += uint64_t{counts[s]} * ((bits << 16) - Log2Cost(freq[s]));
  }
  return cost;
}

void NormalizeCounts(std::span<const uint64_t> counts, uint32_t bits, bool floor,
                     std::span<uint16_t> freq) {
  const size_t n = counts.size();
  KVIK_CHECK(n >= 1 && n <= 256 && freq.size() >= n && bits <= 12);
  // Symbols that count, in order: the others have 0 or 1 and keep it.
  std::array<uint64_t, 256> c;
  std::array<uint32_t, 256> f;
  std::array<uint8_t, 256> symbol;
  size_t present = 0;
  uint64_t total = 0;
  for (size_t s = 0; s < n; ++s) {
    if (counts[s] != 0) {
      c[present] = counts[s];
      symbol[present++] = static_cast<uint8_t>(s);
      total += counts[s];
    }
  }
  if (total == 0) {
    for (; present < n; ++present) {
      c[present] = 1;
      symbol[present] = static_cast<uint8_t>(present);
    }
    total = n;
  }
  const uint64_t whole = uint64_t{1} << bits;
  uint64_t sum = floor ? n - present : 0;
  for (size_t i = 0; i < present; ++i) {
    f[i] = std::max(static_cast<uint32_t>((2 * c[i] * whole + total) / (2 * total)), 1U);
    sum += f[i];
  }
  // One more or less where it gains most or costs least: d(c log f) is about c / (f + 1/2).
  for (; sum < whole; ++sum) {
    size_t best = 0;
    for (size_t i = 1; i < present; ++i) {
      if (c[i] * (2 * f[best] + 1) > c[best] * (2 * f[i] + 1)) {
        best = i;
      }
    }
    ++f[best];
  }
  for (; sum > whole; --sum) {
    size_t best = present;
    for (size_t i = 0; i < present; ++i) {
      if (f[i] >= 2 && (best == present || c[i] * (2 * f[best] - 1) < c[best] * (2 * f[i] - 1))) {
        best = i;
      }
    }
    KVIK_CHECK(best < present, "more symbols than frequencies");
    --f[best];
  }
  std::fill_n(freq.begin(), n, static_cast<uint16_t>(floor ? 1 : 0));
  for (size_t i = 0; i < present; ++i) {
    freq[symbol[i]] = static_cast<uint16_t>(f[i]);
  }
}

uint64_t CoarseCount(uint32_t code) {
  return code == 0 ? 0 : ((4 + (code - 1) % 4) << ((code - 1) / 4)) / 4;
}

uint32_t CoarseCode(uint64_t count, uint64_t total) {
  if (count == 0) {
    return 0;
  }
  const uint64_t scaled = (count << kCoarseScale) / total;
  if (scaled == 0) {
    return 1;
  }
  auto octave = static_cast<uint32_t>(std::bit_width(scaled) - 1);
  auto quarters = static_cast<uint32_t>((((scaled << 3) >> octave) + 1) / 2);  // 4..8
  if (quarters == 8) {
    ++octave;
    quarters = 4;
  }
  return 4 * octave + quarters - 4 + 1;
}

uint64_t EntropyCost(std::span<const uint32_t> counts) {
  // Of a number its 12 highest bits: the logarithm is low by less than 2^-11.
  const auto log2 = [](uint64_t v) {
    const int drop = std::max(static_cast<int>(std::bit_width(v)) - 12, 0);
    return Log2Cost(static_cast<uint32_t>(v >> drop)) + (static_cast<uint64_t>(drop) << 16);
  };
  uint64_t total = 0;
  for (const uint32_t count : counts) {
    total += count;
  }
  uint64_t cost = 0;
  const uint64_t log_total = total == 0 ? 0 : log2(total);
  for (const uint32_t count : counts) {
    cost += count == 0 ? 0 : count * (log_total - std::min(log_total, log2(count)));
  }
  return cost;
}

}  // namespace kvik::codec
