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
  const auto quarter = std::min(first.size(), static_cast<size_t>(options.sequence_tokens) / 2);
  for (int i = 0; i < 4; ++i) {
    pieces.repeated.insert(pieces.repeated.end(), first.begin(),
                           first.begin() + static_cast<ptrdiff_t>(quarter));
  }
  return pieces;
}

}  // namespace

Result<int> Calibrate(const CalibrateOptions& options) {
  const SystemClock clock;
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

  KVIK_ASSIGN(const Isa isa, SelectIsa());
  KVIK_ASSIGN(const std::string model_path, ResolveModel(options.runtime.model));
  KVIK_ASSIGN(const std::unique_ptr<model::ModelSource> source,
              model::ModelSource::Open(model_path));
  KVIK_ASSIGN(const std::unique_ptr<text::Tokenizer> tokenizer, model::LoadTokenizer(*source));
  std::optional<text::ChatTemplate> chat_template;
  if (!source->chat_template().empty()) {
    KVIK_ASSIGN(chat_template, text::ChatTemplate::Parse(source->chat_template()));
  }
  eval::CalibrationKvOptions kv_options;
  kv_options.max_sequences = options.sequences;
  kv_options.seed = options.seed;
  KVIK_ASSIGN(const Pieces pieces,
              CutTexts(texts, kv_options, *tokenizer, chat_template ? &*chat_template : nullptr));

  ThreadPool pool(options.runtime.threads > 0 ? options.runtime.threads : DefaultThreads());
  model::ModelOptions model_options;
  model_options.isa = isa;
  model_options.compute = options.runtime.compute;
  model_options.block_size_tokens = options.runtime.block_size_tokens;
  model_options.max_batch_rows = kMaxBatchRows;
  model_options.max_logit_rows = kMaxLogitRows;
  KVIK_ASSIGN(const std::unique_ptr<model::Model> model,
              model::Model::Load(*source, model_options, pool));
  const codec::ModelFacts facts = eval::ModelFactsOf(*model);

  int64_t tokens = static_cast<int64_t>(pieces.repeated.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    library.calibration.texts[i].tokens = pieces.texts.tokens_of_text[i];
    tokens += pieces.texts.tokens_of_text[i];
  }
  KVIK_ASSIGN(const eval::ModelSpeed speed, eval::MeasureModelSpeed(*model, clock));
  const double judged = 6.0 * 32 * 2 * facts.num_layers;
  // Beside the model there is arithmetic on its KV, which takes about as long again.
  const double seconds = 2 * (static_cast<double>(tokens) / speed.prefill_tokens_per_s +
                              judged / speed.judged_rows_per_s);
  std::fprintf(
      stderr,
      "calibrating %zu profiles for %s with %" PRId64 " tokens of text: about %s, %s of memory\n",
      profiles.size(), facts.name.c_str(), tokens,
      FormatDuration(static_cast<int64_t>(seconds)).c_str(),
      FormatByteSize(static_cast<uint64_t>(tokens) * model->kv_geometry().bytes_per_token())
          .c_str());

  eval::CalibrationKv kv;
  eval::CalibrationKv repeated;
  {
    Progress progress(clock, {.label = "prefill", .total = static_cast<uint64_t>(tokens)});
    int64_t before = 0;
    const auto on_tokens = [&](int64_t done) {
      progress.Update(static_cast<uint64_t>(before + done));
    };
    KVIK_ASSIGN(kv, eval::ComputeCalibrationKv(*model, *source, facts, pieces.texts.pieces,
                                               kv_options, on_tokens));
    before = kv.num_tokens();
    KVIK_ASSIGN(repeated, eval::ComputeCalibrationKv(*model, *source, facts, {{pieces.repeated}},
                                                     kv_options, on_tokens));
  }
  eval::CalibrationFacts measured;
  {
    Progress progress(clock, {.label = "what errors cost", .total = 1000});
    KVIK_ASSIGN(measured, eval::MeasureCalibrationFacts(
                              *model, kv, repeated.sequences.front(), options.seed, isa, pool,
                              [&](size_t done, size_t total) {
                                progress.Update(static_cast<uint64_t>(done) * 1000 / total);
                              }));
  }
  eval::Calibrator calibrator(kv, measured, isa, pool);
  {
    Progress progress(clock, {.label = "profiles", .total = profiles.size()});
    for (size_t i = 0; i < profiles.size(); ++i) {
      if (auto added = calibrator.Add(pipelines[i]); !added) {
        return added.error().Wrap("profile " + profiles[i].name);
      }
      progress.Update(i + 1);
    }
  }

  library.model = facts;
  library.side_info = std::make_shared<codec::SideInfo>(calibrator.side_info());
  library.calibration.command = options.command;
  library.calibration.numerics = model->numerics_tag();
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
  KVIK_TRY(SaveProfileLibrary(library, options.out));
  std::printf("%s: %zu profiles, %zu tensors, hash %s\n", options.out.c_str(),
              library.profiles.size(), library.side_info->tensors().size(),
              codec::ProfileLibraryHash(library).c_str());
  return 0;
}

}  // namespace kvik::app
