// SPDX-License-Identifier: Apache-2.0
// Speed of matrix products as a share of what the machine can do, measured in the same run: many
// rows against the peak of multiply-adds, one row (decode) against the bandwidth of reading memory.
// Every product is checked against a naive loop before it is timed. KVIK_KERNELS forces an ISA.
//
//   gemm_bench [--quick]      exit status 1 when a goal is missed or a product is wrong
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/isa.h"
#include "base/machine_peak.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "tensor/gemm.h"
#include "tensor/testing/random_weights.h"

namespace kvik::tensor {
namespace {

constexpr double kGemmGoal = 0.75;    // of the peak of multiply-adds
constexpr double kDecodeGoal = 0.60;  // of the bandwidth of reading memory, on the best ISA here

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of the fastest of several runs; at least `min_runs`, until `budget` seconds are spent.
template <typename Fn>
double BestSeconds(int min_runs, double budget, const Fn& fn) {
  fn();
  double best = 1e9;
  const double start = Now();
  for (int i = 0; i < min_runs || Now() - start < budget; ++i) {
    const double begin = Now();
    fn();
    best = std::min(best, Now() - begin);
  }
  return best;
}

AlignedBuffer Allocate(size_t floats) {
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(floats * sizeof(float));
  if (!buffer.has_value()) {
    std::fprintf(stderr, "gemm_bench: %s\n", buffer.error().message.c_str());
    std::exit(1);
  }
  return std::move(*buffer);
}

struct Shape {
  const char* model;
  size_t n;
  size_t k;
  WeightFormat format;
};

// On its own a small matrix is over before a second thread helps, so it is judged on one thread; a
// model multiplies it in one call with others of the same input (q, k and v: the sum of their n).
constexpr size_t kSmallOutputs = 256;

constexpr Shape kShapes[] = {
    {"SmolLM2-135M", 576, 576, WeightFormat::kQ4_1},
    {"SmolLM2-135M", 192, 576, WeightFormat::kQ4_1},
    {"SmolLM2 q,k,v", 960, 576, WeightFormat::kQ4_1},
    {"SmolLM2-135M", 1536, 576, WeightFormat::kQ4_1},
    {"SmolLM2-135M", 576, 1536, WeightFormat::kQ4_1},
    {"SmolLM2-135M", 49152, 576, WeightFormat::kQ8_0},
    {"Qwen2.5-0.5B", 896, 896, WeightFormat::kQ5_0},
    {"Qwen2.5-0.5B", 128, 896, WeightFormat::kQ8_0},
    {"Qwen2.5-0.5B", 4864, 896, WeightFormat::kQ5_0},
    {"Qwen2.5-0.5B", 896, 4864, WeightFormat::kQ6_K},
    {"Qwen2.5-0.5B", 896, 4864, WeightFormat::kQ4_K},
    {"plain", 1536, 576, WeightFormat::kF32},
    {"plain", 1536, 576, WeightFormat::kBf16},
};

struct Problem {
  PackedMatrix weights;
  std::vector<std::byte> bytes;
};

Problem MakeProblem(const Shape& shape, ComputeType compute, ThreadPool& pool, Rng& rng) {
  Problem problem;
  problem.bytes = testing::RandomWeights(shape.format, shape.n, shape.k, rng);
  problem.weights =
      PackedMatrix::Pack(
          {.format = shape.format, .rows = shape.n, .cols = shape.k, .data = problem.bytes},
          compute, pool)
          .value();
  return problem;
}

// Compares some outputs with double precision sums of the dequantised weights.
bool Verify(const Shape& shape, const Problem& problem, ComputeType compute,
            std::span<const float> x, std::span<const float> out, size_t rows, Rng& rng) {
  std::vector<float> w(shape.k);
  for (int sample = 0; sample < 200; ++sample) {
    const size_t i = rng.Below(rows);
    const size_t j = rng.Below(shape.n);
    DequantizeRow(shape.format, problem.bytes.data() + j * WeightRowBytes(shape.format, shape.k),
                  shape.k, w.data());
    double sum = 0;
    double magnitude = 0;
    for (size_t p = 0; p < shape.k; ++p) {
      const double product = static_cast<double>(w[p]) * x[i * shape.k + p];
      sum += product;
      magnitude += std::abs(product);
    }
    const double tolerance = magnitude * (compute == ComputeType::kBf16 ? 0x1p-8 : 0x1p-18);
    if (!(std::abs(out[i * shape.n + j] - sum) <= tolerance)) {
      std::printf("WRONG: %zu x %zu %s, row %zu output %zu: %g, expected %g\n", shape.n, shape.k,
                  WeightFormatName(shape.format), i, j, static_cast<double>(out[i * shape.n + j]),
                  sum);
      return false;
    }
  }
  return true;
}

bool all_good = true;

const char* Judge(bool good) {
  all_good = all_good && good;
  return good ? "pass" : "SHORT";
}

void BenchGemm(const Context& ctx, const Shape& shape, size_t rows, double peak_gflops,
               double budget) {
  Rng rng(1, rows);
  const Problem problem = MakeProblem(shape, ctx.compute(), ctx.pool(), rng);
  // Aligned as a model's buffers are: a vector that lies across two cache lines costs two stores.
  AlignedBuffer x_memory = Allocate(rows * shape.k);
  AlignedBuffer out_memory = Allocate(rows * shape.n);
  const std::span<float> x = x_memory.As<float>();
  const std::span<float> out = out_memory.As<float>();
  for (float& f : x) {
    f = static_cast<float>(rng.Uniform() * 2 - 1);
  }
  PackedActivations packed = PackedActivations::Create(ctx.compute(), rows, shape.k).value();
  const GemmOutput output = {.weights = &problem.weights, .out = out.data(), .ld_out = shape.n};
  const auto run = [&] {
    packed.Pack(ctx, x.data(), rows, shape.k, shape.k);
    Gemm(ctx, packed, {&output, 1});
  };
  run();
  if (!Verify(shape, problem, ctx.compute(), x, out, rows, rng)) {
    all_good = false;
    return;
  }
  const double seconds = BestSeconds(5, budget, run);
  const double gflops = 2.0 * static_cast<double>(rows * shape.n * shape.k) / seconds * 1e-9;
  const double share = gflops / peak_gflops;
  const bool judged = shape.n >= kSmallOutputs || ctx.pool().num_threads() == 1;
  std::printf("%-13s %6zu x %-5zu %-5s %5zu  %8.1f  %5.1f %%   %s\n", shape.model, shape.n, shape.k,
              WeightFormatName(shape.format), rows, gflops, 100 * share,
              judged ? Judge(share >= kGemmGoal) : "");
}

// The matrices of one layer and of the output head.
struct DecodeModel {
  const char* name;
  int layers;
  std::vector<std::vector<Shape>> products;  // matrices of one product share their input
  Shape head;
};

std::vector<DecodeModel> DecodeModels() {
  const WeightFormat a = WeightFormat::kQ4_1;
  const WeightFormat b = WeightFormat::kQ5_0;
  return {
      {"SmolLM2-135M Q4_1",
       30,
       {{{"", 576, 576, a}, {"", 192, 576, a}, {"", 192, 576, a}},
        {{"", 576, 576, a}},
        {{"", 1536, 576, a}, {"", 1536, 576, a}},
        {{"", 576, 1536, a}}},
       {"", 49152, 576, WeightFormat::kQ8_0}},
      {"Qwen2.5-0.5B Q4_K_M",
       24,
       {{{"", 896, 896, b}, {"", 128, 896, b}, {"", 128, 896, WeightFormat::kQ8_0}},
        {{"", 896, 896, b}},
        {{"", 4864, 896, b}, {"", 4864, 896, b}},
        {{"", 896, 4864, WeightFormat::kQ6_K}}},
       {"", 151936, 896, WeightFormat::kQ8_0}},
  };
}

// All weight products of a decode step of `rows` requests.
void BenchDecode(const Context& ctx, const DecodeModel& model, size_t rows, double read_gbps,
                 bool judged, double budget) {
  Rng rng(2, rows);
  struct Product {
    std::vector<PackedMatrix> weights;
    std::vector<std::vector<float>> out;
    size_t k;
  };
  std::vector<Product> products;
  double bytes = 0;
  double values = 0;
  size_t max_k = 0;
  const auto add = [&](const std::vector<Shape>& shapes) {
    Product product;
    product.k = shapes[0].k;
    max_k = std::max(max_k, product.k);
    for (const Shape& shape : shapes) {
      product.weights.push_back(MakeProblem(shape, ctx.compute(), ctx.pool(), rng).weights);
      product.out.emplace_back(rows * shape.n);
      bytes += static_cast<double>(product.weights.back().size_bytes());
      values += static_cast<double>(shape.n * shape.k);
    }
    products.push_back(std::move(product));
  };
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const std::vector<Shape>& shapes : model.products) {
      add(shapes);
    }
  }
  add({model.head});
  std::vector<float> x(rows * max_k);
  for (float& f : x) {
    f = static_cast<float>(rng.Uniform() * 2 - 1);
  }
  PackedActivations packed = PackedActivations::Create(ctx.compute(), rows, max_k).value();
  const double seconds = BestSeconds(10, budget, [&] {
    for (Product& product : products) {
      packed.Pack(ctx, x.data(), rows, product.k, max_k);
      std::vector<GemmOutput> outputs;
      for (size_t i = 0; i < product.weights.size(); ++i) {
        outputs.push_back({.weights = &product.weights[i],
                           .out = product.out[i].data(),
                           .ld_out = product.weights[i].n()});
      }
      Gemm(ctx, packed, outputs);
    }
  });
  const double gbps = bytes / seconds * 1e-9;
  const double share = gbps / read_gbps;
  std::printf("%-20s %3zu  %7.2f ms  %6.1f MB  %4.1f bits  %6.1f GB/s  %5.1f %%   %s\n", model.name,
              rows, seconds * 1e3, bytes * 1e-6, 8 * bytes / values, gbps, 100 * share,
              judged ? Judge(share >= kDecodeGoal) : "");
}

