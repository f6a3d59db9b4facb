// SPDX-License-Identifier: Apache-2.0
#include "codec/presets.h"

#include <algorithm>
#include <string>

#include "base/format.h"

namespace kvik::codec {
namespace {

constexpr int32_t kChunk = 1536;  // CacheGen's; the others have no limit of their own

}  // namespace

const std::vector<Preset>& AllPresets() {
  static const std::vector<Preset> kPresets = {
      {"lossless", "none -> none -> rans", 0, false, "DFloat11 (Zhang et al. 2025), for weights",
       "exponents are entropy coded, signs and mantissas stay as they are: bit exact",
       "rANS instead of Huffman codes; applied to KV"},
      {"kivi-2",
       "k:none|v:none -> k:uniform(levels=4,per=channel,group=32,recent=128)|"
       "v:uniform(levels=4,per=token,group=32,recent=128) -> pack",
       kChunk, false, "KIVI (Liu et al. 2024)",
       "keys by channel, values by token, asymmetric, groups of 32, half-precision bounds, "
       "the last 128 tokens in full",
       "the residual window is counted once for the prompt, since what follows it is decoded here "
       "and never quantized"},
      {"kivi-4",
       "k:none|v:none -> k:uniform(levels=16,per=channel,group=32,recent=128)|"
       "v:uniform(levels=16,per=token,group=32,recent=128) -> pack",
       kChunk, false, "KIVI (Liu et al. 2024)", "as kivi-2, with 4 bits", "as kivi-2"},
      {"cachegen",
       "delta(group=10) -> k:uniform(levels=thirds(32,16,12),mode=symmetric,per=token)|"
       "v:uniform(levels=thirds(32,16,16),mode=symmetric,per=token) -> rans(tables=adaptive)",
       kChunk, false, "CacheGen (Liu et al. 2024)",
       "differences to an anchor every 10 tokens, anchors in 8 bits, one range a token over all "
       "heads, fewer bins in later layers (keys 32, 16, 12, values 32, 16), entropy coding; chunks "
       "of 1,536 tokens",
       "rANS instead of an arithmetic coder, one table a layer and part instead of a channel: the "
       "tables are counted here, and those of channels cost more than they save; all bins are "
       "used, while its code leaves one out so that one stands for 0"},
      {"cachegen-2",
       "delta(group=10) -> k:uniform(levels=thirds(24,12,9),mode=symmetric,per=token)|"
       "v:uniform(levels=thirds(24,12,12),mode=symmetric,per=token) -> rans(tables=adaptive)",
       kChunk, false, "CacheGen (Liu et al. 2024)", "as cachegen, level 2: bins times 3/4",
       "as cachegen"},
      {"cachegen-3",
       "delta(group=10) -> k:uniform(levels=thirds(16,8,6),mode=symmetric,per=token)|"
       "v:uniform(levels=thirds(16,8,8),mode=symmetric,per=token) -> rans(tables=adaptive)",
       kChunk, false, "CacheGen (Liu et al. 2024)", "as cachegen, level 3: bins times 1/2",
       "as cachegen"},
      {"quarot-4", "hadamard -> uniform(levels=16,per=token,group=128) -> pack", 0, false,
       "QuaRot (Ashkboos et al. 2024)",
       "keys after their rotary turn and values rotated by a Hadamard matrix with random signs, "
       "4 bits by token, asymmetric, groups of 128 channels or a head if that is less",
       "weights and activations are not touched; the rotation is undone on decoding instead of "
       "being folded into the queries; ranges are not clipped"},
      {"affinequant-diagonal",
       "affine(kind=diagonal) -> uniform(levels=16,per=token,group=128) -> pack", 0, true,
       "AffineQuant (Ma et al. 2024)", "a calibrated scale a channel before 4 bits by token",
       "scales come from second moments of the KV instead of gradient steps on the layer's output"},
      {"affinequant-full", "affine(kind=full) -> uniform(levels=16,per=token,group=128) -> pack", 0,
       true, "AffineQuant (Ma et al. 2024)", "a calibrated invertible matrix a head before 4 bits",
       "the matrix comes from second moments of the KV instead of gradient steps"},
      {"mixhq",
       "hadamard -> k:uniform(levels=mix(0.5,16,6),per=channel)|"
       "v:uniform(levels=mix(0.5,8,4),per=token,group=128) -> rans(tables=adaptive)",
       kChunk, true, "KVServe (Liu et al. 2026), one point of its grid",
       "heads with low retrieval scores get fewer levels, keys by channel over all tokens of the "
       "prompt, values by token",
       "scores are calibrated once a model"},
      {"duoattention", "keep(sinks=64,recent=256,streaming=0.5) -> none -> none", 0, true,
       "DuoAttention (Xiao et al. 2024)",
       "half of the heads keep the first 64 and the last 256 tokens only; the other slots are "
       "masked, not zeroed",
       "heads are ranked by calibrated attention mass instead of trained gates"},
      {"kvtc", "k:prerope+center+klt|v:center+klt -> ecsq -> zstd", 0, true,
       "KVTC (Staniszewski and Lancucki 2025)",
       "keys before their rotary turn, calibrated principal components, bits by what a component "
       "is worth, a dictionary coder with entropy coding, first tokens protected",
       "one step for all components (reverse water-filling) instead of a dynamic program over "
       "integer bits; first tokens get finer steps instead of staying raw, recent ones none"},
  };
  return kPresets;
}

const Preset* FindPreset(std::string_view name) {
  const auto& presets = AllPresets();
  const auto found = std::find_if(presets.begin(), presets.end(),
                                  [&](const Preset& preset) { return preset.name == name; });
  return found == presets.end() ? nullptr : &*found;
}

Result<PipelineSpec> ParsePipelineOrPreset(std::string_view text) {
  if (const Preset* const preset = FindPreset(text)) {
    return PipelineSpec::Parse(preset->pipeline);
  }
  if (text.find("->") == std::string_view::npos && text.size() <= 64) {
    std::string known;
    for (const Preset& preset : AllPresets()) {
      known += known.empty() ? "" : ", ";
      known += preset.name;
    }
    return Error{ErrorCode::kInvalidInput,
                 Format("\"%.*s\" is neither a pipeline (transforms -> quantizer -> coder) nor a "
                        "preset; presets: ",
                        static_cast<int>(text.size()), text.data()) +
                     known};
  }
  return PipelineSpec::Parse(text);
}

}  // namespace kvik::codec
