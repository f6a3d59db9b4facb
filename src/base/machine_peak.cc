// SPDX-License-Identifier: Apache-2.0
#include "base/machine_peak.h"

#include <algorithm>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/machine_peak_inl.h"

namespace kvik {
namespace {

const PeakLoops& LoopsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kPeakLoopsScalar;
    case Isa::kAvx2:
      return kPeakLoopsAvx2;
    case Isa::kAvx512:
      return kPeakLoopsAvx512;
    case Isa::kAvx512Bf16:
      return kPeakLoopsAvx512Bf16;
  }
  KVIK_CHECK(false, "unknown ISA");
}

struct alignas(64) Sink {
  float lane[16] = {};
};

}  // namespace

double MeasurePeakGflops(const Clock& clock, Isa isa, ComputeType type, ThreadPool& pool) {
  KVIK_CHECK(IsaSupported(isa) && ComputeSupported(isa, type));
  const PeakLoops& loops = LoopsOf(isa);
  const auto loop = type == ComputeType::kBf16 ? loops.bf16 : loops.f32;
  const auto threads = static_cast<size_t>(pool.num_threads());
  std::vector<Sink> sinks(threads);
  std::vector<double> operations(threads);
  const auto run = [&](size_t iterations) {
    const int64_t start_us = clock.NowMicros();
    pool.ParallelFor(threads,
                     [&](size_t i, int) { operations[i] = loop(iterations, sinks[i].lane); });
    return clock.NowMicros() - start_us;
  };
  size_t iterations = 1000;
  while (run(iterations) < 4000) {  // until a run takes some milliseconds
    iterations *= 2;
  }
  double best = 0;
  for (int i = 0; i < 12; ++i) {
    const auto us = static_cast<double>(std::max<int64_t>(1, run(iterations)));
    double sum = 0;
    for (double n : operations) {
      sum += n;
    }
    best = std::max(best, sum / us * 1e-3);
  }
  return best;
}

Result<ReadProbe> ReadProbe::Create() {
  KVIK_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Create(size_t{256} << 20));
  const std::span<float> data = buffer.As<float>();
  std::fill(data.begin(), data.end(), 1.0F);  // else all pages are one page of zeros
  return ReadProbe(std::move(buffer));
}

double ReadProbe::PassGbps(const Clock& clock, Isa isa, ThreadPool& pool) const {
  KVIK_CHECK(IsaSupported(isa));
  constexpr size_t kPieceBytes = size_t{1} << 20;
  constexpr size_t kPieceFloats = kPieceBytes / sizeof(float);
  const auto* data = reinterpret_cast<const float*>(buffer_.data());
  std::vector<Sink> sinks(static_cast<size_t>(pool.num_threads()));
  const int64_t start_us = clock.NowMicros();
  pool.ParallelFor(buffer_.size_bytes() / kPieceBytes, [&](size_t piece, int thread) {
    LoopsOf(isa).read(data + piece * kPieceFloats, kPieceFloats,
                      sinks[static_cast<size_t>(thread)].lane);
  });
  const auto us = static_cast<double>(std::max<int64_t>(1, clock.NowMicros() - start_us));
  return static_cast<double>(buffer_.size_bytes()) / us * 1e-3;
}

}  // namespace kvik
