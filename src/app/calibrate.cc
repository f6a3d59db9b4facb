// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "app/models.h"
#include "app/profile_folder.h"
#include "app/text_file.h"
#include "base/byte_size.h"
#include "base/clock.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "codec/pipeline.h"
#include "codec/presets.h"
#include "eval/calibrate.h"
#include "eval/calibration_kv.h"
#include "eval/cell_run.h"
#include "eval/library_quality.h"
#include "eval/model_facts.h"
#include "eval/starter_profiles.h"
#include "model/model_source.h"
#include "model/tokenizer_source.h"

namespace kvik::app {
namespace {

constexpr int32_t kMaxBatchRows = 512;
constexpr int32_t kMaxLogitRows = 64;

Result<std::vector<eval::NamedPipeline>> ProfilesOf(const CalibrateOptions& options) {
  if (options.profiles.empty()) {
    return eval::StarterProfiles();
  }
  KVIK_ASSIGN(const std::string text, ReadTextFile(options.profiles));
  Result<std::vector<eval::NamedPipeline>> profiles = eval::ParseProfileList(text);
  if (!profiles) {
    return profiles.error().Wrap(options.profiles);
  }
  return profiles;
}

// Pieces of texts, and one that repeats itself four times.
struct Pieces {
  eval::CalibrationPieces texts;
  std::vector<TokenId> repeated;
};

Result<Pieces> CutTexts(const std::vector<eval::CalibrationTextInput>& texts,
                        const eval::CalibrationKvOptions& options, const text::Tokenizer& tokenizer,
                        const text::ChatTemplate* chat_template) {
  Pieces pieces;
  KVIK_ASSIGN(pieces.texts, eval::CutCalibrationTexts(texts, options, tokenizer, chat_template));
  const std::vector<TokenId>& first = pieces.texts.pieces.front();
  const auto passage = std::min(first.size(), static_cast<size_t>(options.sequence_tokens) / 2);
  for (int i = 0; i < 4; ++i) {
    pieces.repeated.insert(pieces.repeated.end(), first.begin(),
                           first.begin() + static_cast<ptrdiff_t>(passage));
  }
  return pieces;
}

// A loaded model and what speaks to it.
struct Bench {
  static Result<std::unique_ptr<Bench>> Create(const RuntimeOptions& options) {
    auto bench = std::make_unique<Bench>();
    KVIK_ASSIGN(bench->isa, SelectIsa());
    KVIK_ASSIGN(const std::string path, ResolveModel(options.model));
    KVIK_ASSIGN(bench->source, model::ModelSource::Open(path));
    KVIK_ASSIGN(bench->tokenizer, model::LoadTokenizer(*bench->source));
    if (!bench->source->chat_template().empty()) {
      KVIK_ASSIGN(bench->chat_template, text::ChatTemplate::Parse(bench->source->chat_template()));
    }
    bench->pool =
        std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : DefaultThreads());
    model::ModelOptions model_options;
    model_options.isa = bench->isa;
    model_options.compute = options.compute;
    model_options.kv_dtype = options.kv_dtype;
    model_options.block_size_tokens = options.block_size_tokens;
    model_options.max_batch_rows = kMaxBatchRows;
    model_options.max_logit_rows = kMaxLogitRows;
    KVIK_ASSIGN(bench->model, model::Model::Load(*bench->source, model_options, *bench->pool));
    bench->facts = eval::ModelFactsOf(*bench->model);
    return bench;
  }
  [[nodiscard]] const text::ChatTemplate* chat() const {
    return chat_template ? &*chat_template : nullptr;
  }

