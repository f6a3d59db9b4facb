// SPDX-License-Identifier: Apache-2.0
#include "codec/rans_models.h"

#include <algorithm>
#include <array>

#include "codec/symbol_table.h"

namespace kvik::codec {
namespace {
constexpr int kNarrow = 16;  // models up to here are the fastest

// Counts by index of a window.
template <typename Count>
void CountsInWindow(std::span<const Count> counts, const RansWindow& window,
                    std::span<uint64_t> out) {
  uint64_t inside = 0;
  const int at = window.escape ? 1 : 0;
  for (int i = 0; i < window.width; ++i) {
    const uint64_t count = counts[static_cast<size_t>(window.first + i)];
    out[static_cast<size_t>(at + i)] = count;
    inside += count;
  }
  if (window.escape) {
    uint64_t all = 0;
    for (const Count count : counts) {
      all += count;
    }
    // An index 0 that never comes still has a frequency: kernels want one.
    out[0] = std::max<uint64_t>(all - inside, 1);
  }
}

// The window of at most `width` symbols that holds most.
template <typename Count>
RansWindow BestWindow(std::span<const Count> counts, int width) {
  const int alphabet = static_cast<int>(counts.size());
  width = std::min(width, alphabet);
  uint64_t inside = 0;
  for (int s = 0; s < width; ++s) {
    inside += counts[static_cast<size_t>(s)];
  }
  uint64_t most = inside;
  int first = 0;
  for (int s = 1; s + width <= alphabet; ++s) {
    inside += counts[static_cast<size_t>(s + width - 1)];
    inside -= counts[static_cast<size_t>(s - 1)];
    if (inside > most) {
      most = inside;
      first = s;
    }
  }
  return {first, width, true};
}

// The narrow window unless the wide one has 16 times fewer symbols outside and they matter.
template <typename Count>
RansWindow FastWindow(std::span<const Count> counts) {
  const RansWindow narrow = BestWindow(counts, kNarrow - 1);
  uint64_t all = 0;
  uint64_t inside = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    all += counts[s];
    const int index = static_cast<int>(s) - narrow.first;
    inside += index >= 0 && index < narrow.width ? uint64_t{counts[s]} : 0;
  }
  return (all - inside) * 512 <= all ? narrow : BestWindow(counts, kRans8Symbols - 1);
}

// REQUIRES: values [256 or fewer] has `alphabet` ones.
StaticModels MakeStatic(std::span<const float> values, int alphabet) {
  StaticModels models;
  const auto n = static_cast<size_t>(alphabet);
  std::array<uint64_t, 256> counts{};
  for (size_t s = 0; s < n; ++s) {
    // A finite half, so a whole number of 2^-24 and below 2^40 of them.
    counts[s] = values[s] > 0 ? static_cast<uint64_t>(values[s] * 0x1.0p24F) : 0;
  }
  const std::span<const uint64_t> of(counts.data(), n);
  models.freq12.resize(n);
  NormalizeCounts(of, kRans12Bits, true, models.freq12);
  if (alphabet <= kRans8Symbols) {
    models.window = {0, alphabet, false};
    models.freq8.resize(n);
    NormalizeCounts(of, kRans8Bits, true, models.freq8);
  } else {
    models.window = FastWindow(of);
    std::array<uint64_t, kRans8Symbols> inside{};
    const auto size = static_cast<size_t>(models.window.size());
    CountsInWindow(of, models.window, inside);
    models.freq8.resize(size);
    NormalizeCounts(std::span(inside).first(size), kRans8Bits, true, models.freq8);
  }
  models.model8 = MakeRans8Model(models.window, models.freq8);
  MakeRans12Model({0, alphabet, false}, models.freq12, alphabet, &models.model12);
  return models;
}

}  // namespace

// --- Models --------------------------------------------------------------------------------------

Rans8Model MakeRans8Model(const RansWindow& window, std::span<const uint16_t> freq) {
  Rans8Model model;
  model.base = static_cast<uint8_t>(window.first - (window.escape ? 1 : 0));
  model.size = static_cast<uint8_t>(window.size());
  uint32_t start = 0;
  for (int i = 0; i < window.size(); ++i) {
    model.freq[i] = static_cast<uint8_t>(freq[static_cast<size_t>(i)]);
    model.start[i] = static_cast<uint8_t>(start);
    start += freq[static_cast<size_t>(i)];
  }
  return model;
}

void MakeRans12Model(const RansWindow& window, std::span<const uint16_t> freq, int alphabet,
                     Rans12Model* model) {
  *model = Rans12Model{};
  model->size = static_cast<uint32_t>(alphabet);
  uint32_t start = 0;
  for (int s = 0; s < alphabet; ++s) {
    const int index = s - window.first;
    const uint16_t f =
        index >= 0 && index < window.width ? freq[static_cast<size_t>(index)] : uint16_t{0};
    model->freq[s] = f;
    model->start[s] = static_cast<uint16_t>(start);
    start += f;
  }
}

// --- Windows -------------------------------------------------------------------------------------

void WindowCounts(std::span<const uint32_t> counts, const RansWindow& window,
                  std::span<uint64_t> out) {
  CountsInWindow(counts, window, out);
}

RansWindow ChooseWindow(std::span<const uint32_t> counts) { return FastWindow(counts); }

