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
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "codec/kernels/coder_kernels.h"
#include "codec/packing.h"
#include "codec/rans_models.h"
#include "codec/rans_stream.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/symbol_groups.h"
#include "codec/symbol_table.h"

namespace kvik::codec {
namespace {

constexpr uint8_t kModesDiffer = 15;

// --- What the encoder decides about a group ------------------------------------------------------

struct GroupCode {
  RansMode mode = RansMode::kPacked;
  const StaticModels* statics = nullptr;  // those of the group's context, if there are any
  RansWindow window;
  std::array<uint32_t, 256> codes{};  // of a table in the frame
  std::array<uint16_t, 256> freq{};   // by index of the window
  uint64_t cost = kNoCost;            // with everything but lanes' states
  uint64_t stream_cost = 0;           // the symbols alone
};

// Scratch of one thread.
struct Scratch {
  SymbolGroups groups;
  std::vector<GroupCode> codes;
  std::vector<RansMode> modes;
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

  // counts: null without calibrated tables.
  Rans(Tables tables, const SideTensor* counts)
      : tables_(tables),
        statics_(counts == nullptr ? std::make_unique<StaticTables>()
                                   : std::make_unique<StaticTables>(*counts)) {}

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
        code.mode = code.mode == RansMode::kConstant ? RansMode::kConstant : RansMode::kPacked;
      }
    }
    return Write(context, planes, lanes8, lanes12, scratch, out);
  }

  Result<void> Decode(const TileContext& context, std::span<const std::byte> in,
                      SymbolPlanes& planes) const override;

 private:
  void Decide(const CoderKernels& kernels, const SymbolGroup& group,
              std::span<const uint8_t> symbols, uint64_t packed, GroupCode* code) const;
  void TryOwnTable(RansMode mode, const RansWindow& window, int alphabet,
                   std::span<const uint32_t> counts, GroupCode* code) const;
  static void Offer(RansMode mode, const RansWindow& window, std::span<const uint16_t> freq,
                    std::span<const uint32_t> counts, uint64_t table_cost, GroupCode* code);
  static Result<void> Write(const TileContext& context, const SymbolPlanes& planes, int lanes8,
                            int lanes12, Scratch& scratch, ByteWriter& out);

  Tables tables_;
  std::unique_ptr<const StaticTables> statics_;
};

// What 12 bits have to save: 8 are several times as fast. A window is worth more than the rest of a
// wide alphabet's symbols, which mostly are a small part of what a value takes (exponents).
uint64_t Margin(uint64_t cost, bool windowed) {
  return (windowed ? cost / 50 : cost / 256) + 64 * kCostBit;
}

// Takes a model if it is cheaper than what the code has so far.
void Rans::Offer(RansMode mode, const RansWindow& window, std::span<const uint16_t> freq,
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

void Rans::TryOwnTable(RansMode mode, const RansWindow& window, int alphabet,
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
  if (mode == RansMode::kExact8 || mode == RansMode::kExact12) {
    NormalizeCounts(std::span(inside).first(size), Has8(mode) ? kRans8Bits : kRans12Bits, false,
                    freq);
    std::copy(freq.begin(), freq.begin() + static_cast<std::ptrdiff_t>(size), codes.begin());
  } else {
    for (size_t i = 0; i < size; ++i) {
      codes[i] = CoarseCode(inside[i], total);
    }
    if (!RansFrequencies(mode, window, codes, freq)) {
      return;
    }
  }
  Offer(mode, window, freq, counts, 8 * kCostBit * RansTableBytes(mode, window, alphabet), code);
  if (code->mode == mode) {
    std::copy(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(size),
              code->codes.begin());
  }
}

void Rans::Decide(const CoderKernels& kernels, const SymbolGroup& group,
                  std::span<const uint8_t> symbols, uint64_t packed, GroupCode* code) const {
  code->mode = RansMode::kPacked;
  code->cost = packed;
  code->stream_cost = 0;
  code->statics = nullptr;
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
      code->mode = RansMode::kConstant;
      code->cost = 8 * kCostBit;
    }
    return;
  }
  const bool windowed = group.alphabet > kRans8Symbols;
  const RansWindow all{first, last - first + 1, false};
  // Tables are tried while what is left above the entropy could pay for them.
  const uint64_t least = EntropyCost(counts);
  const auto could_pay = [&](uint64_t at_least) {
    return tables_ != Tables::kStatic && code->cost > least + at_least;
  };
  const StaticModels* models =
      tables_ == Tables::kAdaptive ? nullptr : statics_->Find(group.context, group.alphabet);
  code->statics = models;
  if (models != nullptr) {
    Offer(RansMode::kStatic8, models->window, models->freq8, counts, 0, code);
  }
  const auto table_cost = [&](RansMode mode, const RansWindow& window) {
    return 8 * kCostBit * RansTableBytes(mode, window, group.alphabet);
  };
  const RansWindow window = windowed ? ChooseWindow(counts) : all;
  for (const RansMode mode : {RansMode::kCoarse8, RansMode::kExact8}) {
    if (could_pay(table_cost(mode, window))) {
      TryOwnTable(mode, window, group.alphabet, counts, code);
    }
  }
  const uint64_t margin = Margin(least, windowed && Has8(code->mode));
  if (models != nullptr && code->cost > least + margin) {
    Offer(RansMode::kStatic12, {0, group.alphabet, false}, models->freq12, counts, 0, code);
  }
  for (const RansMode mode : {RansMode::kCoarse12, RansMode::kExact12}) {
    if (could_pay(table_cost(mode, all) + (Has12(code->mode) ? 0 : margin))) {
      TryOwnTable(mode, all, group.alphabet, counts, code);
    }
  }
}

