// SPDX-License-Identifier: Apache-2.0
// connector/profile_set.h: the encodings that this process can write and read: raw and lossless
// always, the uncalibrated presets, and the profiles of a library.
//
// Immutable; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/isa.h"
#include "base/result.h"
#include "codec/frame.h"
#include "codec/model_facts.h"
#include "codec/profile_library.h"
#include "control/speeds.h"
#include "kv/block_key.h"

namespace kvik::connector {

inline constexpr const char* kRawName = "raw";
inline constexpr const char* kLosslessName = "lossless";

struct CodecProfile {
  std::string name;
  uint64_t hash = 0;  // FrameCodec::profile_hash(): what objects are named with
  std::unique_ptr<const codec::FrameCodec> codec;
  bool lossy = false;
  // Tokens of an object; chunks are aligned to it. What writer and reader must agree on.
  int32_t chunk_tokens = 0;
  // Lower end of the 95 % interval of q over all workloads; 1 when exact, 0 when never measured.
  float q = 1.0F;
  const codec::Profile* listed = nullptr;  // in the set's library; null: in none

  // What KV that comes by this profile counts as, for a reader with this workload.
  [[nodiscard]] kv::BlockQuality QualityFor(std::string_view workload) const;
};

class ProfileSet {
 public:
  // `library` may be null. Presets that need calibration come from the library only; a library's
  // profile replaces a preset of its name. Methods that were published for whole requests keep
  // their own chunks, all others have `chunk_tokens`. kInvalidInput: the library is another
  // model's, a pipeline cannot be made ready, chunk_tokens is not positive.
  static Result<std::shared_ptr<const ProfileSet>> Create(
      const codec::ModelFacts& model, std::shared_ptr<const codec::ProfileLibrary> library,
      int32_t chunk_tokens, Isa isa);

  [[nodiscard]] const std::vector<CodecProfile>& all() const { return profiles_; }  // raw first
  [[nodiscard]] const CodecProfile& raw() const { return profiles_[0]; }
  [[nodiscard]] const CodecProfile& lossless() const { return profiles_[1]; }
  // Null: unknown.
  [[nodiscard]] const CodecProfile* Find(std::string_view name) const;
  [[nodiscard]] const CodecProfile* FindHash(uint64_t hash) const;

  [[nodiscard]] const codec::ModelFacts& model() const { return model_; }
  [[nodiscard]] const codec::ProfileLibrary* library() const { return library_.get(); }

  // What a pool keeps so that every reader finds something, at most three: lossless, and of the
  // library's measured lossy profiles the smallest with q >= 0.97, the one of that quality that is
  // the quickest to read over a fast link at these speeds, and the smallest with q >= 0.95.
  [[nodiscard]] std::vector<const CodecProfile*> ForStoring(
      const control::MachineSpeeds& speeds) const;

 private:
  ProfileSet() = default;
  codec::ModelFacts model_;
  std::shared_ptr<const codec::ProfileLibrary> library_;
  std::vector<CodecProfile> profiles_;
  std::unordered_map<uint64_t, size_t> by_hash_;
};

}  // namespace kvik::connector
