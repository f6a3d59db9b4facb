// SPDX-License-Identifier: Apache-2.0
// Cells one after the other, all pipelines on each: a prompt's raw run is then loaded and computed
// once for all of them.
#include "app/eval.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "app/eval_report.h"
#include "app/models.h"
#include "app/plot_files.h"
#include "app/profile_folder.h"
#include "base/byte_size.h"
#include "base/format.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "codec/presets.h"
#include "eval/cell_run.h"
#include "eval/frame_coder.h"
#include "eval/library_binding.h"
#include "eval/model_facts.h"
#include "eval/task_score.h"
#include "model/tokenizer_source.h"

namespace kvik::app {
namespace {

constexpr int32_t kRequestTokens = 1536;  // of a frame where nothing else is said
constexpr int32_t kBatchRows = 512;
constexpr int32_t kLogitRows = 512;  // several pipelines' at a time

// What a name on the command line stands for. Without a coder: why there is none.
struct Candidate {
  std::string name;
  std::string pipeline;  // canonical
  int32_t frame_tokens = kRequestTokens;
  std::unique_ptr<codec::FrameCodec> codec = nullptr;
  std::unique_ptr<eval::FrameCoder> coder = nullptr;
  Error error = {};
};

struct Loaded {
  std::string path;
  Isa isa = Isa::kScalar;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::unique_ptr<model::Model> model;
};

// The parts of a runtime that evaluation needs: no engine and no cache.
Result<Loaded> LoadModel(const RuntimeOptions& options) {
  Loaded loaded;
  KVIK_ASSIGN(loaded.isa, SelectIsa());
  KVIK_ASSIGN(loaded.path, ResolveModel(options.model));
  KVIK_ASSIGN(const std::unique_ptr<model::ModelSource> source,
              model::ModelSource::Open(loaded.path));
  KVIK_ASSIGN(loaded.tokenizer, model::LoadTokenizer(*source));
  if (!source->chat_template().empty()) {
    Result<text::ChatTemplate> parsed = text::ChatTemplate::Parse(source->chat_template());
    if (!parsed) {
      return parsed.error().Wrap(source->path() + ": chat template");
    }
    loaded.chat_template = std::move(*parsed);
  }
  loaded.pool =
      std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : DefaultThreads());
  model::ModelOptions model_options;
  model_options.isa = loaded.isa;
  model_options.compute = options.compute;
  model_options.kv_dtype = options.kv_dtype;
  model_options.max_batch_rows = kBatchRows;
  model_options.max_logit_rows = kLogitRows;
  KVIK_ASSIGN(loaded.model, model::Model::Load(*source, model_options, *loaded.pool));
  return loaded;
}

Candidate MakeCandidate(const std::string& name, const codec::PipelineSpec& pipeline,
                        std::shared_ptr<const codec::SideInfo> side_info, const Loaded& loaded,
                        int32_t frame_tokens) {
  Candidate candidate{.name = name, .pipeline = pipeline.ToString(), .frame_tokens = frame_tokens};
  const bool no_library = side_info == nullptr;
  Result<std::unique_ptr<codec::FrameCodec>> made = codec::FrameCodec::Create(
      pipeline, eval::ModelFactsOf(*loaded.model), std::move(side_info), loaded.isa);
  if (made) {
    candidate.codec = std::move(*made);
    candidate.coder = std::make_unique<eval::FrameCoder>(*candidate.codec, frame_tokens,
                                                         loaded.pool->num_threads());
  } else {
    candidate.error = made.error();
    const bool needs_library = no_library && made.error().code == ErrorCode::kUnsupported;
    candidate.error.message +=
        needs_library ? "; kvik calibrate makes it, --profiles names it" : "";
  }
  return candidate;
}

Result<std::vector<Candidate>> MakeCandidates(const EvalOptions& options, const Loaded& loaded) {
  std::optional<codec::ProfileLibrary> library;
  std::shared_ptr<const codec::SideInfo> side_info;
  if (!options.profiles.empty()) {
    KVIK_ASSIGN(library, LoadProfileLibrary(options.profiles));
    KVIK_TRY(eval::BindLibrary(*loaded.model, *library));
    side_info = library->side_info;
  }
  std::vector<Candidate> candidates;
  for (const std::string& text : options.pipelines) {
    KVIK_ASSIGN(const codec::PipelineSpec pipeline, codec::ParsePipelineOrPreset(text));
    const codec::Preset* preset = codec::FindPreset(text);
    int32_t frame_tokens = options.frame_tokens;
    if (frame_tokens == 0) {
      frame_tokens =
          preset != nullptr && preset->request_tokens > 0 ? preset->request_tokens : kRequestTokens;
    }
    candidates.push_back(MakeCandidate(text, pipeline, side_info, loaded, frame_tokens));
  }
  std::vector<std::string> profiles = options.profile_names;
  if (library && profiles.empty() && options.pipelines.empty()) {
    for (const codec::Profile& profile : library->profiles) {
      profiles.push_back(profile.name);
    }
  }
  for (const std::string& name : profiles) {
    const codec::Profile* profile = library ? library->Find(name) : nullptr;
    if (profile == nullptr) {
      return Err(ErrorCode::kNotFound, "no profile '%s' in %s", name.c_str(),
                 library ? options.profiles.c_str() : "any library: name one with --profiles");
    }
    KVIK_ASSIGN(const codec::PipelineSpec pipeline, codec::PipelineSpec::Parse(profile->pipeline));
    candidates.push_back(
        MakeCandidate(name, pipeline, side_info, loaded,
                      options.frame_tokens > 0 ? options.frame_tokens : kRequestTokens));
  }
  if (candidates.empty()) {
    return Err(ErrorCode::kInvalidInput,
               "nothing to evaluate: name pipelines or presets with --pipeline, or a profile "
               "library with --profiles");
  }
  return candidates;
}

// About. Answering a token at a time is as slow as a few tokens of prefill; encoding and decoding
// are taken to pass 0.2 GB/s a thread.
double SecondsOf(const eval::CellWork& work, const EvalOptions& options, const Loaded& loaded,
                 const eval::ModelSpeed& speed) {
  constexpr double kDecodeCost = 8;
  constexpr double kCodingBytesPerS = 0.2e9;
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double answer = options.continuation_tokens;
  const double raw_s = (real(work.raw_tokens) + kDecodeCost * answer * real(work.raw_prompts)) /
                       speed.prefill_tokens_per_s;
  // The answer and, often, the reference.
  const double judged_s =
      2 * answer * real(work.loads + work.evaluations) / speed.judged_rows_per_s;
  const double coded_bytes = real(work.evaluated_tokens) *
                             static_cast<double>(loaded.model->kv_geometry().bytes_per_token());
  return raw_s + judged_s + coded_bytes / (kCodingBytesPerS * loaded.pool->num_threads());
}

void AddTimes(eval::QualityTimes& sum, const eval::QualityTimes& more) {
  sum.raw_us += more.raw_us;
  sum.coding_us += more.coding_us;
  sum.forward_us += more.forward_us;
  sum.compare_us += more.compare_us;
  sum.probe_us += more.probe_us;
  sum.task_us += more.task_us;
}

class Evaluation {
 public:
  explicit Evaluation(const EvalOptions& options) : options_(options) {}
  Result<int> Run();

