// SPDX-License-Identifier: Apache-2.0
#include "codec/stages/basis_module.h"

#include <utility>

#include "codec/stages/calibrated.h"
#include "codec/stages/chain_rules.h"

namespace kvik::codec {
namespace {

template <BasisKind kKind>
Result<std::unique_ptr<Transform>> Make(const StageArgs& args, const StageSite& site) {
  KVIK_ASSIGN(const SideTensor* basis, Calibrated(site, "", {site.channels, site.channels}));
  return MakeLinearMap(site, basis->values, kKind, KeptChannels(args.Real("share"), site.channels));
}

std::optional<std::string> Refuse(const StageArgs& /*args*/, const PipelineSpec& pipeline,
                                  kv::KvPart part, size_t index) {
  if (const std::string before = FirstBefore(pipeline, part, index, {"klt", "qklt"});
      !before.empty()) {
    return "one basis is enough, and " + before + " stands before";
  }
  if (const std::string before = FirstBefore(pipeline, part, index, {"hadamard"});
      !before.empty()) {
    return "a basis undoes " + before + ": its coefficients are the same without it";
  }
  return std::nullopt;
}

}  // namespace

StageModule BasisModule(std::string name, std::string summary, BasisKind kind) {
  StageModule module;
  module.kind = StageKind::kTransform;
  module.name = std::move(name);
  module.summary = std::move(summary);
  ParamSpec share;
  share.name = "share";
  share.summary = "of the coefficients, the first ones, that are kept";
  share.type = ParamSpec::Type::kReal;
  share.min = 0;
  share.max = 1;
  share.default_value = ArgValue::Number(1);
  share.search = {ArgValue::Number(1), ArgValue::Number(0.75), ArgValue::Number(0.5)};
  module.params = {share};
  module.make_transform =
      kind == BasisKind::kOrthonormal ? Make<BasisKind::kOrthonormal> : Make<BasisKind::kAny>;
  module.refuse = Refuse;
  module.needs = {""};
  return module;
}

}  // namespace kvik::codec
