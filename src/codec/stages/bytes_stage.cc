// SPDX-License-Identifier: Apache-2.0
// The coder `none`: a byte a symbol.
#include <cstring>
#include <memory>

#include "codec/kernels/coder_kernels.h"
#include "codec/stage.h"

namespace kvik::codec {
namespace {

class Bytes final : public EntropyCoder {
 public:
  Result<void> Encode(const TileContext& /*context*/, const SymbolPlanes& planes,
                      ByteWriter& out) const override {
    for (const SymbolPlane& plane : planes.used()) {
      out.Bytes(std::as_bytes(std::span(plane.symbols)));
    }
    return {};
  }

  Result<void> Decode(const TileContext& context, std::span<const std::byte> in,
                      SymbolPlanes& planes) const override {
    const CoderKernels& kernels = CoderKernelsOf(context.isa);
    ByteReader reader(in);
    for (SymbolPlane& plane : planes.used()) {
      KVIK_ASSIGN(const auto bytes, reader.Bytes(plane.symbols.size()));
      if (!bytes.empty()) {
        std::memcpy(plane.symbols.data(), bytes.data(), bytes.size());
      }
      if (plane.alphabet < 256 &&
          kernels.largest(plane.symbols.data(), plane.symbols.size()) >= plane.alphabet) {
        return Err(ErrorCode::kCorrupt, "a symbol is outside its alphabet of %d", plane.alphabet);
      }
    }
    if (reader.left() != 0) {
      return Err(ErrorCode::kCorrupt, "%zu bytes follow the last symbol", reader.left());
    }
    return {};
  }
};

Result<std::unique_ptr<EntropyCoder>> Make(const StageArgs& /*args*/, const StageSite& /*site*/) {
  return std::unique_ptr<EntropyCoder>(std::make_unique<Bytes>());
}

}  // namespace

const StageModule& BytesStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kCoder;
    module.name = "none";
    module.summary = "a byte a symbol";
    module.make_coder = Make;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
