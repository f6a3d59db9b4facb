// SPDX-License-Identifier: Apache-2.0
#include "codec/library_coder.h"

#include <cstring>
#include <utility>
#include <vector>

#include "codec/packing.h"
#include "codec/symbol_groups.h"

namespace kvik::codec {
namespace {

constexpr uint8_t kPlain = 0;
constexpr uint8_t kCompressed = 1;

// Libraries see bytes: symbols share one only in whole bits.
int PackedAlphabet(int alphabet) {
  return alphabet <= 2 ? 2 : alphabet <= 4 ? 4 : alphabet <= 16 ? 16 : 256;
}

// Scratch of one thread.
struct Scratch {
  SymbolGroups groups;
  std::vector<std::byte> packed;
  std::vector<std::byte> compressed;
};
Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

size_t TotalPacked(const SymbolGroups& groups) {
  size_t total = 0;
  for (const SymbolGroup& group : groups.groups()) {
    total += PackedBytes(group.n, PackedAlphabet(group.alphabet));
  }
  return total;
}

class LibraryCoder final : public EntropyCoder {
 public:
  explicit LibraryCoder(std::unique_ptr<Compressor> compressor)
      : compressor_(std::move(compressor)) {}

  Result<void> Encode(const TileContext& context, const SymbolPlanes& planes,
                      ByteWriter& out) const override {
    Scratch& scratch = ThreadScratch();
    SymbolGroups& groups = scratch.groups;
    groups.Form(planes.used(), SymbolGroups::Join::kSameAlphabet);
    groups.Gather(planes.used());
    scratch.packed.resize(TotalPacked(groups));
    if (scratch.packed.empty()) {
      return {};
    }
    size_t at = 0;
    for (const SymbolGroup& group : groups.groups()) {
      const int alphabet = PackedAlphabet(group.alphabet);
      const size_t bytes = PackedBytes(group.n, alphabet);
      PackSymbols(context.isa, groups.Source(planes.used(), group), alphabet,
                  std::span(scratch.packed).subspan(at, bytes));
      at += bytes;
    }
    // Only what is smaller than the plain bytes is wanted.
    scratch.compressed.resize(scratch.packed.size() - 1);
    const size_t size = compressor_->Compress(scratch.packed, scratch.compressed);
    out.U8(size == 0 ? kPlain : kCompressed);
    out.Bytes(size == 0 ? std::span<const std::byte>(scratch.packed)
                        : std::span<const std::byte>(scratch.compressed).first(size));
    return {};
  }

  Result<void> Decode(const TileContext& context, std::span<const std::byte> in,
                      SymbolPlanes& planes) const override {
    Scratch& scratch = ThreadScratch();
    SymbolGroups& groups = scratch.groups;
    groups.Form(planes.used(), SymbolGroups::Join::kSameAlphabet);
    const size_t total = TotalPacked(groups);
    ByteReader reader(in);
    std::span<const std::byte> packed;
    if (total != 0) {
      KVIK_ASSIGN(const uint8_t form, reader.U8());
      if (form > kCompressed) {
        return Err(ErrorCode::kCorrupt, "there is no form %d of packed symbols", form);
      }
      if (form == kPlain) {
        KVIK_ASSIGN(packed, reader.Bytes(total));
      } else {
        scratch.packed.resize(total);
        KVIK_ASSIGN(const auto compressed, reader.Bytes(reader.left()));
        if (!compressor_->Decompress(compressed, scratch.packed)) {
          return Err(ErrorCode::kCorrupt, "compressed bytes do not give %zu bytes", total);
        }
        packed = scratch.packed;
      }
    }
    if (reader.left() != 0) {
      return Err(ErrorCode::kCorrupt, "%zu bytes follow the last symbol", reader.left());
    }
    const CoderKernels& kernels = CoderKernelsOf(context.isa);
    for (const SymbolGroup& group : groups.groups()) {
      const int alphabet = PackedAlphabet(group.alphabet);
      const size_t bytes = PackedBytes(group.n, alphabet);
      const auto symbols = groups.Target(planes.used(), group);
      KVIK_TRY(UnpackSymbols(context.isa, packed.first(bytes), alphabet, symbols));
      packed = packed.subspan(bytes);
      if (group.alphabet < alphabet &&
          kernels.largest(symbols.data(), symbols.size()) >= group.alphabet) {
        return Err(ErrorCode::kCorrupt, "a symbol is outside its alphabet of %d", group.alphabet);
      }
    }
    groups.Scatter(planes.used());
    return {};
  }

 private:
  std::unique_ptr<Compressor> compressor_;
};

}  // namespace

std::unique_ptr<EntropyCoder> MakeLibraryCoder(std::unique_ptr<Compressor> compressor) {
  return std::make_unique<LibraryCoder>(std::move(compressor));
}

}  // namespace kvik::codec