int Run(bool quick) {
  const Result<Isa> isa = SelectIsa();
  if (!isa.has_value()) {
    std::fprintf(stderr, "%s\n", isa.error().message.c_str());
    return 2;
  }
  const SystemClock clock;
  const Result<ReadProbe> probe = ReadProbe::Create();
  if (!probe.has_value()) {
    std::fprintf(stderr, "gemm_bench: %s\n", probe.error().message.c_str());
    return 2;
  }
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
    if (!ComputeSupported(*isa, compute)) {
      continue;
    }
    const char* type = compute == ComputeType::kBf16 ? "bf16" : "f32";
    double peak = 0;
    double read = 0;
    for (const int threads : {1, 2}) {
      ThreadPool pool(threads);
      const Context ctx = Context::Create(*isa, compute, pool).value();
      // Other processes may disturb one measurement: two threads have twice the peak of
      // one and at least its bandwidth.
      peak = std::max(threads * peak, MeasurePeakGflops(clock, *isa, compute, pool));
      for (int i = 0; i < 6; ++i) {
        read = std::max(read, probe->PassGbps(clock, *isa, pool));
      }
      std::printf("\n%s %s, %d thread%s: peak %.1f GFLOP/s, read %.1f GB/s\n", IsaName(*isa), type,
                  threads, threads == 1 ? "" : "s", peak, read);
      std::printf("%-13s %14s %-5s %5s  %8s  %7s   goal %.0f %%\n", "", "n x k", "", "rows",
                  "GFLOP/s", "of peak", 100 * kGemmGoal);
      for (const Shape& shape : kShapes) {
        for (const size_t rows : {64, 512}) {
          if (quick && (rows == 512 || shape.n > 10000)) {
            continue;
          }
          if (shape.n * rows > (size_t{16} << 20)) {
            continue;  // 512 rows of logits: no step asks for them
          }
          BenchGemm(ctx, shape, rows, peak, quick ? 0.05 : 0.15);
        }
      }
      // A slower ISA than the machine's best is bound by its instructions.
      const bool best_isa = *isa == SupportedIsas().back();
      std::printf("weight products of a decode step, share of the read bandwidth");
      if (best_isa) {
        std::printf("; goal %.0f %% at 1 row", 100 * kDecodeGoal);
      }
      std::printf("\n");
      for (const DecodeModel& model : DecodeModels()) {
        for (const size_t rows : {1, 4, 16}) {
          if (quick && (rows > 1 || model.layers != 30)) {
            continue;
          }
          BenchDecode(ctx, model, rows, read, best_isa && rows == 1, quick ? 0.1 : 0.5);
        }
      }
    }
  }
  std::printf("\n%s\n", all_good ? "all goals met" : "SHORT of at least one goal");
  return all_good ? 0 : 1;
}

}  // namespace
}  // namespace kvik::tensor

int main(int argc, char** argv) {
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else {
      std::fprintf(stderr, "usage: gemm_bench [--quick]\n");
      return 2;
    }
  }
  try {
    return kvik::tensor::Run(quick);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gemm_bench: %s\n", error.what());
    return 1;
  }
}
