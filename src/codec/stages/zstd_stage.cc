// SPDX-License-Identifier: Apache-2.0
// The coder `zstd`: the Zstandard library over packed symbols (codec/library_coder.h), one zstd
// frame without size and checksum: both are known otherwise.
#include <zstd.h>

#include <memory>

#include "codec/library_coder.h"

namespace kvik::codec {
namespace {

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

class Zstd final : public Compressor {
 public:
  explicit Zstd(int level) : level_(level) {}

  [[nodiscard]] size_t Compress(std::span<const std::byte> in,
                                std::span<std::byte> out) const override {
    thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
    if (context == nullptr) {
      return 0;
    }
    ZSTD_CCtx_reset(context.get(), ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level_);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 0);
    const size_t size = ZSTD_compress2(context.get(), out.data(), out.size(), in.data(), in.size());
    return ZSTD_isError(size) != 0 ? 0 : size;
  }

  // Into memory of the right size: what a frame says about windows and sizes allocates nothing.
  [[nodiscard]] bool Decompress(std::span<const std::byte> in,
                                std::span<std::byte> out) const override {
    thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
    if (context == nullptr) {
      return false;
    }
    const size_t size =
        ZSTD_decompressDCtx(context.get(), out.data(), out.size(), in.data(), in.size());
    return ZSTD_isError(size) == 0 && size == out.size();
  }

 private:
  int level_;
};

Result<std::unique_ptr<EntropyCoder>> Make(const StageArgs& args, const StageSite& /*site*/) {
  return MakeLibraryCoder(std::make_unique<Zstd>(static_cast<int>(args.Integer("level"))));
}

}  // namespace

const StageModule& ZstdStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kCoder;
    module.name = "zstd";
    module.summary = "the Zstandard library over packed symbols";
    ParamSpec level;
    level.name = "level";
    level.summary = "of the library: higher is slower and rarely smaller";
    level.min = 1;
    level.max = 19;
    level.default_value = ArgValue::Number(1);
    module.params = {level};
    module.make_coder = Make;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
