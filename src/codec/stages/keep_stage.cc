// SPDX-License-Identifier: Apache-2.0
// The selector `keep`: streaming heads keep the first and the most recent tokens only
// [DuoAttention].
//
// Heads are scored by how much they look at what lies between; the lowest `streaming` share of all
// heads of all layers streams, the others keep everything. Where the prompt ends is not known, or
// has not been reached, nothing after the first tokens is dropped.
//
// Calibrated: "scores/<method>" [layers, kv_heads], high where the middle of the text matters.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "codec/allocation.h"
#include "codec/side_info.h"
#include "codec/stage.h"
#include "codec/stages/calibrated.h"

namespace kvik::codec {
namespace {

class Keep final : public Selector {
 public:
  Keep(std::vector<bool> streams, int32_t kv_heads, int64_t sinks, int64_t recent)
      : streams_(std::move(streams)), kv_heads_(kv_heads), sinks_(sinks), recent_(recent) {}

  void Kept(int32_t layer, int32_t head, int32_t first_token, int32_t end_token,
            int32_t prompt_tokens, std::vector<TokenRange>& kept) const override {
    kept.clear();
    const auto cell =
        static_cast<size_t>(layer) * static_cast<size_t>(kv_heads_) + static_cast<size_t>(head);
    int64_t sinks_end = 0;
    int64_t recent_first = 0;
    if (streams_[cell] && prompt_tokens > 0) {
      sinks_end = sinks_;
      recent_first = prompt_tokens - recent_;
    }
    if (recent_first <= sinks_end) {  // nothing lies between
      sinks_end = 0;
      recent_first = 0;
    }
    Add(first_token, std::min<int64_t>(end_token, sinks_end), kept);
    Add(std::max<int64_t>(first_token, recent_first), end_token, kept);
  }

 private:
  static void Add(int64_t first, int64_t end, std::vector<TokenRange>& kept) {
    if (first < end) {
      kept.push_back({static_cast<int32_t>(first), static_cast<int32_t>(end)});
    }
  }

  std::vector<bool> streams_;  // [layers, kv_heads]
  int32_t kv_heads_;
  int64_t sinks_;
  int64_t recent_;
};

Result<std::unique_ptr<Selector>> Make(const StageArgs& args, const StageSite& site) {
  StageSite scores_site = site;
  scores_site.side_key = "scores/" + args.Word("scores");
  KVIK_ASSIGN(const SideTensor* scores, Calibrated(scores_site, "", {}));
  const size_t cells = NumCells(*site.model);
  std::vector<size_t> order(cells);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores->values[a] < scores->values[b]; });
  order.resize(
      static_cast<size_t>(std::floor(args.Real("streaming") * static_cast<double>(cells) + 0.5)));
  std::vector<bool> streams(cells, false);
  for (const size_t cell : order) {
    streams[cell] = true;
  }
  return std::unique_ptr<Selector>(std::make_unique<Keep>(
      std::move(streams), site.model->num_kv_heads, args.Integer("sinks"), args.Integer("recent")));
}

ParamSpec Tokens(const char* name, const char* summary, double value) {
  ParamSpec param;
  param.name = name;
  param.summary = summary;
  param.type = ParamSpec::Type::kInteger;
  param.min = 0;
  param.max = 1 << 20;
  param.default_value = ArgValue::Number(value);
  return param;
}

}  // namespace

const StageModule& KeepStage() {
  static const StageModule kModule = [] {
    StageModule module;
    module.kind = StageKind::kSelector;
    module.name = "keep";
    module.summary = "a share of the heads keeps the first and the most recent tokens only";
    ParamSpec streaming;
    streaming.name = "streaming";
    streaming.summary = "share of all heads that keep first and recent tokens only";
    streaming.type = ParamSpec::Type::kReal;
    streaming.min = 0;
    streaming.max = 1;
    streaming.default_value = ArgValue::Number(0.5);
    for (const double share : {0.5, 0.25, 0.6, 0.7, 0.8, 0.9}) {
      streaming.search.push_back(ArgValue::Number(share));
    }
    module.params = {Tokens("sinks", "first tokens that every head keeps", 64),
                     Tokens("recent", "last tokens of the prompt that every head keeps", 256),
                     streaming, ScoresParam("what heads are ranked by")};
    module.make_selector = Make;
    return module;
  }();
  return kModule;
}

}  // namespace kvik::codec