  SystemClock clock;
  Isa isa = Isa::kScalar;
  std::unique_ptr<model::ModelSource> source;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<model::Model> model;
  codec::ModelFacts facts;
};

// Nothing but quality is missing in what it returns.
Result<codec::ProfileLibrary> MakeLibrary(const CalibrateOptions& options, Bench& bench) {
  KVIK_ASSIGN(const std::vector<eval::NamedPipeline> profiles, ProfilesOf(options));
  std::vector<codec::PipelineSpec> pipelines;
  for (const eval::NamedPipeline& profile : profiles) {
    Result<codec::PipelineSpec> spec = codec::ParsePipelineOrPreset(profile.pipeline);
    if (!spec) {
      return spec.error().Wrap("profile " + profile.name);
    }
    pipelines.push_back(std::move(spec).value());
  }
  codec::ProfileLibrary library;
  std::vector<eval::CalibrationTextInput> texts;
  for (const std::string& path : options.texts) {
    KVIK_ASSIGN(std::string text, ReadTextFile(path));
    const std::string name = std::filesystem::path(path).filename().string();
    library.calibration.texts.push_back(
        {.name = name, .sha256 = ToHex(Sha256Of(std::as_bytes(std::span(text)))), .tokens = 0});
    texts.push_back({name, std::move(text)});
  }
  eval::CalibrationKvOptions kv_options;
  kv_options.max_sequences = options.sequences;
  kv_options.seed = options.seed;
  KVIK_ASSIGN(const Pieces pieces, CutTexts(texts, kv_options, *bench.tokenizer, bench.chat()));
  auto tokens = static_cast<int64_t>(pieces.repeated.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    library.calibration.texts[i].tokens = pieces.texts.tokens_of_text[i];
    tokens += pieces.texts.tokens_of_text[i];
  }
  KVIK_ASSIGN(const eval::ModelSpeed speed,
              eval::MeasureModelSpeed(*bench.model, bench.clock, kMaxLogitRows));
  const double judged = 6.0 * 32 * 2 * bench.facts.num_layers;
  // Beside the model there is arithmetic on its KV, which takes about as long again.
  const double seconds = 2 * (static_cast<double>(tokens) / speed.prefill_tokens_per_s +
                              judged / speed.judged_rows_per_s);
  std::fprintf(
      stderr,
      "calibrating %zu profiles for %s with %" PRId64 " tokens of text: about %s, %s of memory\n",
      profiles.size(), bench.facts.name.c_str(), tokens,
      FormatDuration(static_cast<int64_t>(seconds)).c_str(),
      FormatByteSize(static_cast<uint64_t>(tokens) * bench.model->kv_geometry().bytes_per_token())
          .c_str());

  eval::CalibrationKv kv;
  eval::CalibrationKv repeated;
  {
    Progress progress(bench.clock, {.label = "prefill", .total = static_cast<uint64_t>(tokens)});
    int64_t before = 0;
    const auto on_tokens = [&](int64_t done) {
      progress.Update(static_cast<uint64_t>(before + done));
    };
    KVIK_ASSIGN(kv, eval::ComputeCalibrationKv(*bench.model, *bench.source, bench.facts,
                                               pieces.texts.pieces, kv_options, on_tokens));
    before = kv.num_tokens();
    KVIK_ASSIGN(repeated, eval::ComputeCalibrationKv(*bench.model, *bench.source, bench.facts,
                                                     {{pieces.repeated}}, kv_options, on_tokens));
  }
  eval::CalibrationFacts measured;
  {
    Progress progress(bench.clock, {.label = "what errors cost", .total = 1000});
    KVIK_ASSIGN(measured, eval::MeasureCalibrationFacts(
                              *bench.model, kv, repeated.sequences.front(), options.seed, bench.isa,
                              *bench.pool, [&](size_t done, size_t total) {
                                progress.Update(static_cast<uint64_t>(done) * 1000 / total);
                              }));
  }
  eval::Calibrator calibrator(kv, measured, bench.isa, *bench.pool);
  {
    Progress progress(bench.clock, {.label = "profiles", .total = profiles.size()});
    for (size_t i = 0; i < profiles.size(); ++i) {
      if (auto added = calibrator.Add(pipelines[i]); !added) {
        return added.error().Wrap("profile " + profiles[i].name);
      }
      progress.Update(i + 1);
    }
  }

  library.model = bench.facts;
  library.side_info = std::make_shared<codec::SideInfo>(calibrator.side_info());
  library.calibration.command = options.command;
  library.calibration.numerics = bench.model->numerics_tag();
  library.calibration.seed = options.seed;
  for (size_t i = 0; i < profiles.size(); ++i) {
    codec::Profile profile;
    profile.name = profiles[i].name;
    profile.pipeline = pipelines[i].ToString();
    library.profiles.push_back(std::move(profile));
  }
  std::sort(library.profiles.begin(), library.profiles.end(),
            [](const codec::Profile& a, const codec::Profile& b) { return a.name < b.name; });
  KVIK_TRY(codec::CompleteProfiles(library));
  return library;
}

Result<void> MeasureQuality(const CalibrateOptions& options, Bench& bench,
                            codec::ProfileLibrary& library) {
  KVIK_ASSIGN(const eval::EvalData data, eval::LoadEvalData(options.data));
  eval::LibraryQualityOptions quality;
  if (options.cells.empty()) {
    quality.cells = eval::StandardCells(data.items);
  } else {
    KVIK_ASSIGN(quality.cells, eval::ParseCells(options.cells));
  }
  const std::string folder =
      options.cache_folder.empty() ? CacheFolder() + "/eval" : options.cache_folder;
  quality.positions = options.positions;
  quality.seed = options.seed;
  quality.corpus.folder = folder + "/raw";
  KVIK_ASSIGN(const std::unique_ptr<eval::ResultsLog> log,
              eval::ResultsLog::Open(folder + "/results.jsonl"));
  const auto lossy = static_cast<size_t>(std::count_if(
      library.profiles.begin(), library.profiles.end(),
      [](const auto& profile) { return profile.fidelity != codec::Fidelity::kExact; }));
  const auto positions = static_cast<int64_t>(lossy * quality.cells.size()) * options.positions;
  KVIK_ASSIGN(const eval::ModelSpeed speed,
              eval::MeasureModelSpeed(*bench.model, bench.clock, kMaxLogitRows));
  // Every position is judged once a profile, and its prompt computed once and coded each time,
  // which takes about as long as judging.
  double seconds = 2 * static_cast<double>(positions) / speed.judged_rows_per_s;
  for (const eval::Cell& cell : quality.cells) {
    const double prompts =
        static_cast<double>(options.positions) / quality.corpus.continuation_tokens;
    const int32_t tokens = cell.target_tokens > 0 ? cell.target_tokens : 4096;
    seconds += prompts * tokens / speed.prefill_tokens_per_s;
  }
  std::fprintf(stderr,
               "measuring %zu lossy profiles in %zu cells, %" PRId64
               " positions each: about %s, less where results are known\n",
               lossy, quality.cells.size(), options.positions,
               FormatDuration(static_cast<int64_t>(seconds)).c_str());
  Progress progress(bench.clock, {.label = "quality", .total = static_cast<uint64_t>(positions)});
  KVIK_TRY(eval::MeasureLibraryQuality(
      {.model = bench.model.get(),
       .pool = bench.pool.get(),
       .tokenizer = bench.tokenizer.get(),
       .chat_template = bench.chat(),
       .items = data.items,
       .log = log.get(),
       .clock = &bench.clock},
      quality, library, [&](int64_t done) {
        progress.Update(std::min(static_cast<uint64_t>(done), static_cast<uint64_t>(positions)));
      }));
  library.evaluation = codec::EvaluationRecord{
      .command = options.command, .numerics = bench.model->numerics_tag(), .seed = options.seed};
  return {};
}

}  // namespace

