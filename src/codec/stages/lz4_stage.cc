// SPDX-License-Identifier: Apache-2.0
// The coder `lz4`: the LZ4 library over packed symbols (codec/library_coder.h), one LZ4 block.
// It finds repetitions only: it pays for planes of few values.
#include <lz4.h>

#include <limits>
#include <memory>

#include "codec/library_coder.h"

namespace kvik::codec {
namespace {

class Lz4 final : public Compressor {
 public:
  [[nodiscard]] size_t Compress(std::span<const std::byte> in,
                                std::span<std::byte> out) const override {
    if (in.size() > LZ4_MAX_INPUT_SIZE) {
      return 0;
    }
    const int size = LZ4_compress_default(
        reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
        static_cast<int>(in.size()), static_cast<int>(out.size()));
    return size <= 0 ? 0 : static_cast<size_t>(size);
  }

  [[nodiscard]] bool Decompress(std::span<const std::byte> in,
                                std::span<std::byte> out) const override {
    constexpr auto kMost = static_cast<size_t>(std::numeric_limits<int>::max());
    if (in.size() > kMost || out.size() > kMost) {
      return false;
    }
    const int size = LZ4_decompress_safe(reinterpret_cast<const char*>(in.data()),
                                         reinterpret_cast<char*>(out.data()),
                                         static_cast<int>(in.size()), static_cast<int>(out.size()));
    return size >= 0 && static_cast<size_t>(size) == out.size();
  }
};

Result<std::unique_ptr<EntropyCoder>> Make(const StageArgs& /*args*/, const StageSite& /*site*/) {
  return MakeLibraryCoder(std::make_unique<Lz4>());
}

}  // namespace

const StageModule& Lz4Stage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kCoder;
    module.name = "lz4";
    module.summary = "the LZ4 library over packed symbols";
    module.make_coder = Make;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
