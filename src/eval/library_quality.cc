// SPDX-License-Identifier: Apache-2.0
#include "eval/library_quality.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "codec/frame.h"
#include "codec/pipeline.h"
#include "eval/frame_coder.h"
#include "eval/statistics.h"

namespace kvik::eval {
namespace {

constexpr size_t kRatioPrompts = 2;
constexpr int32_t kLongPromptTokens = 7000;  // prompts are built to less, up to an item

// A profile ready to be measured.
struct Measuring {
  codec::Profile* profile = nullptr;
  std::unique_ptr<codec::FrameCodec> codec;
  std::unique_ptr<FrameCoder> coder;
  // By (workload, length), and as records will be sorted.
  std::map<std::pair<std::string, int32_t>, std::vector<PromptQuality>> prompts;
};

codec::Measured ToMeasured(const Estimate& estimate, double most) {
  // A bootstrap of few prompts may miss the value itself.
  const auto bounded = [&](double v) { return std::clamp(v, 0.0, most); };
  codec::Measured measured;
  measured.value = bounded(estimate.value);
  measured.low = std::min(bounded(estimate.low), measured.value);
  measured.high = std::max(bounded(estimate.high), measured.value);
  return measured;
}

codec::QualityRecord ToRecord(const std::string& workload, int32_t prompt_tokens,
                              std::span<const PromptQuality> prompts, uint64_t seed) {
  constexpr double kMost = 1e6;
  const CellQuality quality = Summarize(prompts, seed);
  codec::QualityRecord record;
  record.workload = workload;
  record.prompt_tokens = prompt_tokens;
  record.prompts = static_cast<int32_t>(quality.prompts);
  record.positions = quality.positions;
  record.q = ToMeasured(quality.q, 1);
  record.kl = ToMeasured(quality.kl, kMost);
  record.top1 = ToMeasured(quality.top1, 1);
  record.ppl_ratio = ToMeasured(quality.ppl_ratio, kMost);
  return record;
}

Result<std::vector<Measuring>> Prepare(const LibraryQualityInput& input,
                                       const LibraryQualityOptions& options,
                                       codec::ProfileLibrary& library) {
  std::vector<Measuring> measuring;
  for (codec::Profile& profile : library.profiles) {
    Measuring& one = measuring.emplace_back();
    one.profile = &profile;
    KVIK_ASSIGN(const codec::PipelineSpec spec, codec::PipelineSpec::Parse(profile.pipeline));
    KVIK_ASSIGN(one.codec, codec::FrameCodec::Create(spec, library.model, library.side_info,
                                                     input.model->options().isa));
    one.coder =
        std::make_unique<FrameCoder>(*one.codec, options.frame_tokens, input.pool->num_threads());
  }
  return measuring;
}

Result<void> MeasureCell(const LibraryQualityInput& input, const LibraryQualityOptions& options,
                         const Cell& cell, std::vector<Measuring>& measuring,
                         const std::function<void(int64_t positions)>& on_progress) {
  KVIK_ASSIGN(
      const CellPrompts prompts,
      CellPrompts::Create(input.items, cell, options.seed, *input.tokenizer, input.chat_template));
  KVIK_ASSIGN(const std::unique_ptr<RawCorpus> corpus,
              RawCorpus::Open(*input.model, *input.tokenizer, prompts, options.corpus));
  CellRunOptions run_options;
  run_options.positions = options.positions;
  run_options.seed = options.seed;
  CellRun run(*input.model, *input.pool, *input.tokenizer, *input.clock, prompts, *corpus,
              *input.log, run_options);
  run.on_progress = on_progress;
  std::vector<Measuring*> lossy;
  std::vector<KvCoder*> coders;
  for (Measuring& one : measuring) {
    if (one.profile->fidelity != codec::Fidelity::kExact) {
      lossy.push_back(&one);
      coders.push_back(one.coder.get());
    }
  }
  if (coders.empty()) {
    return {};
  }
  KVIK_ASSIGN(CellRunResult result, run.Run(coders));
  for (size_t i = 0; i < lossy.size(); ++i) {
    if (!result.coders[i]) {
      return result.coders[i].error().Wrap("profile " + lossy[i]->profile->name);
    }
    lossy[i]->prompts[{cell.workload, cell.target_tokens}] = std::move(result.prompts[i]);
  }
  return {};
}

// Records by cell, by workload, and of everything.
std::vector<codec::QualityRecord> Records(const Measuring& measured, uint64_t seed) {
  std::map<std::string, std::vector<PromptQuality>> pooled;
  std::vector<codec::QualityRecord> records;
  for (const auto& [cell, prompts] : measured.prompts) {
    if (cell.second != 0) {
      records.push_back(ToRecord(cell.first, cell.second, prompts, seed));
    }
    for (const std::string& name : {cell.first, std::string(codec::kUnifiedWorkload)}) {
      std::vector<PromptQuality>& pool = pooled[name];
      pool.insert(pool.end(), prompts.begin(), prompts.end());
    }
  }
  for (const auto& [name, prompts] : pooled) {
    records.push_back(ToRecord(name, 0, prompts, seed));
  }
  std::sort(records.begin(), records.end(),
            [](const codec::QualityRecord& a, const codec::QualityRecord& b) {
              return std::tie(a.workload, a.prompt_tokens) < std::tie(b.workload, b.prompt_tokens);
            });
  return records;
}

// Prompts of the workload with the longest cell, made long enough for all of kRatioTokens if the
// model can take as much.
Result<std::vector<RawPrompt>> LongPrompts(const LibraryQualityInput& input,
                                           const LibraryQualityOptions& options) {
  const Cell longest = *std::max_element(
      options.cells.begin(), options.cells.end(),
      [](const Cell& a, const Cell& b) { return a.target_tokens < b.target_tokens; });
  std::vector<RawPrompt> found;
  for (const int32_t tokens : {kLongPromptTokens, longest.target_tokens}) {
    KVIK_ASSIGN(const CellPrompts prompts,
                CellPrompts::Create(input.items, {longest.workload, tokens}, options.seed,
                                    *input.tokenizer, input.chat_template));
    KVIK_ASSIGN(const std::unique_ptr<RawCorpus> corpus,
                RawCorpus::Open(*input.model, *input.tokenizer, prompts, options.corpus));
    for (size_t i = 0; i < prompts.size() && found.size() < kRatioPrompts; ++i) {
      const size_t candidate[] = {i};
      KVIK_ASSIGN(std::vector<std::optional<RawPrompt>> got, corpus->Get(candidate));
      if (got[0]) {
        found.push_back(std::move(*got[0]));
      }
    }
    if (!found.empty()) {
      break;
    }
  }
  return found;
}

}  // namespace

Result<double> MeasureRatio(const codec::FrameCodec& codec, std::span<const RawPrompt> prompts,
                            int32_t tokens, int32_t frame_tokens) {
  codec::Workspace workspace;
  std::vector<std::byte> bytes;
  size_t raw_bytes = 0;
  size_t coded_bytes = 0;
  for (const RawPrompt& prompt : prompts) {
    const RawShape& shape = prompt.shape();
    if (shape.num_tokens < tokens) {
      continue;
    }
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      for (int32_t first = 0; first < tokens; first += frame_tokens) {
        const auto head_dim = static_cast<size_t>(shape.head_dim);
        codec::KvRows rows;
        rows.layer = layer;
        rows.first_token = first;
        rows.num_tokens = std::min(frame_tokens, tokens - first);
        rows.prompt_tokens = tokens;
        rows.head_stride = static_cast<size_t>(shape.num_tokens) * head_dim;
        const size_t offset = static_cast<size_t>(first) * head_dim;
        rows.keys = prompt.rows(layer, kv::KvPart::kKey).data() + offset;
        rows.values = prompt.rows(layer, kv::KvPart::kValue).data() + offset;
        bytes.clear();
        KVIK_ASSIGN(const size_t size,
                    codec.Encode(rows, codec::FrameParts::kBoth, workspace, bytes));
        coded_bytes += size;
        raw_bytes += static_cast<size_t>(rows.num_tokens) * head_dim *
                     static_cast<size_t>(shape.num_kv_heads) * 2 * sizeof(Bf16);
      }
    }
  }
  return coded_bytes > 0 ? static_cast<double>(raw_bytes) / static_cast<double>(coded_bytes) : 0.0;
}

