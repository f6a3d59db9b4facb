// SPDX-License-Identifier: Apache-2.0
// codec/rans_models.h: the models of the coder `rans`: which symbols they have, how often each is
// said to come, and how a frame tells. Internal to the module.
//
// Models of 8 bits have at most 32 symbols. A wider alphabet has a window of neighbouring symbols
// [first, first + width) instead, with index 0 for whatever is outside (an escaped symbol).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/byte_stream.h"
#include "codec/kernels/coder_kernels.h"
#include "codec/side_info.h"

namespace kvik::codec {

// How a group of symbols is coded.
enum class RansMode : uint8_t {
  kPacked = 0,
  kConstant = 1,
  kStatic8 = 2,  // calibrated table
  kStatic12 = 3,
  kCoarse8 = 4,  // own table, counts of 6 bits
  kCoarse12 = 5,
  kExact8 = 6,  // own table, frequencies in full
  kExact12 = 7,
};
constexpr uint8_t kRansModes = 8;

constexpr bool Has8(RansMode mode) {
  return mode == RansMode::kStatic8 || mode == RansMode::kCoarse8 || mode == RansMode::kExact8;
}
constexpr bool Has12(RansMode mode) {
  return mode == RansMode::kStatic12 || mode == RansMode::kCoarse12 || mode == RansMode::kExact12;
}

// Symbols [first, first + width) of an alphabet; with `escape`, index 0 of the model stands before
// them.
struct RansWindow {
  int first = 0;
  int width = 2;
  bool escape = false;
  [[nodiscard]] int size() const { return width + (escape ? 1 : 0); }
};

// Counts by index of a window.
void WindowCounts(std::span<const uint32_t> counts, const RansWindow& window,
                  std::span<uint64_t> out);
// The window of an alphabet beyond kRans8Symbols that codes fastest without losing much.
RansWindow ChooseWindow(std::span<const uint32_t> counts);

// Frequencies are by index of the window.
Rans8Model MakeRans8Model(const RansWindow& window, std::span<const uint16_t> freq);
void MakeRans12Model(const RansWindow& window, std::span<const uint16_t> freq, int alphabet,
                     Rans12Model* model);

// --- Calibrated tables ---------------------------------------------------------------------------

// Models of one context's calibrated counts for one alphabet.
struct StaticModels {
  RansWindow window;             // of 8 bits
  std::vector<uint16_t> freq8;   // by index of the window
  std::vector<uint16_t> freq12;  // by symbol
  Rans8Model model8;
  Rans12Model model12;
};

// All calibrated tables of a part. Models are made when they are first asked for; any thread may.
class StaticTables {
 public:
  StaticTables() = default;
  // counts: [contexts, width], 2 <= width <= 256.
  explicit StaticTables(const SideTensor& counts);
  ~StaticTables();
  StaticTables(const StaticTables&) = delete;
  StaticTables& operator=(const StaticTables&) = delete;

  // Null if no table describes symbols of that context below `alphabet`. Valid as long as this.
  const StaticModels* Find(int32_t context, int32_t alphabet) const;

 private:
  [[nodiscard]] size_t Slots() const;

  int32_t contexts_ = 0;
  int32_t width_ = 0;
  std::vector<float> counts_;
  // [contexts, width + 1], by alphabet; owned.
  std::unique_ptr<std::atomic<const StaticModels*>[]> made_;
};

// --- Tables in a frame ---------------------------------------------------------------------------

//   byte    first symbol of the window in the low 4 bits, width - 1 in the high ones; of alphabets
//           beyond 16 a byte each
//   codes   one an index of the window, least significant bits first: kCoarse* of 6 bits, kExact*
//           the frequencies in full
uint32_t RansCodeBits(RansMode mode);
size_t RansTableBytes(RansMode mode, const RansWindow& window, int alphabet);
void WriteRansTable(RansMode mode, const RansWindow& window, int alphabet,
                    std::span<const uint32_t> codes, ByteWriter& out);
// kCorrupt: the window leaves the alphabet, or the frequencies are not those of a model.
Result<RansWindow> ReadRansTable(RansMode mode, int alphabet, ByteReader& in,
                                 std::span<uint16_t> freq);

// Frequencies of a table by index of the window; false if no model comes of it.
bool RansFrequencies(RansMode mode, const RansWindow& window, std::span<const uint32_t> codes,
                     std::span<uint16_t> freq);

// Numbers of few bits, least significant first.
class BitWriter {
 public:
  explicit BitWriter(ByteWriter& out) : out_(out) {}
  void Put(uint32_t value, uint32_t bits) {
    held_ |= uint64_t{value} << count_;
    for (count_ += bits; count_ >= 8; count_ -= 8, held_ >>= 8) {
      out_.U8(static_cast<uint8_t>(held_));
    }
  }
  void Flush() {
    if (count_ != 0) {
      out_.U8(static_cast<uint8_t>(held_));
    }
  }

 private:
  ByteWriter& out_;
  uint64_t held_ = 0;
  uint32_t count_ = 0;
};

}  // namespace kvik::codec
