// SPDX-License-Identifier: Apache-2.0
// The coder `pack`: symbols of any alphabet in few bits, see codec/packing.h. Planes of one
// alphabet are packed together when they are small (codec/symbol_groups.h); groups follow each
// other.
#include <memory>

#include "codec/packing.h"
#include "codec/stage.h"
#include "codec/symbol_groups.h"

namespace kvik::codec {
namespace {

class Pack final : public EntropyCoder {
 public:
  Result<void> Encode(const TileContext& context, const SymbolPlanes& planes,
                      ByteWriter& out) const override {
    SymbolGroups& groups = Groups();
    groups.Form(planes.used(), SymbolGroups::Join::kSameAlphabet);
    groups.Gather(planes.used());
    for (const SymbolGroup& group : groups.groups()) {
      PackSymbols(context.isa, groups.Source(planes.used(), group), group.alphabet,
                  out.Room(PackedBytes(group.n, group.alphabet)));
    }
    return {};
  }

  Result<void> Decode(const TileContext& context, std::span<const std::byte> in,
                      SymbolPlanes& planes) const override {
    SymbolGroups& groups = Groups();
    groups.Form(planes.used(), SymbolGroups::Join::kSameAlphabet);
    ByteReader reader(in);
    for (const SymbolGroup& group : groups.groups()) {
      KVIK_ASSIGN(const auto bytes, reader.Bytes(PackedBytes(group.n, group.alphabet)));
      KVIK_TRY(
          UnpackSymbols(context.isa, bytes, group.alphabet, groups.Target(planes.used(), group)));
    }
    if (reader.left() != 0) {
      return Err(ErrorCode::kCorrupt, "%zu bytes follow the last symbol", reader.left());
    }
    groups.Scatter(planes.used());
    return {};
  }

 private:
  static SymbolGroups& Groups() {
    thread_local SymbolGroups groups;
    return groups;
  }
};

Result<std::unique_ptr<EntropyCoder>> Make(const StageArgs& /*args*/, const StageSite& /*site*/) {
  return std::unique_ptr<EntropyCoder>(std::make_unique<Pack>());
}

}  // namespace

const StageModule& PackStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kCoder;
    module.name = "pack";
    module.summary =
        "bits of fixed width; several symbols to a word where levels are no power of 2";
    module.make_coder = Make;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
