// SPDX-License-Identifier: Apache-2.0
// Speed of attention as shares of what this machine does at best, measured in the same run.
//   attention_bench [--quick] [--threads N] [--only SUBSTRING] [--cpu-time]
// --cpu-time implies --threads 1 and counts the time that the thread ran instead of the time that
// passed: for machines on which something else runs.
// KVIK_KERNELS chooses the ISA; the arithmetic is bf16 where it has it. Every shape is compared
// with the double-precision reference before it is timed. Exit 1 when a goal is missed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "attention/attention.h"
#include "attention/kv_pages.h"
#include "attention/reference.h"
#include "base/aligned_buffer.h"
#include "base/float16.h"
#include "base/machine_peak.h"
#include "base/rng.h"
#include "base/testing/bench_clock.h"
#include "base/testing/bench_options.h"
#include "base/testing/median.h"

namespace kvik::attention {
namespace {

// Timings of one thing and another next to it, of which the median ratio counts.
constexpr size_t kPairs = 30;

using Options = kvik::testing::BenchOptions;
using kvik::testing::BenchClock;
using kvik::testing::OrDie;

// Requests of `context` tokens each, all cached, their blocks at random places; and queries for
// them.
class Setup {
 public:
  Setup(Isa isa, ComputeType compute, const AttentionShape& shape, int num_layers, int block_size,
        int requests, int context, ThreadPool& pool)
      : shape_(shape),
        geometry_{num_layers, shape.num_kv_heads, shape.head_dim, block_size, kv::KvDtype::kBf16},
        pool_(pool),
        masks_(geometry_, NumBlocks(block_size, requests, context)) {
    attention_ = OrDie(Attention::Create(isa, compute, shape, geometry_));
    const auto table_size = static_cast<size_t>((context + block_size - 1) / block_size);
    const auto blocks = static_cast<size_t>(NumBlocks(block_size, requests, context));
    arena_ = OrDie(AlignedBuffer::Create(blocks * geometry_.bytes_per_block()));
    Rng rng(1);
    // Keys and values: two bf16 numbers in [-2, 2) a draw, written as bits; any layout will do.
    uint64_t bits = 0;
    for (Bf16& value : arena_.As<Bf16>()) {
      bits = bits * 6364136223846793005ULL + 1442695040888963407ULL;
      value = ToBf16(static_cast<float>(bits >> 40) * 0x1.0p-22F - 2.0F);
    }
    std::vector<BlockId> ids(blocks);
    for (size_t i = 0; i < blocks; ++i) {
      ids[i] = static_cast<BlockId>(i);
    }
    for (size_t i = 0; i < blocks; ++i) {
      std::swap(ids[i], ids[i + rng.Below(blocks - i)]);
    }
    for (int r = 0; r < requests; ++r) {
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(table_size) * r;
      tables_.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(table_size));
    }
    q_.resize(static_cast<size_t>(std::max(context, requests)) * row_floats());
    for (float& q : q_) {
      q = static_cast<float>(rng.Uniform() * 4 - 2);
    }
    out_.resize(q_.size());
  }

  struct Range {
    int request, first_pos, num_tokens;
  };

  void Plan(AttentionPlan& plan, const std::vector<Range>& ranges, int first_row = 0) const {
    plan.Build(shape_, Segments(ranges, first_row), pool_.num_threads());
  }
  void Attend(const AttentionPlan& plan, int layer, bool with_masks = false) {
    attention_->Attend(plan, layer, q_, {arena_.data(), arena_.size_bytes()}, out_, pool_,
                       with_masks ? &masks_ : nullptr);
  }
  // Drops a token of a request in all layers and heads.
  void Drop(int request, int pos) {
    const int slot = pos % geometry_.block_size_tokens;
    const BlockId block = tables_[static_cast<size_t>(request)]
                                 [static_cast<size_t>(pos / geometry_.block_size_tokens)];
    for (int layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int head = 0; head < geometry_.num_kv_heads; ++head) {
        masks_.Drop(block, layer, head, slot, slot + 1);
      }
    }
  }