Result<int> Calibrate(const CalibrateOptions& options) {
  KVIK_ASSIGN(const std::unique_ptr<Bench> bench, Bench::Create(options.runtime));
  codec::ProfileLibrary library;
  if (!options.texts.empty()) {
    KVIK_ASSIGN(library, MakeLibrary(options, *bench));
    KVIK_TRY(SaveProfileLibrary(library, options.out));
  } else {
    Result<codec::ProfileLibrary> there = LoadProfileLibrary(options.out);
    if (!there) {
      return Error{there.error().code,
                   there.error().message + "; --texts makes a library, without it one is measured"};
    }
    library = std::move(there).value();
    if (library.model != bench->facts) {
      return Err(ErrorCode::kInvalidInput,
                 "%s is of another model, or of another arithmetic of this one: calibrate it with "
                 "--texts",
                 options.out.c_str());
    }
  }
  if (!options.data.empty()) {
    KVIK_TRY(MeasureQuality(options, *bench, library));
    KVIK_TRY(SaveProfileLibrary(library, options.out));
  }
  std::printf("%s: %zu profiles, %zu tensors, hash %s\n", options.out.c_str(),
              library.profiles.size(), library.side_info->tensors().size(),
              codec::ProfileLibraryHash(library).c_str());
  return 0;
}

}  // namespace kvik::app
