// SPDX-License-Identifier: Apache-2.0
// base/isa.h: which instruction set the kernels use. Detected once; KVIK_KERNELS forces one.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvik {

// Ordered: a later ISA includes the earlier ones.
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

// Arithmetic of GEMM and attention. kBf16 (products of bf16 pairs, float32 sums) exists on
// kAvx512Bf16 and in the scalar twin.
enum class ComputeType { kF32, kBf16 };

const char* IsaName(Isa isa);  // "scalar", "avx2", "avx512", "avx512bf16": KVIK_KERNELS' values
std::optional<Isa> ParseIsa(std::string_view name);
bool IsaSupported(Isa isa);        // by this CPU and operating system
bool VbmiSupported();              // AVX-512's VBMI, CD and VPOPCNTDQ: no Isa promises these
std::vector<Isa> SupportedIsas();  // for tests: each is run, the others skipped by name
bool ComputeSupported(Isa isa, ComputeType type);

// The best supported ISA, or the one KVIK_KERNELS names (kInvalidInput when unknown, kUnsupported
// when this CPU lacks it). Reads the environment on every call.
Result<Isa> SelectIsa();

}  // namespace kvik
