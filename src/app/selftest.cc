// SPDX-License-Identifier: Apache-2.0
#include "app/selftest.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/answers.h"
#include "app/memory.h"
#include "app/models.h"
#include "base/byte_size.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/temporary_folder.h"
#include "model/rewrite.h"

namespace kvik::app {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kNumPrompts = 27;
// A third of the prompts each are at most this long. The longest cross a span of the softmax.
constexpr int32_t kPromptTokens[] = {90, 300, 600};
constexpr int32_t kMaxPromptTokens = kPromptTokens[2];
constexpr int32_t kMaxNewTokens = 12;
constexpr int32_t kMaxBatchRows = 512;
constexpr size_t kDequantisedPrompts = 4;

// A chunk of fewer tokens takes many steps, each of which reads all weights: engines with such
// chunks get fewer and shorter prompts.
constexpr int32_t kSmallChunk = 8;
// A step costs about as much as this many rows of it, for the weights it reads.
constexpr int64_t kRowsPerStep = 16;
constexpr uint64_t kMostUsBetweenSteps = 2'000'000;
// Rows times weights after which no further engine is begun: all of the default ones for a model of
// 135 million weights, half of them for 500 million. Unlike time, it depends on nothing but the
// seed, so equal seeds test the same.
constexpr double kMaxRowWeights = 3e13;

struct Job {
  std::vector<TokenId> prompt;
  model::SamplingParams sampling;
  int32_t max_new_tokens = 0;
};

struct Tally {
  int64_t cases = 0;
  int64_t gaps = 0;  // requests that computed tokens before a segment they reused
  int64_t preemptions = 0;
  int64_t differing_tokens = 0;
  int64_t differing_logprobs = 0;
};

void Compare(const Answer& expected, const Answer& got, Tally& tally) {
  ++tally.cases;
  const Differences differences = CompareAnswers(expected, got);
  tally.differing_tokens += differences.tokens;
  tally.differing_logprobs += differences.logprobs;
}

// Prompts that share beginnings of three texts, so that there is something to reuse; a third each
// short, longer and long, and of each a third greedy, drawn, and drawn with penalties.
std::vector<Job> MakeJobs(uint64_t seed, int32_t vocab_size, int32_t context) {
  Rng rng(seed, 1);
  const int32_t longest = std::min(kMaxPromptTokens, context - kMaxNewTokens - 1);
  std::vector<std::vector<TokenId>> texts(3);
  for (std::vector<TokenId>& text : texts) {
    for (int32_t i = 0; i < longest; ++i) {
      text.push_back(static_cast<TokenId>(rng.Below(static_cast<uint64_t>(vocab_size))));
    }
  }
  std::vector<Job> jobs;
  for (int32_t i = 0; i < kNumPrompts; ++i) {
    Job job;
    const std::vector<TokenId>& text = texts[rng.Below(texts.size())];
    const int64_t most = std::min(longest, kPromptTokens[i / 3 % 3]);
    const int64_t shared = rng.Range(1, most);
    job.prompt.assign(text.begin(), text.begin() + shared);
    const int64_t own = rng.Range(0, std::min<int64_t>(40, most - shared));
    for (int64_t k = 0; k < own; ++k) {
      job.prompt.push_back(static_cast<TokenId>(rng.Below(static_cast<uint64_t>(vocab_size))));
    }
    job.max_new_tokens = static_cast<int32_t>(rng.Range(2, kMaxNewTokens));
    job.sampling.temperature = i % 3 == 0 ? 0.0F : 0.8F;
    job.sampling.seed = rng.Next();
    job.sampling.num_logprobs = 4;
    if (i % 3 == 2) {
      job.sampling.top_p = 0.9F;
      job.sampling.repetition_penalty = 1.1F;
      job.sampling.presence_penalty = 0.5F;
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

// A loaded model; its thread pool lives as long.
struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<model::Model> model;
};

Result<LoadedModel> Load(const model::ModelSource& source, const RuntimeOptions& runtime, Isa isa,
                         std::optional<ComputeType> compute, int threads,
                         int32_t block_size_tokens) {
  LoadedModel loaded;
  loaded.pool = std::make_unique<ThreadPool>(threads);
  model::ModelOptions options;
  options.isa = isa;
  options.compute = compute;
  options.kv_dtype = runtime.kv_dtype;
  options.block_size_tokens = block_size_tokens;
  options.max_batch_rows = kMaxBatchRows;
  options.max_logit_rows = 16;
  options.max_context_tokens =
      std::min(source.config().max_context_tokens, kMaxPromptTokens + kMaxNewTokens + 1);
  KVIK_ASSIGN(loaded.model, model::Model::Load(source, options, *loaded.pool));
  return loaded;
}

engine::EngineOptions BaseOptions(const model::Model& model, int32_t num_blocks) {
  engine::EngineOptions options;
  options.cache.num_blocks = num_blocks;
  options.cache.block_size_tokens = model.options().block_size_tokens;
  options.cache.numerics = model.numerics_tag();
  options.scheduler.max_num_seqs = 1;
  options.scheduler.max_num_batched_tokens = kMaxBatchRows;
  options.scheduler.chunk_max = kMaxBatchRows;
  return options;
}

engine::Request ToRequest(const Job& job) {
  engine::Request request;
  request.prompt = job.prompt;
  request.sampling = job.sampling;
  request.max_new_tokens = job.max_new_tokens;
  return request;
}

int32_t BlocksFor(int32_t tokens, int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

// Every job alone, nothing cached, whole prompts in one chunk.
Result<std::vector<Answer>> AnswerAlone(model::Model& model, const std::vector<Job>& jobs,
                                        size_t count, Progress* progress, const Clock& clock) {
  const int32_t blocks =
      BlocksFor(kMaxPromptTokens + kMaxNewTokens, model.options().block_size_tokens) + 1;
  KVIK_ASSIGN(const auto executor, engine::ModelExecutor::Create(model, blocks));
  engine::EngineOptions options = BaseOptions(model, blocks);
  options.cache.prefix_caching = false;
  KVIK_ASSIGN(const auto engine, engine::Engine::Create(options, *executor, clock));
  std::vector<Answer> answers(count);
  std::optional<Error> error;
  for (size_t i = 0; i < count; ++i) {
    KVIK_TRY(engine->Submit(ToRequest(jobs[i]), [&answers, &error, i](engine::RequestOutput out) {
      answers[i].insert(answers[i].end(), out.tokens.begin(), out.tokens.end());
      if (out.error) {
        error = out.error;
      }
    }));
    while (engine->HasWork()) {
      engine->Step();
    }
    if (error) {
      return *error;
    }
    if (progress != nullptr) {
      progress->Update(i + 1);
    }
  }
  return answers;
}

// One engine with random options and a random course of events.
//
// Waves of requests, few prompts in different company, so that there is much to reuse; before every
// wave and every arrival some blocks that nobody holds are dropped, which leaves gaps. Two engines
// of three have a pool that hardly holds the longest request twice, and in most waves every arrival
// is more important than those before: it takes their blocks or their place.
class RandomRun {
 public:
  RandomRun(model::Model& model, const std::vector<Job>& jobs, const std::vector<Answer>& expected,
            Rng rng)
      : model_(model), jobs_(jobs), expected_(expected), rng_(rng) {}

  Result<void> Run(Tally& tally) {
    // 1 to 512, small ones as often as large ones.
    const int64_t magnitude = int64_t{1} << rng_.Range(0, 9);
    const auto chunk = static_cast<int32_t>(rng_.Range(magnitude / 2 + 1, magnitude));
    const std::vector<Wave> waves = PickWaves(chunk);
    const int32_t blocks = PickPoolBlocks(waves);
    KVIK_ASSIGN(const auto executor, engine::ModelExecutor::Create(model_, blocks));
    engine::EngineOptions options = BaseOptions(model_, blocks);
    sched::SchedulerOptions& scheduler = options.scheduler;
    scheduler.max_num_seqs = static_cast<int32_t>(rng_.Range(1, 8));
    scheduler.max_num_batched_tokens = std::max(chunk, scheduler.max_num_seqs);
    scheduler.chunk_max = chunk;
    scheduler.chunk_floor = std::min(chunk, 8);
    if (rng_.Below(2) == 0) {
      scheduler.reserve_new_tokens = static_cast<int32_t>(rng_.Range(0, 8));  // overcommit
    }
    const auto policies = kv::EvictionPolicyNames();
    options.cache.policy.name =
        rng_.Below(2) == 0 ? "random" : policies[rng_.Below(policies.size())];
    options.cache.policy.seed = rng_.Next();
    KVIK_ASSIGN(const auto engine, engine::Engine::Create(options, *executor, clock_));
    for (const Wave& wave : waves) {
      engine->cache().EvictAtRandom(rng_, 0.05 + 0.3 * rng_.Uniform());
      KVIK_TRY(RunWave(*engine, wave, tally));
      engine->cache().CheckInvariant();
    }
    const engine::EngineStats stats = engine->stats();
    cost_rows_ = stats.step_tokens + kRowsPerStep * stats.steps;
    return {};
  }

  // What Run computed, in rows of a step.
  [[nodiscard]] int64_t cost_rows() const { return cost_rows_; }

 private:
  using Wave = std::vector<size_t>;  // jobs, in order of arrival

  struct InFlight {
    size_t job = 0;
    Answer answer;
    engine::Usage usage;
    std::optional<Error> error;
  };

  std::vector<Wave> PickWaves(int32_t chunk) {
    const bool small = chunk < kSmallChunk;
    const int32_t longest = std::max(kPromptTokens[0], small ? chunk * 30 : kMaxPromptTokens);
    std::vector<size_t> cast;  // a third of the prompts are short enough for any chunk
    while (cast.size() < 3) {
      const size_t job = rng_.Below(jobs_.size());
      if (jobs_[job].prompt.size() <= static_cast<size_t>(longest)) {
        cast.push_back(job);
      }
    }
    std::vector<Wave> waves(small ? 5 : 10);
    for (Wave& wave : waves) {
      wave.resize(static_cast<size_t>(rng_.Range(1, small ? 2 : 4)));
      for (size_t& job : wave) {
        job = cast[rng_.Below(cast.size())];
      }
    }
    return waves;
  }

  // At least as many as the longest request needs, so that none is rejected.
  int32_t PickPoolBlocks(const std::vector<Wave>& waves) {
    int32_t need = 0;
    for (const Wave& wave : waves) {
      for (const size_t job : wave) {
        const auto prompt_tokens = static_cast<int32_t>(jobs_[job].prompt.size());
        need = std::max(need, BlocksFor(prompt_tokens + jobs_[job].max_new_tokens,
                                        model_.options().block_size_tokens));
      }
    }
    const int32_t spare = rng_.Below(3) != 0 ? need / 4 : 4 * need;
    return need + static_cast<int32_t>(rng_.Range(0, spare));
  }

  Result<void> RunWave(engine::Engine& engine, const Wave& wave, Tally& tally) {
    std::vector<std::unique_ptr<InFlight>> flights;
    const bool rising = rng_.Below(4) != 0;
    while (flights.size() < wave.size() || engine.HasWork()) {
      if (flights.size() < wave.size() && rng_.Below(2) == 0) {
        engine.cache().EvictAtRandom(rng_, 0.2 * rng_.Uniform());
        auto flight = std::make_unique<InFlight>();
        flight->job = wave[flights.size()];
        engine::Request request = ToRequest(jobs_[flight->job]);
        request.priority =
            rising ? -static_cast<int32_t>(flights.size()) : static_cast<int32_t>(rng_.Below(3));
        KVIK_TRY(engine.Submit(std::move(request), [f = flight.get()](engine::RequestOutput out) {
          f->answer.insert(f->answer.end(), out.tokens.begin(), out.tokens.end());
          f->usage = out.usage;
          if (out.error) {
            f->error = out.error;
          }
        }));
        flights.push_back(std::move(flight));
      }
      engine.Step();
      clock_.Advance(static_cast<int64_t>(rng_.Below(kMostUsBetweenSteps)));
    }
    for (const std::unique_ptr<InFlight>& flight : flights) {
      if (flight->error) {
        return *flight->error;
      }
      Compare(expected_[flight->job], flight->answer, tally);
      tally.gaps += flight->usage.cached_tokens > flight->usage.prefix_tokens ? 1 : 0;
      tally.preemptions += flight->usage.preemptions;
    }
    return {};
  }

  model::Model& model_;
  const std::vector<Job>& jobs_;
  const std::vector<Answer>& expected_;
  Rng rng_;
  ManualClock clock_;  // policies weigh times: a run must not depend on the machine's speed
  int64_t cost_rows_ = 0;
};

class Selftest {
 public:
  Selftest(const SelftestOptions& options, const model::ModelSource& source, Isa isa,
           const Clock& clock)
      : options_(options),
        source_(source),
        isa_(isa),
        compute_(options.runtime.compute.value_or(DefaultCompute(isa))),
        clock_(clock),
        start_us_(clock.NowMicros()),
        jobs_(MakeJobs(options.seed, source.config().vocab_size,
                       source.config().max_context_tokens)) {}

  Result<int> Run() {
    std::printf("selftest exact: %s, %s kernels, %s arithmetic, %s KV, seed %" PRIu64 "\n",
                source_.path().c_str(), IsaName(isa_),
                compute_ == ComputeType::kBf16 ? "bf16" : "f32",
                options_.runtime.kv_dtype == kv::KvDtype::kBf16 ? "bf16" : "f32", options_.seed);
    std::fflush(stdout);
    KVIK_TRY(Reference());
    KVIK_TRY(RandomRuns());
    KVIK_TRY(Dequantised());
    const bool good = tally_.differing_tokens == 0 && tally_.differing_logprobs == 0 &&
                      tally_.gaps > 0 && tally_.preemptions > 0;
    std::printf("selftest exact: %" PRId64 " cases, %" PRId64 " gaps, %" PRId64
                " preemptions, %" PRId64 " differing tokens, %" PRId64
                " differing logprobs, digest %s: %s\n",
                tally_.cases, tally_.gaps, tally_.preemptions, tally_.differing_tokens,
                tally_.differing_logprobs, Digest().c_str(), good ? "ok" : "FAILED");
    return good ? 0 : 1;
  }

 private:
  Result<void> Reference() {
    KVIK_ASSIGN(LoadedModel loaded, Load(source_, options_.runtime, isa_, compute_, 1, 16));
    Progress progress(clock_,
                      {.label = "answers alone", .total = jobs_.size(), .mode = options_.progress});
    KVIK_ASSIGN(expected_, AnswerAlone(*loaded.model, jobs_, jobs_.size(), &progress, clock_));
    progress.Finish();
    return {};
  }

  Result<void> RandomRuns() {
    struct Variant {
      int threads;
      int32_t block_size_tokens;
    };
    const Variant variants[] = {{1, 16}, {2, 16}, {2, 64}};
    std::vector<LoadedModel> models;
    for (const Variant& variant : variants) {
      KVIK_ASSIGN(LoadedModel loaded, Load(source_, options_.runtime, isa_, compute_,
                                           variant.threads, variant.block_size_tokens));
      models.push_back(std::move(loaded));
    }
    Progress progress(clock_, {.label = "answers in company",
                               .total = static_cast<uint64_t>(options_.engines),
                               .mode = options_.progress});
    const double num_weights = static_cast<double>(model::F32Bytes(source_)) / sizeof(float);
    int64_t cost_rows = 0;
    for (int32_t i = 0; i < options_.engines; ++i) {
      const bool enough = static_cast<double>(cost_rows) * num_weights > kMaxRowWeights;
      if (static_cast<size_t>(i) >= models.size() && (enough || Seconds() > options_.max_seconds)) {
        std::printf("in company: %d of %d configurations, %s\n", i, options_.engines,
                    enough ? "as the model is large" : "as the time is up");
        break;
      }
      RandomRun run(*models[static_cast<size_t>(i) % models.size()].model, jobs_, expected_,
                    Rng(options_.seed, static_cast<uint64_t>(i) + 100));
      KVIK_TRY(run.Run(tally_));
      cost_rows += run.cost_rows();
      progress.Update(static_cast<uint64_t>(i) + 1);
    }
    progress.Finish();
    std::printf("in company: %" PRId64 " cases, %" PRId64 " gaps, %" PRId64 " preemptions, %" PRId64
                " differing tokens, %" PRId64 " differing logprobs\n",
                tally_.cases, tally_.gaps, tally_.preemptions, tally_.differing_tokens,
                tally_.differing_logprobs);
    std::fflush(stdout);
    return {};
  }

  // Float32 arithmetic on the stored weights and on float32 copies of them.
  Result<void> Dequantised() {
    if (source_.container().find("GGUF") == std::string::npos) {
      std::printf("float32 copies: not compared, the model is not a GGUF file\n");
      return {};
    }
    const uint64_t copy_bytes = model::F32Bytes(source_);
    if (const auto available = AvailableMemoryBytes(); available && *available < 2 * copy_bytes) {
      return Err(ErrorCode::kExhausted,
                 "comparing with float32 copies of the weights takes %s of memory, %s is available",
                 FormatByteSize(2 * copy_bytes).c_str(), FormatByteSize(*available).c_str());
    }
    KVIK_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Create("kvik-selftest"));
    std::error_code error;
    if (const fs::space_info disk = fs::space(fs::path(folder.path()), error);
        !error && disk.available < copy_bytes + copy_bytes / 8) {
      return Err(
          ErrorCode::kExhausted,
          "a float32 copy of the weights takes %s and %s has %s free; set TMPDIR to a folder "
          "with room",
          FormatByteSize(copy_bytes).c_str(), fs::path(folder.path()).c_str(),
          FormatByteSize(disk.available).c_str());
    }
    std::vector<Answer> expected = expected_;
    if (compute_ != ComputeType::kF32) {
      KVIK_ASSIGN(expected, AnswerAtF32(source_));
    }
    const std::string gguf = (fs::path(folder.path()) / "f32.gguf").string();
    KVIK_TRY(model::WriteF32Gguf(source_, gguf));
    KVIK_TRY(CompareCopy("F32 GGUF", gguf, expected));
    fs::remove(gguf, error);
    const std::string hf = (fs::path(folder.path()) / "hf").string();
    if (const auto written = model::WriteF32HfFolder(source_, hf); !written.has_value()) {
      if (written.error().code != ErrorCode::kUnsupported) {
        return written.error();
      }
      std::printf("F32 safetensors: not compared, %s\n", written.error().message.c_str());
      return {};
    }
    return CompareCopy("F32 safetensors", hf, expected);
  }

  Result<std::vector<Answer>> AnswerAtF32(const model::ModelSource& source) {
    KVIK_ASSIGN(LoadedModel loaded, Load(source, options_.runtime, isa_, ComputeType::kF32, 2, 16));
    return AnswerAlone(*loaded.model, jobs_, kDequantisedPrompts, nullptr, clock_);
  }

  Result<void> CompareCopy(const char* what, const std::string& path,
                           const std::vector<Answer>& expected) {
    KVIK_ASSIGN(const auto copy, model::ModelSource::Open(path));
    KVIK_ASSIGN(const std::vector<Answer> got, AnswerAtF32(*copy));
    Tally tally;
    for (size_t i = 0; i < got.size(); ++i) {
      Compare(expected[i], got[i], tally);
    }
    std::printf("%s: %" PRId64 " cases, %" PRId64 " differing tokens, %" PRId64
                " differing logprobs\n",
                what, tally.cases, tally.differing_tokens, tally.differing_logprobs);
    tally_.cases += tally.cases;
    tally_.differing_tokens += tally.differing_tokens;
    tally_.differing_logprobs += tally.differing_logprobs;
    return {};
  }

  // Of the reference answers: equal machines with equal seeds print equal digests.
  [[nodiscard]] std::string Digest() const {
    Sha256 hash;
    for (const Answer& answer : expected_) {
      AddToHash(answer, hash);
    }
    return ShortDigest(hash);
  }

  [[nodiscard]] double Seconds() const {
    return static_cast<double>(clock_.NowMicros() - start_us_) * 1e-6;
  }

  const SelftestOptions& options_;
  const model::ModelSource& source_;
  const Isa isa_;
  const ComputeType compute_;
  const Clock& clock_;
  const int64_t start_us_;
  const std::vector<Job> jobs_;
  std::vector<Answer> expected_;
  Tally tally_;
};

}  // namespace

Result<int> SelftestExact(const SelftestOptions& options) {
  const SystemClock clock;
  KVIK_ASSIGN(const std::string path, ResolveModel(options.runtime.model));
  KVIK_ASSIGN(const Isa isa, SelectIsa());
  KVIK_ASSIGN(const auto source, model::ModelSource::Open(path));
  if (source->config().max_context_tokens < 2 * kMaxNewTokens) {
    return Err(ErrorCode::kUnsupported, "%s: a context of %d tokens is too short for this test",
               path.c_str(), source->config().max_context_tokens);
  }
  return Selftest(options, *source, isa, clock).Run();
}

}  // namespace kvik::app