// --- Calibrated tables ---------------------------------------------------------------------------

StaticTables::StaticTables(const SideTensor& counts)
    : contexts_(counts.shape[0]),
      width_(counts.shape[1]),
      counts_(counts.values),
      made_(std::make_unique<std::atomic<const StaticModels*>[]>(Slots())) {}

StaticTables::~StaticTables() {
  for (size_t i = 0; i < Slots(); ++i) {
    delete made_[i].load(std::memory_order_relaxed);
  }
}

size_t StaticTables::Slots() const {
  return static_cast<size_t>(contexts_) * static_cast<size_t>(width_ + 1);
}

const StaticModels* StaticTables::Find(int32_t context, int32_t alphabet) const {
  if (context < 0 || context >= contexts_ || alphabet > width_) {
    return nullptr;
  }
  const auto row = static_cast<size_t>(context);
  const auto width = static_cast<size_t>(width_);
  std::atomic<const StaticModels*>& slot = made_[row * (width + 1) + static_cast<size_t>(alphabet)];
  const StaticModels* models = slot.load(std::memory_order_acquire);
  if (models == nullptr) {
    auto made = std::make_unique<const StaticModels>(
        MakeStatic(std::span(counts_).subspan(row * width, width), alphabet));
    // Another thread may have been faster; its models are the same.
    if (slot.compare_exchange_strong(models, made.get(), std::memory_order_acq_rel)) {
      models = made.release();
    }
  }
  return models;
}

// --- Tables in a frame ---------------------------------------------------------------------------

uint32_t RansCodeBits(RansMode mode) {
  return mode == RansMode::kExact8    ? kRans8Bits
         : mode == RansMode::kExact12 ? kRans12Bits
                                      : kCoarseBits;
}

size_t RansTableBytes(RansMode mode, const RansWindow& window, int alphabet) {
  return (alphabet <= 16 ? 1U : 2U) +
         (static_cast<size_t>(window.size()) * RansCodeBits(mode) + 7) / 8;
}

void WriteRansTable(RansMode mode, const RansWindow& window, int alphabet,
                    std::span<const uint32_t> codes, ByteWriter& out) {
  if (alphabet <= 16) {
    out.U8(static_cast<uint8_t>(window.first | (window.width - 1) << 4));
  } else {
    out.U8(static_cast<uint8_t>(window.first));
    out.U8(static_cast<uint8_t>(window.width - 1));
  }
  BitWriter bits(out);
  for (int i = 0; i < window.size(); ++i) {
    bits.Put(codes[static_cast<size_t>(i)], RansCodeBits(mode));
  }
  bits.Flush();
}

bool RansFrequencies(RansMode mode, const RansWindow& window, std::span<const uint32_t> codes,
                     std::span<uint16_t> freq) {
  const auto size = static_cast<size_t>(window.size());
  const uint32_t bits = Has8(mode) ? kRans8Bits : kRans12Bits;
  const bool exact = mode == RansMode::kExact8 || mode == RansMode::kExact12;
  std::array<uint64_t, 256> counts{};
  uint64_t sum = 0;
  size_t present = 0;
  for (size_t i = 0; i < size; ++i) {
    counts[i] = exact ? codes[i] : CoarseCount(codes[i]);
    sum += counts[i];
    present += counts[i] != 0 ? 1 : 0;
  }
  if (present < 2 || counts[0] == 0) {
    return false;
  }
  if (!exact) {
    NormalizeCounts(std::span(counts).first(size), bits, false, freq);
    return true;
  }
  if (sum != uint64_t{1} << bits) {
    return false;
  }
  std::transform(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(size), freq.begin(),
                 [](uint64_t count) { return static_cast<uint16_t>(count); });
  return true;
}

Result<RansWindow> ReadRansTable(RansMode mode, int alphabet, ByteReader& in,
                                 std::span<uint16_t> freq) {
  RansWindow window;
  KVIK_ASSIGN(const uint8_t first, in.U8());
  if (alphabet <= 16) {
    window.first = first & 15;
    window.width = (first >> 4) + 1;
  } else {
    window.first = first;
    KVIK_ASSIGN(const uint8_t width, in.U8());
    window.width = width + 1;
  }
  window.escape = Has8(mode) && alphabet > kRans8Symbols;
  if (window.first + window.width > alphabet || (Has8(mode) && window.size() > kRans8Symbols)) {
    return Err(ErrorCode::kCorrupt, "a table is wider than its alphabet");
  }
  const uint32_t bits = RansCodeBits(mode);
  KVIK_ASSIGN(const auto bytes, in.Bytes((static_cast<size_t>(window.size()) * bits + 7) / 8));
  std::array<uint32_t, 256> codes{};
  uint64_t held = 0;
  uint32_t count = 0;
  size_t next = 0;
  for (int i = 0; i < window.size(); ++i) {
    for (; count < bits; count += 8) {
      held |= static_cast<uint64_t>(bytes[next++]) << count;
    }
    codes[static_cast<size_t>(i)] = static_cast<uint32_t>(held) & ((1U << bits) - 1);
    held >>= bits;
    count -= bits;
  }
  if (!RansFrequencies(mode, window, codes, freq)) {
    return Err(ErrorCode::kCorrupt, "a table's frequencies do not add up");
  }
  return window;
}

}  // namespace kvik::codec
