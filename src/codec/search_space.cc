// SPDX-License-Identifier: Apache-2.0
#include "codec/search_space.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace kvik::codec {
namespace {

// A family belongs to the published methods it was taken from; "" is any.
struct TransformFamily {
  const char* name;
  const char* text;
  std::vector<std::string_view> methods;
};

struct QuantizerFamily {
  const char* name;
  std::vector<std::string_view> methods;
  std::vector<std::string> texts;
};

const std::vector<TransformFamily>& Transforms() {
  static const std::vector<TransformFamily> kFamilies = {
      {"none", "none", {"kivi", "cachegen", "mixhq"}},
      {"center", "center", {"ours"}},
      {"hadamard", "hadamard", {"quarot", "mixhq"}},
      {"center+hadamard", "center+hadamard", {"ours"}},
      {"selfcenter+hadamard", "selfcenter+hadamard", {"ours"}},
      {"prerope", "k:prerope|v:none", {"kvquant"}},
      {"prerope+center", "k:prerope+center|v:center", {"ours"}},
      {"prerope+center+hadamard", "k:prerope+center+hadamard|v:center+hadamard", {"ours"}},
      {"affine-diagonal", "affine(kind=diagonal)", {"affinequant"}},
      {"affine-full", "affine(kind=full)", {"affinequant"}},
      {"delta", "delta(group=10)", {"cachegen"}},
      {"delta+hadamard", "delta(group=10)+hadamard", {"cachegen"}},
      {"klt", "center+klt", {"kvtc"}},
      {"prerope+klt", "k:prerope+center+klt|v:center+klt", {"kvtc", "ours"}},
      {"prerope+qklt", "k:prerope+center+qklt|v:center+qklt", {"ours"}},
  };
  return kFamilies;
}

std::string Both(const std::string& key, const std::string& value) {
  return "k:" + key + "|v:" + value;
}

// Levels (high, low) of keys and of values, and the share of heads with the low ones.
std::vector<std::string> MixHqGrid() {
  std::vector<std::pair<int, int>> levels;
  for (const int high : {16, 12, 10, 8, 6, 5}) {
    for (const int low : {8, 6, 4, 3}) {
      if (low <= high) {
        levels.emplace_back(high, low);
      }
    }
  }
  std::vector<std::string> texts;
  for (int tenths = 1; tenths <= 9; ++tenths) {
    for (const auto& [key_high, key_low] : levels) {
      for (const auto& [value_high, value_low] : levels) {
        texts.push_back(
            Both(Format("uniform(levels=mix(0.%d,%d,%d),per=channel)", tenths, key_high, key_low),
                 Format("uniform(levels=mix(0.%d,%d,%d),per=token,group=128)", tenths, value_high,
                        value_low)));
      }
    }
  }
  return texts;
}

// A few points of the same grid, to go with transforms that are not MixHQ's.
std::vector<std::string> MixHqPoints() {
  std::vector<std::string> texts;
  for (const int tenths : {3, 5, 7}) {
    for (const auto& [high, low] :
         std::vector<std::pair<int, int>>{{16, 8}, {16, 6}, {12, 4}, {8, 4}, {6, 3}}) {
      texts.push_back(
          Both(Format("uniform(levels=mix(0.%d,%d,%d),per=channel)", tenths, high, low),
               Format("uniform(levels=mix(0.%d,%d,%d),per=token,group=128)", tenths, high, low)));
    }
  }
  return texts;
}

const std::vector<QuantizerFamily>& Quantizers() {
  static const std::vector<QuantizerFamily> kFamilies = [] {
    std::vector<QuantizerFamily> families;
    families.push_back({"bf16", {}, {"none"}});
    QuantizerFamily fp8{"fp8", {}, {}};
    for (const char* per : {"tensor", "token", "channel"}) {
      fp8.texts.push_back(Format("fp8(per=%s)", per));
    }
    families.push_back(std::move(fp8));

    QuantizerFamily kivi{"kivi", {"kivi"}, {}};
    for (const int levels : {2, 3, 4, 5, 6, 8, 12, 16, 32}) {
      for (const int group : {32, 64}) {
        for (const int recent : {0, 128}) {
          kivi.texts.push_back(Both(
              Format("uniform(levels=%d,per=channel,group=%d,recent=%d)", levels, group, recent),
              Format("uniform(levels=%d,per=token,group=%d,recent=%d)", levels, group, recent)));
        }
      }
    }
    families.push_back(std::move(kivi));

    QuantizerFamily by_token{"token", {"quarot", "affinequant"}, {}};
    for (const int levels : {3, 4, 6, 8, 12, 16, 32}) {
      by_token.texts.push_back(Format("uniform(levels=%d,per=token,group=128)", levels));
    }
    families.push_back(std::move(by_token));

    QuantizerFamily cachegen{"cachegen", {"cachegen"}, {}};
    for (const auto& [key, value] :
         std::vector<std::pair<const char*, const char*>>{{"32,16,12", "32,16,16"},
                                                          {"24,12,9", "24,12,12"},
                                                          {"16,8,6", "16,8,8"},
                                                          {"64,32,24", "64,32,32"},
                                                          {"12,6,4", "12,6,6"}}) {
      for (const char* per : {"token", "tensor"}) {
        cachegen.texts.push_back(
            Both(Format("uniform(levels=thirds(%s),mode=symmetric,per=%s)", key, per),
                 Format("uniform(levels=thirds(%s),mode=symmetric,per=%s)", value, per)));
      }
    }
    families.push_back(std::move(cachegen));

    QuantizerFamily pyramid{"pyramid", {"pyramid"}, {}};
    for (const auto& [first, last] :
         std::vector<std::pair<int, int>>{{32, 8}, {16, 8}, {16, 4}, {8, 4}}) {
      pyramid.texts.push_back(
          Both(Format("uniform(levels=pyramid(%d,%d),per=channel,sinks=4)", first, last),
               Format("uniform(levels=pyramid(%d,%d),per=token,group=128,sinks=4)", first, last)));
    }
    families.push_back(std::move(pyramid));

    families.push_back({"mixhq", {"mixhq"}, MixHqPoints()});

    QuantizerFamily ecsq{"ecsq", {"ours", "kvtc"}, {}};
    for (const double d : {0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5}) {
      ecsq.texts.push_back(Format("ecsq(d=%g)", d));
      for (const double ratio : {1.5, 2.0}) {  // coarser values than keys
        ecsq.texts.push_back(Both(Format("ecsq(d=%g)", d), Format("ecsq(d=%g)", d * ratio)));
      }
    }
    families.push_back(std::move(ecsq));
    return families;
  }();
  return kFamilies;
}

bool ShareAMethod(const std::vector<std::string_view>& a, const std::vector<std::string_view>& b) {
  return a.empty() || b.empty() || std::any_of(a.begin(), a.end(), [&](std::string_view method) {
           return std::find(b.begin(), b.end(), method) != b.end();
         });
}

std::string TransformsAndQuantizer(const PipelineSpec& pipeline) {
  const std::string text = pipeline.ToString();
  return text.substr(0, text.rfind(" -> "));
}

}  // namespace