  // Compares up to `samples` rows of the last Attend(plan, layer, with_masks) with the reference.
  void Verify(const std::vector<Range>& ranges, int layer, int samples, bool with_masks = false) {
    const double tolerance = attention_->compute() == ComputeType::kBf16 ? 2e-2 : 1e-4;
    std::vector<MsaSegment> rows;
    for (const MsaSegment& s : Segments(ranges, 0)) {
      for (int i = 0; i < samples; ++i) {
        const int t =
            static_cast<int>(static_cast<int64_t>(s.num_tokens - 1) * i / std::max(1, samples - 1));
        rows.push_back({s.first_row + t, 1, s.first_pos + t, s.block_table});
      }
    }
    std::vector<double> want(q_.size());
    ReferenceAttention(shape_, geometry_, rows, layer, q_, {arena_.data(), arena_.size_bytes()},
                       want, with_masks ? &masks_ : nullptr);
    for (const MsaSegment& s : rows) {
      for (size_t i = 0; i < row_floats(); ++i) {
        const size_t at = static_cast<size_t>(s.first_row) * row_floats() + i;
        const double error = std::abs(static_cast<double>(out_[at]) - want[at]);
        if (!(error <= tolerance)) {
          std::fprintf(stderr, "attention_bench: position %d differs from the reference by %g\n",
                       s.first_pos, error);
          std::exit(1);
        }
      }
    }
  }

  [[nodiscard]] uint64_t num_dispatches() const { return attention_->num_dispatches(); }
  [[nodiscard]] const kv::KvGeometry& geometry() const { return geometry_; }

 private:
  static int NumBlocks(int block_size, int requests, int context) {
    return (context + block_size - 1) / block_size * requests;
  }
  [[nodiscard]] size_t row_floats() const {
    return static_cast<size_t>(shape_.num_q_heads * shape_.head_dim);
  }
  [[nodiscard]] std::vector<MsaSegment> Segments(const std::vector<Range>& ranges,
                                                 int first_row) const {
    std::vector<MsaSegment> segments;
    for (const Range& range : ranges) {
      segments.push_back({first_row, range.num_tokens, range.first_pos,
                          tables_[static_cast<size_t>(range.request)].data()});
      first_row += range.num_tokens;
    }
    return segments;
  }

