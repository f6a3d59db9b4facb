// SPDX-License-Identifier: Apache-2.0
// codec/pipeline.h: a compression pipeline by name.
//
//   k:center+prerope+hadamard|v:hadamard -> ecsq(d=0.02,heads=mix(0.6)) -> rans
//
//   pipeline  = part " -> " part " -> " part        transforms, quantizer, coder
//   part      = chain | "k:" chain "|v:" chain      for both, or keys and values apart
//   chain     = stage { "+" stage }                 one stage for quantizer and coder
//                                                   (a selector of slots may stand first)
//   stage     = name [ "(" [name "="] value { "," [name "="] value } ")" ]
//   value     = number | word [ "(" value { "," value } ")" ]
//
// Blanks are free. `none` is the empty chain of transforms, the quantizer that keeps bf16, and the
// coder that stores symbols as bytes. A value without a name belongs to the next parameter in
// order. Every pipeline has one canonical string: parts that are alike written once, arguments in
// the order of the stage's parameters, defaults left out, numbers in their shortest form. Profiles
// store it, frames carry its hash.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/stage_args.h"
#include "kv/geometry.h"

namespace kvik::codec {

struct StageModule;

struct StageSpec {
  const StageModule* module = nullptr;  // of the registry
  StageArgs args;
  [[nodiscard]] std::string ToString() const;
  friend bool operator==(const StageSpec&, const StageSpec&) = default;
};

// The stages of keys or of values.
struct PartSpec {
  std::vector<StageSpec> transforms;
  StageSpec quantizer;
  StageSpec coder;
  friend bool operator==(const PartSpec&, const PartSpec&) = default;
  // Transforms [0, n) joined by +; "" when n is 0.
  [[nodiscard]] std::string TransformsBefore(size_t n) const;
};

struct PipelineSpec {
  // Which slots are kept, for keys and values alike; module is null when all are.
  StageSpec selector;
  PartSpec key;
  PartSpec value;

  // kInvalidInput: not of the grammar, an unknown stage or argument, or an illegal combination;
  // the message says where and why.
  static Result<PipelineSpec> Parse(std::string_view text);
  // The canonical string; Parse(ToString()) gives an equal pipeline.
  [[nodiscard]] std::string ToString() const;
  [[nodiscard]] uint64_t Hash() const;  // first 8 bytes of SHA-256 of the canonical string

  [[nodiscard]] const PartSpec& part(kv::KvPart part) const {
    return part == kv::KvPart::kKey ? key : value;
  }
  friend bool operator==(const PipelineSpec&, const PipelineSpec&) = default;
};

// The name of calibrated tensors of transform `index`, or of the quantizer when index is the number
// of transforms (side_info.h).
std::string SideKey(const PartSpec& part, kv::KvPart which, size_t index);
// The name of the symbol tables of the coder.
std::string TablesKey(const PartSpec& part, kv::KvPart which);

}  // namespace kvik::codec
