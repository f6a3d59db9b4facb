// SPDX-License-Identifier: Apache-2.0
#include "base/isa.h"

#include <cstdlib>

namespace kvik {
namespace {
constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};
}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "unknown";
}

std::optional<Isa> ParseIsa(std::string_view name) {
  for (Isa isa : kAllIsas) {
    if (name == IsaName(isa)) {
      return isa;
    }
  }
  return std::nullopt;
}

bool IsaSupported(Isa isa) {
  // __builtin_cpu_supports also asks the operating system (XCR0) about the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

bool VbmiSupported() {
  static const bool kSupported =
      IsaSupported(Isa::kAvx512) && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vpopcntdq");
  return kSupported;
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (Isa isa : kAllIsas) {
    if (IsaSupported(isa)) {
      isas.push_back(isa);
    }
  }
  return isas;
}

bool ComputeSupported(Isa isa, ComputeType type) {
  return type == ComputeType::kF32 || isa == Isa::kScalar || isa == Isa::kAvx512Bf16;
}

Result<Isa> SelectIsa() {
  const char* forced = std::getenv("KVIK_KERNELS");
  if (forced == nullptr || *forced == '\0') {
    return SupportedIsas().back();
  }
  const std::optional<Isa> isa = ParseIsa(forced);
  if (!isa) {
    return Err(ErrorCode::kInvalidInput,
               "KVIK_KERNELS=%s is unknown; use scalar, avx2, avx512 or avx512bf16", forced);
  }
  if (!IsaSupported(*isa)) {
    return Err(ErrorCode::kUnsupported,
               "KVIK_KERNELS=%s: this CPU cannot run it; the best here is %s", forced,
               IsaName(SupportedIsas().back()));
  }
  return *isa;
}

}  // namespace kvik