Result<void> MeasureLibraryQuality(const LibraryQualityInput& input,
                                   const LibraryQualityOptions& options,
                                   codec::ProfileLibrary& library,
                                   const std::function<void(int64_t positions)>& on_progress) {
  if (options.cells.empty()) {
    return Err(ErrorCode::kInvalidInput, "no cells to measure quality in");
  }
  KVIK_ASSIGN(std::vector<Measuring> measuring, Prepare(input, options, library));
  KVIK_ASSIGN(const std::vector<RawPrompt> long_prompts, LongPrompts(input, options));
  for (Measuring& one : measuring) {
    one.profile->ratios.clear();
    for (const int32_t tokens : kRatioTokens) {
      KVIK_ASSIGN(const double cr,
                  MeasureRatio(*one.codec, long_prompts, tokens, options.frame_tokens));
      if (cr > 0) {
        one.profile->ratios.push_back({tokens, cr});
      }
    }
  }
  int64_t before = 0;
  int64_t last = 0;
  for (const Cell& cell : options.cells) {
    KVIK_TRY(MeasureCell(input, options, cell, measuring, [&](int64_t positions) {
      last = positions;
      if (on_progress) {
        on_progress(before + positions);
      }
    }));
    before += last;
    last = 0;
  }
  for (Measuring& one : measuring) {
    one.profile->quality.clear();
    if (one.profile->fidelity != codec::Fidelity::kExact) {
      one.profile->quality = Records(one, options.seed);
    }
  }
  return {};
}

}  // namespace kvik::eval