 private:
  struct Cell {
    Cell(Evaluation& owner, const eval::CellPrompts& prompts, std::unique_ptr<eval::RawCorpus> raw);
    std::unique_ptr<eval::RawCorpus> corpus;
    eval::CellRun run;
  };
  Result<void> Prepare();
  // How long it will take, in seconds; also said on standard error.
  Result<double> Announce();
  Result<std::unique_ptr<Cell>> OpenCell(const eval::CellPrompts& prompts);
  Result<void> RunCell(const eval::CellPrompts& prompts);
  void SayTimes() const;
  [[nodiscard]] std::string Folder() const {
    return options_.cache_folder.empty() ? CacheFolder() + "/eval" : options_.cache_folder;
  }
  [[nodiscard]] std::string LogPath() const;

  const EvalOptions& options_;
  SystemClock clock_;
  Loaded loaded_;
  eval::EvalData data_;
  std::vector<Candidate> candidates_;
  std::vector<eval::KvCoder*> coders_;  // of the candidates
  std::vector<eval::CellPrompts> cells_;
  std::unique_ptr<eval::ResultsLog> log_;
  EvalReport report_;
  eval::QualityTimes times_;
  eval::RawCorpusCounts raw_;
  int64_t raw_us_ = 0;
  int64_t known_ = 0;
  int64_t evaluations_ = 0;
  bool failed_ = false;
};

std::string Evaluation::LogPath() const {
  if (options_.fresh && options_.results.empty()) {
    return "";
  }
  return options_.results.empty() ? Folder() + "/results.jsonl" : options_.results;
}

Result<void> Evaluation::Prepare() {
  KVIK_ASSIGN(data_, eval::LoadEvalData(options_.data));
  std::vector<eval::Cell> cells = eval::StandardCells(data_.items);
  if (!options_.cells.empty()) {
    KVIK_ASSIGN(cells, eval::ParseCells(options_.cells));
  }
  KVIK_ASSIGN(loaded_, LoadModel(options_.runtime));
  KVIK_ASSIGN(candidates_, MakeCandidates(options_, loaded_));
  for (const Candidate& candidate : candidates_) {
    if (candidate.coder != nullptr) {
      coders_.push_back(candidate.coder.get());
    }
  }
  if (coders_.empty()) {
    return candidates_.front().error.Wrap(candidates_.front().name);
  }
  for (const eval::Cell& cell : cells) {
    KVIK_ASSIGN(
        eval::CellPrompts prompts,
        eval::CellPrompts::Create(data_.items, cell, options_.runtime.seed, *loaded_.tokenizer,
                                  loaded_.chat_template ? &*loaded_.chat_template : nullptr));
    cells_.push_back(std::move(prompts));
  }
  const std::string path = LogPath();
  if (options_.fresh && !path.empty()) {
    std::remove(path.c_str());
  }
  KVIK_ASSIGN(log_, eval::ResultsLog::Open(path));
  report_.model = loaded_.path;
  report_.numerics = loaded_.model->numerics_tag();
  report_.data_hash = data_.hash;
  report_.seed = options_.runtime.seed;
  report_.continuation_tokens = options_.continuation_tokens;
  report_.every_block = options_.every_block;
  return {};
}

Evaluation::Cell::Cell(Evaluation& owner, const eval::CellPrompts& prompts,
                       std::unique_ptr<eval::RawCorpus> raw)
    : corpus(std::move(raw)),
      run(*owner.loaded_.model, *owner.loaded_.pool, *owner.loaded_.tokenizer, owner.clock_,
          prompts, *corpus, *owner.log_,
          {.positions = owner.options_.positions,
           .seed = owner.options_.runtime.seed,
           .quality = {.every_block = owner.options_.every_block,
                       .score_tasks = owner.options_.score_tasks,
                       .answer_tokens = owner.options_.continuation_tokens}}) {}

Result<std::unique_ptr<Evaluation::Cell>> Evaluation::OpenCell(const eval::CellPrompts& prompts) {
  KVIK_ASSIGN(std::unique_ptr<eval::RawCorpus> corpus,
              eval::RawCorpus::Open(*loaded_.model, *loaded_.tokenizer, prompts,
                                    {.folder = Folder() + "/raw",
                                     .max_folder_bytes = options_.cache_bytes,
                                     .continuation_tokens = options_.continuation_tokens}));
  return std::make_unique<Cell>(*this, prompts, std::move(corpus));
}

Result<double> Evaluation::Announce() {
  KVIK_ASSIGN(
      const eval::ModelSpeed speed,
      eval::MeasureModelSpeed(*loaded_.model, clock_,
                              static_cast<int64_t>(coders_.size()) * options_.continuation_tokens));
  double seconds = 0;
  uint64_t bytes = 0;
  std::string cells;
  for (const eval::CellPrompts& prompts : cells_) {
    KVIK_ASSIGN(const std::unique_ptr<Cell> cell, OpenCell(prompts));
    KVIK_ASSIGN(const eval::CellWork work, cell->run.Plan(coders_));
    const double cell_s = SecondsOf(work, options_, loaded_, speed);
    seconds += cell_s;
    bytes +=
        static_cast<uint64_t>(work.raw_tokens) * loaded_.model->kv_geometry().bytes_per_token();
    cells += Format(
        "  %-18s %s: %lld prompts of about %lld tokens, %lld to prefill, %lld "
        "evaluations\n",
        eval::CellName(prompts.cell()).c_str(),
        FormatDuration(static_cast<int64_t>(cell_s)).c_str(), static_cast<long long>(work.prompts),
        static_cast<long long>(work.prompt_tokens / std::max<int64_t>(work.prompts, 1)),
        static_cast<long long>(work.raw_prompts), static_cast<long long>(work.evaluations));
  }
  std::fprintf(stderr,
               "about %s for %zu pipelines on %zu cells; new raw KV: %s in %s\n%s"
               "(here: prefill %.0f tokens/s, %.0f judged rows/s)\n",
               FormatDuration(static_cast<int64_t>(seconds)).c_str(), candidates_.size(),
               cells_.size(), FormatByteSize(bytes).c_str(), Folder().c_str(), cells.c_str(),
               speed.prefill_tokens_per_s, speed.judged_rows_per_s);
  return seconds;
}

Result<void> Evaluation::RunCell(const eval::CellPrompts& prompts) {
  KVIK_ASSIGN(const std::unique_ptr<Cell> cell, OpenCell(prompts));
  const int64_t most = static_cast<int64_t>(prompts.size()) * options_.continuation_tokens;
  const int64_t total = options_.positions > 0 ? std::min(options_.positions, most) : most;
  // The last prompt of each pipeline may go beyond what was asked for.
  const uint64_t all = static_cast<uint64_t>(total) * coders_.size();
  Progress progress(clock_,
                    {.label = eval::CellName(prompts.cell()),
                     .total = all,
                     .unit = Progress::Unit::kCount,
                     .mode = options_.quiet ? Progress::Mode::kQuiet : Progress::Mode::kAuto});
  cell->run.on_progress = [&](int64_t positions) {
    progress.Update(std::min(static_cast<uint64_t>(positions), all));
  };
  KVIK_ASSIGN(eval::CellRunResult result, cell->run.Run(coders_));
  progress.Finish();

  EvalTable table;
  table.cell = prompts.cell();
  const auto first = std::find_if(
      data_.items.begin(), data_.items.end(),
      [&](const eval::EvalItem& item) { return item.workload == table.cell.workload; });
  table.measure = options_.score_tasks ? eval::TaskMeasureName(eval::MeasureOf(*first)) : "";
  table.text = first->reference.empty() ? "raw answer" : "reference";
  auto next = result.coders.begin();
  for (const Candidate& candidate : candidates_) {
    Result<eval::CellQuality> quality = candidate.error;
    if (candidate.coder != nullptr) {
      quality = std::move(*next++);
    }
    failed_ = failed_ || !quality;
    table.rows.push_back({.name = candidate.name,
                          .pipeline = candidate.pipeline,
                          .frame_tokens = candidate.frame_tokens,
                          .quality = std::move(quality)});
  }
  report_.tables.push_back(std::move(table));
  AddTimes(times_, result.times);
  const eval::RawCorpusCounts& counts = cell->corpus->counts();
  raw_us_ += result.corpus_us;
  raw_.loaded += counts.loaded;
  raw_.computed += counts.computed;
  raw_.kept += counts.kept;
  raw_.damaged += counts.damaged;
  known_ += result.known;
  evaluations_ += result.evaluations;
  return {};
}

void Evaluation::SayTimes() const {
  const auto seconds = [](int64_t us) { return static_cast<double>(us) * 1e-6; };
  std::fprintf(stderr,
               "%lld evaluations, %lld known before; raw prompts: %lld computed, %lld loaded%s\n"
               "seconds: raw prompts %.1f, raw runs %.1f, coding %.1f, model on coded KV %.1f, "
               "comparing %.1f, attention errors %.1f, answers %.1f\n",
               static_cast<long long>(evaluations_), static_cast<long long>(known_),
               static_cast<long long>(raw_.computed), static_cast<long long>(raw_.loaded),
               raw_.kept < raw_.computed ? " (not all could be kept on disk)" : "",
               seconds(raw_us_), seconds(times_.raw_us), seconds(times_.coding_us),
               seconds(times_.forward_us), seconds(times_.compare_us), seconds(times_.probe_us),
               seconds(times_.task_us));
}

Result<int> Evaluation::Run() {
  KVIK_TRY(Prepare());
  if (options_.plan) {
    KVIK_ASSIGN(const double seconds, Announce());
    std::printf("%.0f\n", seconds);
    return 0;
  }
  if (!options_.quiet) {
    KVIK_TRY(Announce());
  }
  for (const eval::CellPrompts& prompts : cells_) {
    const Result<void> ran = RunCell(prompts);
    if (!ran) {
      return ran.error().Wrap(eval::CellName(prompts.cell()));
    }
    if (!options_.json) {
      EvalReport one;
      one.tables = {report_.tables.back()};
      std::printf("%s\n", EvalText(one, options_.columns).c_str());
      std::fflush(stdout);
    }
  }
  if (options_.json) {
    std::printf("%s", EvalJson(report_).c_str());
  }
  if (!options_.svg_path.empty() || !options_.csv_path.empty()) {
    KVIK_TRY(WritePlots(options_.csv_path, options_.svg_path, EvalPlots(report_)));
  }
  if (!options_.quiet) {
    SayTimes();
  }
  return failed_ ? 1 : 0;
}

}  // namespace

const std::vector<std::string>& EvalColumns() {
  static const auto* columns = new std::vector<std::string>{"kl", "top1", "ppl", "error", "task"};
  return *columns;
}

std::vector<std::string> SplitPipelines(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  std::vector<std::string> out;
  for (const std::string& part : parts) {
    const size_t begin = part.find_first_not_of(" \t\n");
    if (begin != std::string::npos) {
      out.push_back(part.substr(begin, part.find_last_not_of(" \t\n") + 1 - begin));
    }
  }
  return out;
}

Result<int> Evaluate(const EvalOptions& options) { return Evaluation(options).Run(); }

}  // namespace kvik::app
