// SPDX-License-Identifier: Apache-2.0
// Speed of the whole forward pass as shares of what this machine does at best, measured in the same
// run: prefill against the multiply-add peak, decode against the read bandwidth.
//   forward_bench [--quick] [--threads N] [--only SUBSTRING] [--model FILE] [--cpu-time]
// --cpu-time implies --threads 1 and counts the time that the thread ran instead of the time that
// passed: for machines on which something else runs.
// Without a file the model is random, of SmolLM2-135M's shape in Q4_1 (its speed does not depend on
// the weights). KVIK_KERNELS chooses the ISA; the arithmetic is bf16 where it has it. The same
// layers are compared with the double-precision reference before anything is timed. Exit 1 when a
// goal is missed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/machine_peak.h"
#include "base/rng.h"
#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "model/model.h"
#include "model/model_source.h"
#include "model/testing/dense_driver.h"
#include "model/testing/reference_model.h"
#include "model/testing/tiny_model.h"
#include "model/weights.h"

namespace kvik::model {
namespace {

using testing::DenseDriver;

constexpr double kPrefillGoal = 0.60;  // of the peak, at 1K tokens

using Options = kvik::testing::BenchOptions;
using kvik::testing::OrDie;

std::unique_ptr<ModelSource> RandomModel(int32_t num_layers) {
  testing::TinyModelOptions options;
  options.hidden_size = 576;
  options.intermediate_size = 1536;
  options.num_layers = num_layers;
  options.num_heads = 9;
  options.num_kv_heads = 3;
  options.max_context_tokens = 8192;
  options.format = GgmlType::kQ4_1;
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("kvik_forward_bench_" + std::to_string(num_layers) + ".gguf"))
                               .string();
  const Result<void> written = testing::WriteTinyGguf(options, path);
  if (!written) {
    std::fprintf(stderr, "forward_bench: %s\n", written.error().message.c_str());
    std::exit(1);
  }
  std::unique_ptr<ModelSource> source = OrDie(ModelSource::Open(path));
  std::filesystem::remove(path);  // the mapping keeps it
  return source;
}

std::vector<TokenId> RandomTokens(int32_t count, int32_t vocab) {
  Rng rng(7);
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(rng.Below(static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

// Multiply-adds of a prefill of `tokens` from position 0 whose last row's logits are wanted, times
// two: what the pass really computes.
double PrefillFlops(const ModelConfig& c, double tokens) {
  const double qkv = double{1} * c.hidden_size * (c.q_size() + 2 * c.kv_size());
  const double rest =
      double{1} * c.hidden_size * c.q_size() + 3.0 * c.hidden_size * c.intermediate_size;
  const double attention = c.q_size() * tokens * (tokens + 1);  // scores and values, causal
  const double layers = c.num_layers;
  return 2 * (layers * (tokens * qkv + attention) + (layers - 1) * tokens * rest + rest +
              double{1} * c.hidden_size * c.vocab_size);
}

class Bench {
 public:
  Bench(Isa isa, const Options& options)
      : isa_(isa),
        compute_(ComputeSupported(isa, ComputeType::kBf16) ? ComputeType::kBf16
                                                           : ComputeType::kF32),
        options_(options),
        clock_(options.cpu_time),
        pool_(options.threads) {}

  int Run() {
    std::printf("forward_bench: %s kernels, %s arithmetic, bf16 KV, %d threads\n", IsaName(isa_),
                compute_ == ComputeType::kBf16 ? "bf16" : "float32", options_.threads);
    Verify();
    std::printf("%-32s %14s %14s %7s %6s\n", "case", "measured", "of", "share", "goal");
    const std::unique_ptr<ModelSource> source =
        options_.model.empty() ? RandomModel(30) : OrDie(ModelSource::Open(options_.model));
    const std::unique_ptr<Model> model = Load(*source, 512);
    for (const int32_t tokens : {128, 1024, 4096}) {
      if (!options_.quick || tokens <= 1024) {
        Prefill(*model, tokens);
      }
    }
    for (const int32_t context : {128, 1024, 4096}) {
      if (!options_.quick || context <= 1024) {
        Decode(*model, context);
      }
    }
    std::printf("forward_bench: %d of %d goals reached\n", reached_, goals_);
    return reached_ == goals_ ? 0 : 1;
  }

 private:
  std::unique_ptr<Model> Load(const ModelSource& source, int32_t rows) {
    ModelOptions options;
    options.isa = isa_;
    options.compute = compute_;
    options.max_batch_rows = rows;
    options.max_logit_rows = 16;
    return OrDie(Model::Load(source, options, pool_));
  }

  void Verify() {
    const std::unique_ptr<ModelSource> source = RandomModel(2);
    const std::unique_ptr<Model> model = Load(*source, 16);
    const std::vector<TokenId> tokens = RandomTokens(8, source->config().vocab_size);
    const auto expected = testing::ReferenceLogits(*source, tokens);
    const auto driver = OrDie(DenseDriver::Create(*model, 8));
    driver->Append(tokens, 8, DenseDriver::Want::kAll,
                   [&](int32_t position, std::span<const float> logits) {
                     const auto& want = expected[static_cast<size_t>(position)];
                     for (size_t i = 0; i < logits.size(); ++i) {
                       const double error = std::abs(static_cast<double>(logits[i]) - want[i]);
                       if (!(error <= 0.1)) {  // bf16 rounding included; a NaN fails
                         std::fprintf(stderr, "forward_bench: logit %zu is off by %g\n", i, error);
                         std::exit(1);
                       }
                     }
                   });
  }

  template <typename Fn>
  double BestSeconds(int repeats, Fn&& fn) {
    double best = 1e30;
    for (int i = 0; i < repeats; ++i) {
      const double begin = clock_.NowSeconds();
      fn();
      best = std::min(best, clock_.NowSeconds() - begin);
    }
    return best;
  }

  void Prefill(Model& model, int32_t tokens) {
    const std::string name = "prefill of " + std::to_string(tokens) + " tokens";
    if (name.find(options_.only) == std::string::npos) {
      return;
    }
    const auto driver = OrDie(DenseDriver::Create(model, tokens));
    const std::vector<TokenId> input = RandomTokens(tokens, model.config().vocab_size);
    double peak = MeasurePeakGflops(clock_, isa_, compute_, pool_);
    const double seconds = BestSeconds(options_.quick ? 2 : 5, [&] {
      driver->Reset();
      driver->Append(input, 512, DenseDriver::Want::kLast, [](int32_t, std::span<const float>) {});
    });
    peak = std::max(peak, MeasurePeakGflops(clock_, isa_, compute_, pool_));
    const double gflops = PrefillFlops(model.config(), tokens) / seconds * 1e-9;
    const double goal = tokens == 1024 ? kPrefillGoal : 0;
    Print(name, gflops, peak, "GFLOP/s", goal);
    std::printf("%-32s %8.0f tok/s\n", "", tokens / seconds);
  }

  void Decode(Model& model, int32_t context) {
    const std::string name = "decode at " + std::to_string(context) + " tokens";
    if (name.find(options_.only) == std::string::npos) {
      return;
    }
    constexpr int32_t kSteps = 24;
    const auto driver = OrDie(DenseDriver::Create(model, context + kSteps));
    const std::vector<TokenId> input = RandomTokens(context + kSteps, model.config().vocab_size);
    const auto ignore = [](int32_t, std::span<const float>) {};
    driver->Append(std::span(input).first(static_cast<size_t>(context)), 512,
                   DenseDriver::Want::kLast, ignore);
    size_t next = static_cast<size_t>(context);
    double read = 0;
    const double seconds = BestSeconds(kSteps, [&] {
      driver->Append(std::span(input).subspan(next++, 1), 1, DenseDriver::Want::kLast, ignore);
    });
    for (int i = 0; i < 6; ++i) {
      read = std::max(read, read_probe_.PassGbps(clock_, isa_, pool_));
    }
    const double bytes = static_cast<double>(model.weight_bytes()) +
                         static_cast<double>(model.kv_geometry().bytes_per_token()) * context;
    Print(name, bytes / seconds * 1e-9, read, "GB/s", 0);
    std::printf("%-32s %8.2f ms a token\n", "", seconds * 1e3);
  }

  void Print(const std::string& name, double measured, double of, const char* unit, double goal) {
    const double share = measured / of;
    std::printf("%-32s %7.1f %-7s %6.1f %-7s %6.1f%% ", name.c_str(), measured, unit, of, unit,
                100 * share);
    if (goal > 0) {
      ++goals_;
      reached_ += share >= goal ? 1 : 0;
      std::printf("%4.0f%% %s\n", 100 * goal, share >= goal ? "reached" : "MISSED");
    } else {
      std::printf("\n");
    }
    std::fflush(stdout);
  }

  Isa isa_;
  ComputeType compute_;
  Options options_;
  kvik::testing::BenchClock clock_;
  ThreadPool pool_;
  ReadProbe read_probe_ = OrDie(ReadProbe::Create());
  int goals_ = 0;
  int reached_ = 0;
};

int Main(int argc, char** argv) {
  const auto options = kvik::testing::ParseBenchOptions(argc, argv, true);
  return options ? Bench(OrDie(SelectIsa()), *options).Run() : 2;
}

}  // namespace
}  // namespace kvik::model

int main(int argc, char** argv) { return kvik::model::Main(argc, argv); }