SearchSpace EnumerateSearchSpace() {
  SearchSpace space;
  std::set<std::string> seen;
  const auto add = [&](const TransformFamily& transforms, const QuantizerFamily& quantizer,
                       const std::string& text) {
    const std::string pipeline = std::string(transforms.text) + " -> " + text + " -> rans";
    auto parsed = PipelineSpec::Parse(pipeline);
    if (!parsed) {
      KVIK_CHECK(parsed.error().code == ErrorCode::kInvalidInput);
      space.refused.push_back({pipeline, parsed.error().message});
      return;
    }
    if (seen.insert(TransformsAndQuantizer(*parsed)).second) {
      space.candidates.push_back({*std::move(parsed), transforms.name, quantizer.name,
                                  !ShareAMethod(transforms.methods, quantizer.methods)});
    }
  };
  for (const TransformFamily& transforms : Transforms()) {
    for (const QuantizerFamily& quantizer : Quantizers()) {
      for (const std::string& text : quantizer.texts) {
        add(transforms, quantizer, text);
      }
    }
  }
  const TransformFamily& hadamard = Transforms()[2];
  const QuantizerFamily mixhq{"mixhq", {"mixhq"}, MixHqGrid()};
  for (const std::string& text : mixhq.texts) {
    add(hadamard, mixhq, text);
  }
  return space;
}

const std::vector<std::string>& CodersToSearch() {
  static const std::vector<std::string> kCoders = {"none", "pack", "rans", "zstd", "lz4"};
  return kCoders;
}

PipelineSpec WithCoder(const PipelineSpec& pipeline, const std::string& coder) {
  const std::string text = TransformsAndQuantizer(pipeline) + " -> " + coder;
  auto parsed = PipelineSpec::Parse(text);
  KVIK_CHECK(parsed.has_value(), "%s", parsed.error().message.c_str());
  return *std::move(parsed);
}

}  // namespace kvik::codec