  AttentionShape shape_;
  kv::KvGeometry geometry_;
  ThreadPool& pool_;
  kv::BlockMasks masks_;
  std::unique_ptr<Attention> attention_;
  AlignedBuffer arena_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<float> q_, out_;
};

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
    std::printf("attention_bench: %s kernels, %s arithmetic, bf16 KV, %d threads\n", IsaName(isa_),
                compute_ == ComputeType::kBf16 ? "bf16" : "float32", options_.threads);
    std::printf("%-44s %14s %14s %7s %6s\n", "case", "measured", "of", "share", "goal");
    const AttentionShape small = Shape(9, 3, 64);
    const AttentionShape large = Shape(32, 8, 128);
    const AttentionShape medium = Shape(8, 2, 128);  // a quarter of `large`: prefill is long enough
    for (int length : {1024, 4096, 8192}) {
      if (options_.quick && length == 8192) {
        continue;
      }
      Prefill(small, length, 16);
      Prefill(medium, length, 16);
    }
    Prefill(small, 4096, 64);
    TwoSegments(small, 64, 1920);
    TwoSegments(small, 512, 3072);
    TwoSegments(medium, 512, 3072);
    for (int percent = 0; percent <= 100; percent += options_.quick ? 50 : 10) {
      CachedShare(small, 1024, percent);
      CachedShare(medium, 1024, percent);
      CachedShare(Shape(3, 1, 64), 10240, percent);  // a third of `small`, for the time it takes
    }
    for (int context : {1024, 4096, 8192}) {
      if (options_.quick && context == 8192) {
        continue;
      }
      for (int batch : {1, 4}) {
        Decode(small, batch, context, 16);
        Decode(large, batch, context, 16);
      }
    }
    Decode(small, 1, 4096, 64);
    for (int queries : {1, 512}) {
      for (const AttentionShape& shape : {small, medium}) {
        Masked(shape, 4096, queries, Drops::kOfOthers);
        Masked(shape, 4096, queries, Drops::kMiddle);
        Masked(shape, 4096, queries, Drops::kScattered);
      }
    }
    std::printf("%d of %d cases reach their goal\n", passed_, cases_);
    return passed_ == cases_ ? 0 : 1;
  }

 private:
  static AttentionShape Shape(int q_heads, int kv_heads, int head_dim) {
    return {q_heads, kv_heads, head_dim, 1.0F / std::sqrt(static_cast<float>(head_dim)), 0};
  }
  static std::string Name(const AttentionShape& s, int block_size) {
    return std::to_string(s.num_q_heads) + "/" + std::to_string(s.num_kv_heads) + " d" +
           std::to_string(s.head_dim) + " b" + std::to_string(block_size);
  }
  [[nodiscard]] bool Selected(const std::string& name) const {
    return name.find(options_.only) != std::string::npos;
  }
  void Report(const std::string& name, double measured, double of, const char* unit, double share,
              double goal, bool pass) {
    ++cases_;
    passed_ += pass ? 1 : 0;
    std::printf("%-44s %9.2f %-4s %9.2f %-4s %6.1f%% %5.0f%%  %s\n", name.c_str(), measured, unit,
                of, unit, 100 * share, 100 * goal, pass ? "pass" : "short");
    std::fflush(stdout);
  }

  // Seconds of the fastest of several calls; stops after about `budget_s`.
  template <typename Fn>
  double Best(double budget_s, int min_runs, Fn&& fn) {
    double best = 1e30;
    const double start = wall_.NowSeconds();
    for (int i = 0; i < min_runs || wall_.NowSeconds() - start < budget_s; ++i) {
      const double t = clock_.NowSeconds();
      fn();
      best = std::min(best, clock_.NowSeconds() - t);
    }
    return best;
  }
  [[nodiscard]] double budget_s() const { return options_.quick ? 0.3 : 1.5; }

  // The machine's peak is measured before and after, like everything else the best of all: other
  // processes come and go.
  void Prefill(const AttentionShape& shape, int length, int block_size) {
    const std::string name = "prefill " + Name(shape, block_size) + " " + std::to_string(length);
    if (!Selected(name)) {
      return;
    }
    Setup setup(isa_, compute_, shape, 1, block_size, 1, length, pool_);
    AttentionPlan plan;
    const std::vector<Setup::Range> ranges = {{0, 0, length}};
    setup.Plan(plan, ranges);
    setup.Attend(plan, 0);
    setup.Verify(ranges, 0, 3);
    MeasurePeak();
    const double seconds = Best(budget_s(), 3, [&] { setup.Attend(plan, 0); });
    MeasurePeak();
    const double operations =
        4.0 * shape.head_dim * shape.num_q_heads * 0.5 * length * (static_cast<double>(length) + 1);
    const double gflops = operations / seconds * 1e-9;
    const double goal = length >= 4096 ? 0.70 : 0.60;
    Report(name, gflops, peak_gflops_, "GF/s", gflops / peak_gflops_, goal,
           gflops >= goal * peak_gflops_);
  }

  // Two runs of `tokens` queries around `gap` cached tokens: in one call; the same number of
  // query-key pairs as one segment; and in two calls.
  void TwoSegments(const AttentionShape& shape, int tokens, int gap) {
    const std::string name = "segments " + Name(shape, 16) + " " + std::to_string(tokens) + "+" +
                             std::to_string(tokens) + " gap " + std::to_string(gap);
    if (!Selected(name)) {
      return;
    }
    const int start = 512;
    Setup setup(isa_, compute_, shape, 1, 16, 1, start + 2 * tokens + gap, pool_);
    const std::vector<Setup::Range> two = {{0, start, tokens}, {0, start + tokens + gap, tokens}};
    AttentionPlan one_plan, two_plan, first_plan, second_plan;
    setup.Plan(two_plan, two);
    setup.Plan(one_plan, {{0, start + gap / 2, 2 * tokens}});
    setup.Plan(first_plan, {two[0]});
    setup.Plan(second_plan, {two[1]}, tokens);
    setup.Attend(two_plan, 0);
    setup.Verify(two, 0, 3);

    const auto seconds = [&](const auto& fn) {
      const double begin = clock_.NowSeconds();
      fn();
      return clock_.NowSeconds() - begin;
    };
    // Each against its neighbour in time; the order alternates, since the first of two calls finds
    // the keys less close.
    std::vector<double> one_s, two_s, calls_s, to_one, to_calls;
    uint64_t dispatches_one_call = 0, dispatches_two_calls = 0;
    const double start_s = wall_.NowSeconds();
    while (to_one.size() < 21 || wall_.NowSeconds() - start_s < 2 * budget_s()) {
      const auto one = [&] { one_s.push_back(seconds([&] { setup.Attend(one_plan, 0); })); };
      const auto calls = [&] {
        const uint64_t before = setup.num_dispatches();
        calls_s.push_back(seconds([&] {
          setup.Attend(first_plan, 0);
          setup.Attend(second_plan, 0);
        }));
        dispatches_two_calls = setup.num_dispatches() - before;
      };
      const bool turn = to_one.size() % 2 == 0;
      turn ? one() : calls();
      const uint64_t before = setup.num_dispatches();
      two_s.push_back(seconds([&] { setup.Attend(two_plan, 0); }));
      dispatches_one_call = setup.num_dispatches() - before;
      turn ? calls() : one();
      to_one.push_back(two_s.back() / one_s.back());
      to_calls.push_back(two_s.back() / calls_s.back());
    }
    using kvik::testing::Median;
    Report(name + ", cost against one segment", Median(two_s) * 1e3, Median(one_s) * 1e3, "ms",
           Median(to_one), 1.02, Median(to_one) <= 1.02);
    Report(name + ", " + std::to_string(dispatches_one_call) + " against " +
               std::to_string(dispatches_two_calls) + " dispatches",
           Median(two_s) * 1e3, Median(calls_s) * 1e3, "ms", Median(to_calls),
           1.005,  // two calls or one compute the same: 0.5 % is what the clock cannot tell apart
           Median(to_calls) <= 1.005 && dispatches_one_call == 1 && dispatches_two_calls == 2);
  }

  // A prompt of `total` tokens that ends in 128 new ones, of whose others a share is cached: as a
  // prefix, which leaves one run to compute; or as a suffix, which leaves two, in one call or two.
  void CachedShare(const AttentionShape& shape, int total, int percent) {
    const std::string name = "cached " + Name(shape, 16) + " " + std::to_string(total) + " " +
                             std::to_string(percent) + "%";
    if (!Selected(name)) {
      return;
    }
    const int context = total - 128;
    const int cached = context * percent / 100 / 16 * 16;
    Setup setup(isa_, compute_, shape, 1, 16, 1, total, pool_);
    std::vector<Setup::Range> suffix = {{0, context, 128}};
    if (cached < context) {
      suffix.insert(suffix.begin(), {0, 0, context - cached});
    }
    AttentionPlan prefix_plan, suffix_plan;
    setup.Plan(prefix_plan, {{0, cached, total - cached}});
    setup.Plan(suffix_plan, suffix);
    std::vector<AttentionPlan> call_plans(suffix.size());
    int first_row = 0;
    for (size_t i = 0; i < suffix.size(); ++i) {
      setup.Plan(call_plans[i], {suffix[i]}, first_row);
      first_row += suffix[i].num_tokens;
    }
    setup.Attend(suffix_plan, 0);
    setup.Verify(suffix, 0, 3);

    const std::function<void()> runs[] = {
        [&] { setup.Attend(prefix_plan, 0); },
        [&] { setup.Attend(suffix_plan, 0); },
        [&] {
          for (const AttentionPlan& plan : call_plans) {
            setup.Attend(plan, 0);
          }
        },
    };
    // Neighbours in time are compared, and each kind is as often the first of three.
    std::vector<double> seconds[3], to_prefix, to_calls;
    const double start_s = wall_.NowSeconds();
    for (size_t turn = 0; turn < kPairs || wall_.NowSeconds() - start_s < budget_s(); ++turn) {
      for (size_t i = 0; i < std::size(runs); ++i) {
        const size_t kind = (i + turn) % std::size(runs);
        const double begin = clock_.NowSeconds();
        runs[kind]();
        seconds[kind].push_back(clock_.NowSeconds() - begin);
      }
      to_prefix.push_back(seconds[1].back() / seconds[0].back());
      to_calls.push_back(seconds[1].back() / seconds[2].back());
    }
    using kvik::testing::Median;
    const double suffix_ms = Median(seconds[1]) * 1e3;
    Report(name + ", suffix to prefix", suffix_ms, Median(seconds[0]) * 1e3, "ms",
           Median(to_prefix), 1.02, Median(to_prefix) <= 1.02);
    Report(name + ", one call to two", suffix_ms, Median(seconds[2]) * 1e3, "ms", Median(to_calls),
           1.01, Median(to_calls) <= 1.01);
  }

  // One token of `batch` requests, layer after layer, so that keys and values come from memory.
  void Decode(const AttentionShape& shape, int batch, int context, int block_size) {
    const std::string name = "decode " + Name(shape, block_size) + " " + std::to_string(batch) +
                             " x " + std::to_string(context);
    if (!Selected(name)) {
      return;
    }
    const double layer_bytes =
        4.0 * shape.num_kv_heads * shape.head_dim * batch * static_cast<double>(context);
    const int layers = std::max(2, static_cast<int>(256e6 / layer_bytes));
    Setup setup(isa_, compute_, shape, layers, block_size, batch, context, pool_);
    std::vector<Setup::Range> ranges;
    for (int r = 0; r < batch; ++r) {
      ranges.push_back({r, context - 1, 1});
    }
    AttentionPlan plan;
    setup.Plan(plan, ranges);
    setup.Attend(plan, 1);
    setup.Verify(ranges, 1, 1);
    // A pass of reading next to every pass of decoding: neighbours on the host take bandwidth.
    std::vector<double> reads, decodes, shares;
    const double start = wall_.NowSeconds();
    while (shares.size() < 5 || wall_.NowSeconds() - start < budget_s()) {
      reads.push_back(read_probe_.PassGbps(clock_, isa_, pool_));
      const double begin = clock_.NowSeconds();
      for (int layer = 0; layer < layers; ++layer) {
        setup.Attend(plan, layer);
      }
      decodes.push_back(layer_bytes * layers / (clock_.NowSeconds() - begin) * 1e-9);
      shares.push_back(decodes.back() / reads.back());
    }
    const double goal = context >= 4096 ? 0.60 : 0.50;
    const double share = kvik::testing::Median(shares);
    Report(name, kvik::testing::Median(decodes), kvik::testing::Median(reads), "GB/s", share, goal,
           share >= goal);
  }

  // What dropped slots cost, or save, against the same work without them: `queries` tokens at the
  // end of a context, layer after layer.
  enum class Drops {
    kOfOthers,   // of a block that the request does not have
    kMiddle,     // a streaming head: the first 64 tokens and the last 256 are kept
    kScattered,  // every other token on average
  };
  void Masked(const AttentionShape& shape, int context, int queries, Drops drops) {
    constexpr const char* kNames[] = {"of others", "middle", "scattered"};
    const std::string name = "drops " + Name(shape, 16) + " " + std::to_string(queries) + " of " +
                             std::to_string(context) + " " + kNames[static_cast<int>(drops)];
    if (!Selected(name)) {
      return;
    }
    const double layer_bytes = 4.0 * shape.num_kv_heads * shape.head_dim * context;
    const int layers = queries > 1 ? 2 : std::max(2, static_cast<int>(256e6 / layer_bytes));
    Setup setup(isa_, compute_, shape, layers, 16, 2, context, pool_);
    const std::vector<Setup::Range> ranges = {{0, context - queries, queries}};
    AttentionPlan plan;
    setup.Plan(plan, ranges);
    Rng rng(2);
    int kept = context;
    if (drops == Drops::kOfOthers) {
      setup.Drop(1, 0);
    } else {
      for (int pos = 0; pos < context - queries; ++pos) {
        if (drops == Drops::kMiddle ? pos >= 64 && pos < context - queries - 256
                                    : rng.Below(2) == 0) {
          setup.Drop(0, pos);
          --kept;
        }
      }
    }
    setup.Attend(plan, 1, true);
    setup.Verify(ranges, 1, 3, true);
    const auto seconds = [&](bool with_masks) {
      const double begin = clock_.NowSeconds();
      for (int layer = 0; layer < layers; ++layer) {
        setup.Attend(plan, layer, with_masks);
      }
      return clock_.NowSeconds() - begin;
    };
    std::vector<double> plain_s, masked_s, shares;
    const double start_s = wall_.NowSeconds();
    while (shares.size() < kPairs || wall_.NowSeconds() - start_s < budget_s()) {
      const bool turn = shares.size() % 2 == 0;
      if (turn) {
        plain_s.push_back(seconds(false));
      }
      masked_s.push_back(seconds(true));
      if (!turn) {
        plain_s.push_back(seconds(false));
      }
      shares.push_back(masked_s.back() / plain_s.back());
    }
    using kvik::testing::Median;
    // A decode of few rows does little with a tile, next to which copying its values shows.
    const double goal = drops == Drops::kOfOthers    ? 1.02
                        : drops == Drops::kScattered ? (queries == 1 ? 1.4 : 1.15)
                                                     : 1.25 * kept / context + 0.05;
    Report(name, Median(masked_s) * 1e3, Median(plain_s) * 1e3, "ms", Median(shares), goal,
           Median(shares) <= goal);
  }

  void MeasurePeak() {
    peak_gflops_ = std::max(peak_gflops_, MeasurePeakGflops(clock_, isa_, compute_, pool_));
  }

  Isa isa_;
  ComputeType compute_;
  Options options_;
  const BenchClock wall_{/*cpu_time=*/false};  // for budgets
  BenchClock clock_;
  ThreadPool pool_;
  ReadProbe read_probe_ = OrDie(ReadProbe::Create());
  double peak_gflops_ = 0;
  int cases_ = 0;
  int passed_ = 0;
};

int Main(int argc, char** argv) {
  const auto options = kvik::testing::ParseBenchOptions(argc, argv, false);
  return options ? Bench(OrDie(SelectIsa()), *options).Run() : 2;
}

}  // namespace
}  // namespace kvik::attention

int main(int argc, char** argv) { return kvik::attention::Main(argc, argv); }
