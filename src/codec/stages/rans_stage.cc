// SPDX-License-Identifier: Apache-2.0
// The coder `rans`: interleaved rANS over groups of planes (codec/symbol_groups.h).
//
//   byte    the mode of all groups, or 15: they differ (low 4 bits); log2 of the lanes of 8-bit
//           models (next 3 bits)
//   nibbles the modes, if they differ, low nibble first
//   byte    log2 of the lanes of 12-bit models, if a group has one
//   groups  kPacked: the packed symbols; kConstant: the symbol; a table, for modes that have their
//           own; escaped symbols, for windows: varint count, bytes
//   varint  size of the 12-bit stream, if there are both; that stream; the 8-bit stream
//
// Models of 8 bits have at most 32 symbols. A wider alphabet has a window of neighbouring symbols
// [first, first + width) instead, with index 0 for whatever is outside (an escaped symbol).
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "codec/kernels/coder_kernels.h"
#include "codec/packing.h"
#include "codec/rans_stream.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/symbol_groups.h"
#include "codec/symbol_table.h"

namespace kvik::codec {
namespace {

enum class Mode : uint8_t {
  kPacked = 0,
  kConstant = 1,
  kStatic8 = 2,  // calibrated table
  kStatic12 = 3,
  kCoarse8 = 4,  // own table, counts of 6 bits
  kCoarse12 = 5,
  kExact8 = 6,  // own table, frequencies in full
  kExact12 = 7,
};
constexpr uint8_t kModes = 8;
constexpr uint8_t kModesDiffer = 15;

bool Has8(Mode mode) {
  return mode == Mode::kStatic8 || mode == Mode::kCoarse8 || mode == Mode::kExact8;
}
bool Has12(Mode mode) {
  return mode == Mode::kStatic12 || mode == Mode::kCoarse12 || mode == Mode::kExact12;
}

// Symbols [first, first + width) of an alphabet; with `escape`, index 0 of the model stands before
// them.
struct Window {
  int first = 0;
  int width = 2;
  bool escape = false;
  [[nodiscard]] int size() const { return width + (escape ? 1 : 0); }
};

constexpr int kNarrow = 16;  // models up to here are the fastest

// --- Models --------------------------------------------------------------------------------------

Rans8Model MakeModel8(const Window& window, std::span<const uint16_t> freq) {
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

void MakeModel12(const Window& window, std::span<const uint16_t> freq, int alphabet,
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

// Counts by index of a window.
template <typename Count>
void WindowCounts(std::span<const Count> counts, const Window& window, std::span<uint64_t> out) {
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
Window BestWindow(std::span<const Count> counts, int width) {
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
Window ChooseWindow(std::span<const Count> counts) {
  const Window narrow = BestWindow(counts, kNarrow - 1);
  uint64_t all = 0;
  uint64_t inside = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    all += counts[s];
    const int index = static_cast<int>(s) - narrow.first;
    inside += index >= 0 && index < narrow.width ? uint64_t{counts[s]} : 0;
  }
  return (all - inside) * 512 <= all ? narrow : BestWindow(counts, kRans8Symbols - 1);
}

// Models of a calibrated table.
struct StaticModels {
  int alphabet = 0;
  Window window;
  std::vector<uint16_t> freq8;   // by index of the window
  std::vector<uint16_t> freq12;  // by symbol
};

StaticModels MakeStatic(std::span<const float> values, int alphabet) {
  StaticModels models;
  models.alphabet = alphabet;
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
    models.window = ChooseWindow(of);
    std::array<uint64_t, kRans8Symbols> inside{};
    const auto size = static_cast<size_t>(models.window.size());
    WindowCounts(of, models.window, inside);
    models.freq8.resize(size);
    NormalizeCounts(std::span(inside).first(size), kRans8Bits, true, models.freq8);
  }
  return models;
}

// --- Tables in a frame ---------------------------------------------------------------------------

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

uint32_t CodeBits(Mode mode) {
  return mode == Mode::kExact8 ? kRans8Bits : mode == Mode::kExact12 ? kRans12Bits : kCoarseBits;
}

size_t TableBytes(Mode mode, const Window& window, int alphabet) {
  return (alphabet <= 16 ? 1U : 2U) + (static_cast<size_t>(window.size()) * CodeBits(mode) + 7) / 8;
}

void WriteTable(Mode mode, const Window& window, int alphabet, std::span<const uint32_t> codes,
                ByteWriter& out) {
  if (alphabet <= 16) {
    out.U8(static_cast<uint8_t>(window.first | (window.width - 1) << 4));
  } else {
    out.U8(static_cast<uint8_t>(window.first));
    out.U8(static_cast<uint8_t>(window.width - 1));
  }
  BitWriter bits(out);
  for (int i = 0; i < window.size(); ++i) {
    bits.Put(codes[static_cast<size_t>(i)], CodeBits(mode));
  }
  bits.Flush();
}

// Frequencies of a table by index of the window; false if no model comes of it.
bool Frequencies(Mode mode, const Window& window, std::span<const uint32_t> codes,
                 std::span<uint16_t> freq) {
  const auto size = static_cast<size_t>(window.size());
  const uint32_t bits = Has8(mode) ? kRans8Bits : kRans12Bits;
  const bool exact = mode == Mode::kExact8 || mode == Mode::kExact12;
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

Result<Window> ReadTable(Mode mode, int alphabet, ByteReader& in, std::span<uint16_t> freq) {
  Window window;
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
  const uint32_t bits = CodeBits(mode);
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
  if (!Frequencies(mode, window, codes, freq)) {
    return Err(ErrorCode::kCorrupt, "a table's frequencies do not add up");
  }
  return window;
}

// --- What the encoder decides about a group ------------------------------------------------------

struct GroupCode {
  Mode mode = Mode::kPacked;
  Window window;
  std::array<uint32_t, 256> codes{};  // of a table in the frame
  std::array<uint16_t, 256> freq{};   // by index of the window
  uint64_t cost = kNoCost;            // with everything but lanes' states
  uint64_t stream_cost = 0;           // the symbols alone
};

// Scratch of one thread.
struct Scratch {
  SymbolGroups groups;
  std::vector<GroupCode> codes;
  std::vector<Mode> modes;
  std::vector<Rans8Model> models8;
  std::vector<Rans12Model> models12;
  std::vector<Rans8Source> sources8;
  std::vector<Rans12Source> sources12;
  std::vector<Rans8Target> targets8;
  std::vector<Rans12Target> targets12;
  std::vector<std::span<const std::byte>> escapes;  // of each group
  std::vector<std::byte> bytes;
};

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

// Lanes cost their states: no more than one percent of the symbols. `bytes` is what those take.
int LanesFor(uint64_t bytes, uint64_t state_bytes) {
  int lanes = 1;
  while (lanes < kMaxLanes && 2 * static_cast<uint64_t>(lanes) * state_bytes * 100 <= bytes) {
    lanes *= 2;
  }
  return lanes;
}

class Rans final : public EntropyCoder {
 public:
  enum class Tables { kAuto, kStatic, kAdaptive };

  Rans(Tables tables, const SideTensor* counts) : tables_(tables) {
    if (counts == nullptr) {
      return;
    }
    width_ = counts->shape[1];
    for (int32_t context = 0; context < counts->shape[0]; ++context) {
      statics_.push_back(
          MakeStatic(std::span(counts->values)
                         .subspan(static_cast<size_t>(context) * static_cast<size_t>(width_),
                                  static_cast<size_t>(width_)),
                     Alphabet(*counts, context)));
    }
    counts_ = counts->values;
  }

  Result<void> Encode(const TileContext& context, const SymbolPlanes& planes,
                      ByteWriter& out) const override {
    Scratch& scratch = ThreadScratch();
    scratch.groups.Form(planes.used(), SymbolGroups::Join::kSameDistribution);
    scratch.groups.Gather(planes.used());
    const auto groups = scratch.groups.groups();
    if (groups.empty()) {
      return {};
    }
    const CoderKernels& kernels = CoderKernelsOf(context.isa);
    if (scratch.codes.size() < groups.size()) {
      scratch.codes.resize(groups.size());
    }
    uint64_t bytes8 = 0;
    uint64_t bytes12 = 0;
    uint64_t gain = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      GroupCode& code = scratch.codes[g];
      const uint64_t packed = 8 * kCostBit * PackedBytes(groups[g].n, groups[g].alphabet);
      Decide(kernels, groups[g], scratch.groups.Source(planes.used(), groups[g]), packed, &code);
      bytes8 += Has8(code.mode) ? code.stream_cost : 0;
      bytes12 += Has12(code.mode) ? code.stream_cost : 0;
      gain += Has8(code.mode) || Has12(code.mode) ? packed - code.cost : 0;
    }
    bytes8 /= 8 * kCostBit;
    bytes12 /= 8 * kCostBit;
    const int lanes8 = LanesFor(bytes8, 2);
    const int lanes12 = LanesFor(bytes12, 3);
    if (gain / (8 * kCostBit) <= Rans8StateBytes(lanes8) + Rans12StateBytes(lanes12)) {
      for (size_t g = 0; g < groups.size(); ++g) {
        GroupCode& code = scratch.codes[g];
        code.mode = code.mode == Mode::kConstant ? Mode::kConstant : Mode::kPacked;
      }
    }
    return Write(context, planes, lanes8, lanes12, scratch, out);
  }

  Result<void> Decode(const TileContext& context, std::span<const std::byte> in,
                      SymbolPlanes& planes) const override;

 private:
  // Symbols above the last one that was ever seen are not worth a frequency.
  static int Alphabet(const SideTensor& counts, int32_t context) {
    const auto width = static_cast<size_t>(counts.shape[1]);
    const float* row = counts.values.data() + static_cast<size_t>(context) * width;
    size_t n = width;
    while (n > 2 && !(row[n - 1] > 0)) {
      --n;
    }
    return static_cast<int>(n);
  }

  // Null if no calibrated table describes the group. `made` holds a model made for it.
  const StaticModels* Static(const SymbolGroup& group, StaticModels* made) const {
    if (group.context < 0 || static_cast<size_t>(group.context) >= statics_.size() ||
        group.alphabet > width_) {
      return nullptr;
    }
    const StaticModels& models = statics_[static_cast<size_t>(group.context)];
    if (models.alphabet == group.alphabet) {
      return &models;
    }
    *made = MakeStatic(
        std::span(counts_).subspan(static_cast<size_t>(group.context) * static_cast<size_t>(width_),
                                   static_cast<size_t>(width_)),
        group.alphabet);
    return made;
  }

  void Decide(const CoderKernels& kernels, const SymbolGroup& group,
              std::span<const uint8_t> symbols, uint64_t packed, GroupCode* code) const;
  void TryOwnTable(Mode mode, const Window& window, int alphabet, std::span<const uint32_t> counts,
                   GroupCode* code) const;
  static void Offer(Mode mode, const Window& window, std::span<const uint16_t> freq,
                    std::span<const uint32_t> counts, uint64_t table_cost, GroupCode* code);
  static Result<void> Write(const TileContext& context, const SymbolPlanes& planes, int lanes8,
                            int lanes12, Scratch& scratch, ByteWriter& out);

  Tables tables_;
  int32_t width_ = 0;
  std::vector<StaticModels> statics_;  // by context
  std::vector<float> counts_;
};

// What 12 bits have to save: 8 are several times as fast. A window is worth more than the rest of a
// wide alphabet's symbols, which mostly are a small part of what a value takes (exponents).
uint64_t Margin(uint64_t cost, bool windowed) {
  return (windowed ? cost / 50 : cost / 256) + 64 * kCostBit;
}

// Takes a model if it is cheaper than what the code has so far.
void Rans::Offer(Mode mode, const Window& window, std::span<const uint16_t> freq,
                 std::span<const uint32_t> counts, uint64_t table_cost, GroupCode* code) {
  uint64_t cost = 0;
  uint64_t escape_cost = 0;
  if (window.escape) {
    std::array<uint64_t, kRans8Symbols> inside{};
    WindowCounts(counts, window, inside);
    std::array<uint32_t, kRans8Symbols> narrow{};
    std::transform(inside.begin(), inside.end(), narrow.begin(),
                   [](uint64_t count) { return static_cast<uint32_t>(count); });
    cost =
        CodingCost(std::span(narrow).first(static_cast<size_t>(window.size())), freq, kRans8Bits);
    escape_cost = 8 * kCostBit * (inside[0] + 1);
  } else {
    std::array<uint32_t, 256> shifted{};
    uint64_t outside = 0;
    for (size_t s = 0; s < counts.size(); ++s) {
      const int index = static_cast<int>(s) - window.first;
      if (index >= 0 && index < window.width) {
        shifted[static_cast<size_t>(index)] = counts[s];
      } else {
        outside += counts[s];
      }
    }
    if (outside != 0) {
      return;
    }
    cost = CodingCost(std::span(shifted).first(static_cast<size_t>(window.width)), freq,
                      Has8(mode) ? kRans8Bits : kRans12Bits);
  }
  if (cost >= kNoCost) {
    return;
  }
  const uint64_t total = cost + escape_cost + table_cost;
  const bool wider = Has12(mode) && Has8(code->mode);
  if (total >= code->cost || (wider && total + Margin(total, code->window.escape) >= code->cost)) {
    return;
  }
  code->mode = mode;
  code->window = window;
  code->cost = total;
  code->stream_cost = cost;
  std::copy(freq.begin(), freq.begin() + window.size(), code->freq.begin());
}

void Rans::TryOwnTable(Mode mode, const Window& window, int alphabet,
                       std::span<const uint32_t> counts, GroupCode* code) const {
  std::array<uint64_t, 256> inside{};
  WindowCounts(counts, window, inside);
  const auto size = static_cast<size_t>(window.size());
  uint64_t total = 0;
  for (size_t i = 0; i < size; ++i) {
    total += inside[i];
  }
  std::array<uint32_t, 256> codes{};
  std::array<uint16_t, 256> freq{};
  if (mode == Mode::kExact8 || mode == Mode::kExact12) {
    NormalizeCounts(std::span(inside).first(size), Has8(mode) ? kRans8Bits : kRans12Bits, false,
                    freq);
    std::copy(freq.begin(), freq.begin() + static_cast<std::ptrdiff_t>(size), codes.begin());
  } else {
    for (size_t i = 0; i < size; ++i) {
      codes[i] = CoarseCode(inside[i], total);
    }
    if (!Frequencies(mode, window, codes, freq)) {
      return;
    }
  }
  Offer(mode, window, freq, counts, 8 * kCostBit * TableBytes(mode, window, alphabet), code);
  if (code->mode == mode) {
    std::copy(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(size),
              code->codes.begin());
  }
}

void Rans::Decide(const CoderKernels& kernels, const SymbolGroup& group,
                  std::span<const uint8_t> symbols, uint64_t packed, GroupCode* code) const {
  code->mode = Mode::kPacked;
  code->cost = packed;
  code->stream_cost = 0;
  if (group.uniform) {
    return;
  }
  std::array<uint32_t, 256> histogram;
  kernels.histogram(symbols.data(), symbols.size(), group.alphabet, histogram.data());
  const std::span<const uint32_t> counts(histogram.data(), static_cast<size_t>(group.alphabet));
  int first = 0;
  while (counts[static_cast<size_t>(first)] == 0) {
    ++first;
  }
  int last = group.alphabet - 1;
  while (counts[static_cast<size_t>(last)] == 0) {
    --last;
  }
  if (first == last) {
    if (8 * kCostBit < packed) {
      code->mode = Mode::kConstant;
      code->cost = 8 * kCostBit;
    }
    return;
  }
  const bool windowed = group.alphabet > kRans8Symbols;
  const Window all{first, last - first + 1, false};
  // Tables are tried while what is left above the entropy could pay for them.
  const uint64_t least = EntropyCost(counts);
  const auto could_pay = [&](uint64_t at_least) {
    return tables_ != Tables::kStatic && code->cost > least + at_least;
  };
  StaticModels made;
  const StaticModels* models = tables_ == Tables::kAdaptive ? nullptr : Static(group, &made);
  if (models != nullptr) {
    Offer(Mode::kStatic8, models->window, models->freq8, counts, 0, code);
  }
  const auto table_cost = [&](Mode mode, const Window& window) {
    return 8 * kCostBit * TableBytes(mode, window, group.alphabet);
  };
  const Window window = windowed ? ChooseWindow(counts) : all;
  for (const Mode mode : {Mode::kCoarse8, Mode::kExact8}) {
    if (could_pay(table_cost(mode, window))) {
      TryOwnTable(mode, window, group.alphabet, counts, code);
    }
  }
  const uint64_t margin = Margin(least, windowed && Has8(code->mode));
  if (models != nullptr && code->cost > least + margin) {
    Offer(Mode::kStatic12, {0, group.alphabet, false}, models->freq12, counts, 0, code);
  }
  for (const Mode mode : {Mode::kCoarse12, Mode::kExact12}) {
    if (could_pay(table_cost(mode, all) + (Has12(code->mode) ? 0 : margin))) {
      TryOwnTable(mode, all, group.alphabet, counts, code);
    }
  }
}

// Appends the symbols outside of a window. They are few: most blocks have none.
void CollectEscapes(const Window& window, std::span<const uint8_t> symbols,
                    std::vector<std::byte>& escapes) {
  constexpr size_t kBlock = 64;
  const auto first = static_cast<uint8_t>(window.first);
  const auto width = static_cast<uint8_t>(window.width);
  for (size_t i = 0; i < symbols.size(); i += kBlock) {
    const size_t end = std::min(symbols.size(), i + kBlock);
    uint8_t farthest = 0;
    for (size_t at = i; at < end; ++at) {
      farthest = std::max(farthest, static_cast<uint8_t>(symbols[at] - first));
    }
    for (size_t at = i; farthest >= width && at < end; ++at) {
      if (static_cast<uint8_t>(symbols[at] - first) >= width) {
        escapes.push_back(static_cast<std::byte>(symbols[at]));
      }
    }
  }
}

Result<void> Rans::Write(const TileContext& context, const SymbolPlanes& planes, int lanes8,
                         int lanes12, Scratch& scratch, ByteWriter& out) {
  const auto groups = scratch.groups.groups();
  bool differ = false;
  size_t count8 = 0;
  size_t count12 = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    differ = differ || scratch.codes[g].mode != scratch.codes[0].mode;
    count8 += Has8(scratch.codes[g].mode) ? 1 : 0;
    count12 += Has12(scratch.codes[g].mode) ? 1 : 0;
  }
  const int log_lanes8 = count8 == 0 ? 0 : std::countr_zero(static_cast<unsigned>(lanes8));
  const auto common = static_cast<int>(scratch.codes[0].mode);
  out.U8(static_cast<uint8_t>((differ ? kModesDiffer : common) | log_lanes8 << 4));
  if (differ) {
    BitWriter bits(out);
    for (size_t g = 0; g < groups.size(); ++g) {
      bits.Put(static_cast<uint32_t>(scratch.codes[g].mode), 4);
    }
    bits.Flush();
  }
  if (count12 != 0) {
    out.U8(static_cast<uint8_t>(std::countr_zero(static_cast<unsigned>(lanes12))));
  }
  // Sources point to models: these may not move.
  scratch.models8.clear();
  scratch.models8.reserve(count8);
  scratch.models12.clear();
  scratch.models12.reserve(count12);
  scratch.sources8.clear();
  scratch.sources12.clear();
  for (size_t g = 0; g < groups.size(); ++g) {
    const GroupCode& code = scratch.codes[g];
    const auto symbols = scratch.groups.Source(planes.used(), groups[g]);
    switch (code.mode) {
      case Mode::kPacked:
        PackSymbols(context.isa, symbols, groups[g].alphabet,
                    out.Room(PackedBytes(symbols.size(), groups[g].alphabet)));
        break;
      case Mode::kConstant:
        out.U8(symbols[0]);
        break;
      case Mode::kStatic8:
      case Mode::kStatic12:
        break;
      default:
        WriteTable(code.mode, code.window, groups[g].alphabet, code.codes, out);
        break;
    }
    if (Has8(code.mode)) {
      if (code.window.escape) {
        scratch.bytes.clear();
        CollectEscapes(code.window, symbols, scratch.bytes);
        out.Varint(scratch.bytes.size());
        out.Bytes(scratch.bytes);
      }
      scratch.models8.push_back(MakeModel8(code.window, code.freq));
      scratch.sources8.push_back({symbols.data(), symbols.size(), &scratch.models8.back()});
    } else if (Has12(code.mode)) {
      scratch.models12.emplace_back();
      MakeModel12(code.window, code.freq, groups[g].alphabet, &scratch.models12.back());
      scratch.sources12.push_back({symbols.data(), symbols.size(), &scratch.models12.back()});
    }
  }
  if (count12 != 0) {
    scratch.bytes.clear();
    EncodeRans12(context.isa, scratch.sources12, lanes12, scratch.bytes);
    if (count8 != 0) {
      out.Varint(scratch.bytes.size());
    }
    out.Bytes(scratch.bytes);
  }
  if (count8 != 0) {
    scratch.bytes.clear();
    EncodeRans8(context.isa, scratch.sources8, lanes8, scratch.bytes);
    out.Bytes(scratch.bytes);
  }
  return {};
}

Result<void> Rans::Decode(const TileContext& context, std::span<const std::byte> in,
                          SymbolPlanes& planes) const {
  Scratch& scratch = ThreadScratch();
  scratch.groups.Form(planes.used(), SymbolGroups::Join::kSameDistribution);
  const auto groups = scratch.groups.groups();
  ByteReader reader(in);
  if (groups.empty()) {
    if (reader.left() != 0) {
      return Err(ErrorCode::kCorrupt, "%zu bytes of no symbols", reader.left());
    }
    return {};
  }
  KVIK_ASSIGN(const uint8_t head, reader.U8());
  const int common = head & 15;
  const int log_lanes8 = head >> 4;
  scratch.modes.assign(groups.size(), static_cast<Mode>(common));
  if (common == kModesDiffer) {
    KVIK_ASSIGN(const auto nibbles, reader.Bytes((groups.size() + 1) / 2));
    for (size_t g = 0; g < groups.size(); ++g) {
      scratch.modes[g] =
          static_cast<Mode>((static_cast<uint8_t>(nibbles[g / 2]) >> (4 * (g % 2))) & 15);
    }
  }
  size_t count8 = 0;
  size_t count12 = 0;
  for (const Mode mode : scratch.modes) {
    if (static_cast<uint8_t>(mode) >= kModes) {
      return Err(ErrorCode::kCorrupt, "there is no mode %d", static_cast<int>(mode));
    }
    count8 += Has8(mode) ? 1 : 0;
    count12 += Has12(mode) ? 1 : 0;
  }
  int log_lanes12 = 0;
  if (count12 != 0) {
    KVIK_ASSIGN(const uint8_t log_lanes, reader.U8());
    log_lanes12 = log_lanes;
  }
  if (log_lanes8 > 6 || log_lanes12 > 6) {
    return Err(ErrorCode::kCorrupt, "more lanes than %d", kMaxLanes);
  }
  scratch.models8.clear();
  scratch.models8.reserve(count8);
  scratch.models12.clear();
  scratch.models12.reserve(count12);
  scratch.targets8.clear();
  scratch.targets12.clear();
  scratch.escapes.assign(groups.size(), {});
  for (size_t g = 0; g < groups.size(); ++g) {
    const SymbolGroup& group = groups[g];
    const Mode mode = scratch.modes[g];
    const auto symbols = scratch.groups.Target(planes.used(), group);
    std::array<uint16_t, 256> freq{};
    Window window;
    switch (mode) {
      case Mode::kPacked: {
        KVIK_ASSIGN(const auto bytes, reader.Bytes(PackedBytes(group.n, group.alphabet)));
        KVIK_TRY(UnpackSymbols(context.isa, bytes, group.alphabet, symbols));
        continue;
      }
      case Mode::kConstant: {
        KVIK_ASSIGN(const uint8_t symbol, reader.U8());
        if (symbol >= group.alphabet) {
          return Err(ErrorCode::kCorrupt, "a symbol is outside its alphabet of %d", group.alphabet);
        }
        std::memset(symbols.data(), symbol, symbols.size());
        continue;
      }
      case Mode::kStatic8:
      case Mode::kStatic12: {
        StaticModels made;
        const StaticModels* models = Static(group, &made);
        if (models == nullptr) {
          return Err(ErrorCode::kCorrupt, "there is no calibrated table of context %d",
                     group.context);
        }
        const auto& of = mode == Mode::kStatic8 ? models->freq8 : models->freq12;
        std::copy(of.begin(), of.end(), freq.begin());
        window = mode == Mode::kStatic8 ? models->window : Window{0, group.alphabet, false};
        break;
      }
      default: {
        KVIK_ASSIGN(window, ReadTable(mode, group.alphabet, reader, freq));
        break;
      }
    }
    if (Has8(mode)) {
      if (window.escape) {
        KVIK_ASSIGN(const uint64_t count, reader.Varint());
        if (count > group.n) {
          return Err(ErrorCode::kCorrupt, "more escapes than symbols");
        }
        KVIK_ASSIGN(scratch.escapes[g], reader.Bytes(count));
      }
      scratch.models8.push_back(MakeModel8(window, freq));
      scratch.targets8.push_back({symbols.data(), symbols.size(), &scratch.models8.back()});
    } else {
      scratch.models12.emplace_back();
      MakeModel12(window, freq, group.alphabet, &scratch.models12.back());
      scratch.targets12.push_back({symbols.data(), symbols.size(), &scratch.models12.back()});
    }
  }
  if (count12 != 0) {
    uint64_t size = reader.left();
    if (count8 != 0) {
      KVIK_ASSIGN(size, reader.Varint());
    }
    KVIK_ASSIGN(const auto bytes, reader.Bytes(size));
    KVIK_TRY(DecodeRans12(context.isa, scratch.targets12, 1 << log_lanes12, bytes));
  }
  if (count8 != 0) {
    KVIK_ASSIGN(const auto bytes, reader.Bytes(reader.left()));
    KVIK_TRY(DecodeRans8(context.isa, scratch.targets8, 1 << log_lanes8, bytes));
  }
  if (reader.left() != 0) {
    return Err(ErrorCode::kCorrupt, "%zu bytes follow the last symbol", reader.left());
  }
  // Index 0 of a window came out as the symbol before it (modulo 256).
  size_t next8 = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!Has8(scratch.modes[g])) {
      continue;
    }
    const Rans8Target& target = scratch.targets8[next8++];
    if (groups[g].alphabet <= kRans8Symbols) {
      continue;
    }
    const auto escapes = scratch.escapes[g];
    size_t used = 0;
    uint8_t* at = target.symbols;
    uint8_t* const end = target.symbols + target.n;
    while ((at = static_cast<uint8_t*>(
                std::memchr(at, target.model->base, static_cast<size_t>(end - at)))) != nullptr) {
      if (used == escapes.size() || static_cast<uint8_t>(escapes[used]) >= groups[g].alphabet) {
        return Err(ErrorCode::kCorrupt, "an escaped symbol is missing or outside its alphabet");
      }
      *at++ = static_cast<uint8_t>(escapes[used++]);
    }
    if (used != escapes.size()) {
      return Err(ErrorCode::kCorrupt, "%zu escaped symbols are left over", escapes.size() - used);
    }
  }
  scratch.groups.Scatter(planes.used());
  return {};
}

Result<std::unique_ptr<EntropyCoder>> Make(const StageArgs& args, const StageSite& site) {
  const std::string& word = args.Word("tables");
  const auto tables = word == "static"     ? Rans::Tables::kStatic
                      : word == "adaptive" ? Rans::Tables::kAdaptive
                                           : Rans::Tables::kAuto;
  const SideTensor* counts = nullptr;
  if (tables != Rans::Tables::kAdaptive) {
    counts = site.Find(site.side_key);
  }
  if (counts == nullptr && tables == Rans::Tables::kStatic) {
    return Err(ErrorCode::kUnsupported, "rans(static) needs the calibrated tensor %s",
               site.side_key.c_str());
  }
  if (counts != nullptr &&
      (counts->shape.size() != 2 || counts->shape[1] < 2 || counts->shape[1] > 256)) {
    return Err(ErrorCode::kUnsupported, "%s is not [contexts, 2..256]", site.side_key.c_str());
  }
  return std::unique_ptr<EntropyCoder>(std::make_unique<Rans>(tables, counts));
}

}  // namespace

const StageModule& RansStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kCoder;
    module.name = "rans";
    module.summary = "interleaved rANS, with calibrated tables of symbols or a frame's own";
    ParamSpec tables;
    tables.name = "tables";
    tables.summary = "whose probabilities: auto takes what is cheapest, plane by plane";
    tables.type = ParamSpec::Type::kWord;
    tables.words = {"auto", "static", "adaptive"};
    tables.default_value = ArgValue::Word("auto");
    tables.search = {ArgValue::Word("auto")};
    module.params = {tables};
    module.make_coder = Make;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