// Appends the symbols outside of a window. They are few: most blocks have none.
void CollectEscapes(const RansWindow& window, std::span<const uint8_t> symbols,
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
  // Sources point to models: these must not move.
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
      case RansMode::kPacked:
        PackSymbols(context.isa, symbols, groups[g].alphabet,
                    out.Room(PackedBytes(symbols.size(), groups[g].alphabet)));
        break;
      case RansMode::kConstant:
        out.U8(symbols[0]);
        break;
      case RansMode::kStatic8:
      case RansMode::kStatic12:
        break;
      default:
        WriteRansTable(code.mode, code.window, groups[g].alphabet, code.codes, out);
        break;
    }
    if (Has8(code.mode)) {
      if (code.window.escape) {
        scratch.bytes.clear();
        CollectEscapes(code.window, symbols, scratch.bytes);
        out.Varint(scratch.bytes.size());
        out.Bytes(scratch.bytes);
      }
      const Rans8Model* model = code.statics == nullptr ? nullptr : &code.statics->model8;
      if (code.mode != RansMode::kStatic8) {
        scratch.models8.push_back(MakeRans8Model(code.window, code.freq));
        model = &scratch.models8.back();
      }
      scratch.sources8.push_back({symbols.data(), symbols.size(), model});
    } else if (Has12(code.mode)) {
      const Rans12Model* model = code.statics == nullptr ? nullptr : &code.statics->model12;
      if (code.mode != RansMode::kStatic12) {
        scratch.models12.emplace_back();
        MakeRans12Model(code.window, code.freq, groups[g].alphabet, &scratch.models12.back());
        model = &scratch.models12.back();
      }
      scratch.sources12.push_back({symbols.data(), symbols.size(), model});
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
  scratch.modes.assign(groups.size(), static_cast<RansMode>(common));
  if (common == kModesDiffer) {
    KVIK_ASSIGN(const auto nibbles, reader.Bytes((groups.size() + 1) / 2));
    for (size_t g = 0; g < groups.size(); ++g) {
      scratch.modes[g] =
          static_cast<RansMode>((static_cast<uint8_t>(nibbles[g / 2]) >> (4 * (g % 2))) & 15);
    }
  }
  size_t count8 = 0;
  size_t count12 = 0;
  for (const RansMode mode : scratch.modes) {
    if (static_cast<uint8_t>(mode) >= kRansModes) {
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
    const RansMode mode = scratch.modes[g];
    const auto symbols = scratch.groups.Target(planes.used(), group);
    const StaticModels* models = nullptr;
    std::array<uint16_t, 256> freq;
    RansWindow window;
    switch (mode) {
      case RansMode::kPacked: {
        KVIK_ASSIGN(const auto bytes, reader.Bytes(PackedBytes(group.n, group.alphabet)));
        KVIK_TRY(UnpackSymbols(context.isa, bytes, group.alphabet, symbols));
        continue;
      }
      case RansMode::kConstant: {
        KVIK_ASSIGN(const uint8_t symbol, reader.U8());
        if (symbol >= group.alphabet) {
          return Err(ErrorCode::kCorrupt, "a symbol is outside its alphabet of %d", group.alphabet);
        }
        std::memset(symbols.data(), symbol, symbols.size());
        continue;
      }
      case RansMode::kStatic8:
      case RansMode::kStatic12: {
        models = statics_->Find(group.context, group.alphabet);
        if (models == nullptr) {
          return Err(ErrorCode::kCorrupt, "there is no calibrated table of context %d",
                     group.context);
        }
        window = models->window;
        break;
      }
      default: {
        KVIK_ASSIGN(window, ReadRansTable(mode, group.alphabet, reader, freq));
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
      if (models == nullptr) {
        scratch.models8.push_back(MakeRans8Model(window, freq));
      }
      scratch.targets8.push_back({symbols.data(), symbols.size(),
                                  models == nullptr ? &scratch.models8.back() : &models->model8});
    } else {
      if (models == nullptr) {
        scratch.models12.emplace_back();
        MakeRans12Model(window, freq, group.alphabet, &scratch.models12.back());
      }
      scratch.targets12.push_back(
          {symbols.data(), symbols.size(),
           models == nullptr ? &scratch.models12.back() : &models->model12});
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
