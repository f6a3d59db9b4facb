// SPDX-License-Identifier: Apache-2.0
// codec/profile_library.h: what a model's KV can be compressed with, and what each way costs in
// quality: pipelines, the calibrated tensors they use, and measured numbers.
//
// A library is two files that belong together: a JSON document for people and programs, and the
// calibrated tensors as one array of little-endian halves. docs/profile-library.md is the schema.
// Speeds are not in it: they belong to a machine, not to a model.
//
// Pure functions over text and bytes; nothing in either is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/frame.h"
#include "codec/model_facts.h"
#include "codec/side_info.h"

namespace kvik::codec {

constexpr int kProfileLibraryVersion = 1;
constexpr const char* kUnifiedWorkload = "unified";

// A measured mean and its 95 % confidence interval.
struct Measured {
  double value = 0;
  double low = 0;
  double high = 0;
  friend bool operator==(const Measured&, const Measured&) = default;
};

// How decoding on decoded KV compares with decoding on the raw one, on teacher-forced raw greedy
// continuations.
struct QualityRecord {
  std::string workload;       // a label, or kUnifiedWorkload: all of them mixed
  int32_t prompt_tokens = 0;  // of about this length; 0: of every length
  int32_t prompts = 0;
  int64_t positions = 0;
  Measured q;     // top-1 agreement where the raw run's margin is >= 0.5 logit; what q_min is about
  Measured kl;    // nats a position, raw against decoded
  Measured top1;  // agreement at all positions
  Measured ppl_ratio;  // perplexity of the continuation, decoded over raw
  // What a q_min is compared with: the lower end of q within [0, 1], rounded down.
  [[nodiscard]] float JudgedQ() const;
  friend bool operator==(const QualityRecord&, const QualityRecord&) = default;
};

// Raw bf16 bytes over bytes on the wire, everything counted, for prompts of about this length.
struct LengthRatio {
  int32_t prompt_tokens = 0;
  double cr = 0;
  friend bool operator==(const LengthRatio&, const LengthRatio&) = default;
};

struct Profile {
  std::string name;      // unique in its library: [a-z0-9._+-], at most 64 characters
  std::string pipeline;  // canonical
  // FrameCodec::profile_hash() of the pipeline with the library's model and tensors: what frames
  // say they were written with.
  uint64_t hash = 0;
  Fidelity fidelity = Fidelity::kLossy;
  std::vector<LengthRatio> ratios;     // by length, ascending
  std::vector<QualityRecord> quality;  // by workload, then length; empty: exact, or not measured

  // Of the workload over all lengths, of kUnifiedWorkload if it is not known, or null.
  [[nodiscard]] const QualityRecord* QualityFor(std::string_view workload) const;
  friend bool operator==(const Profile&, const Profile&) = default;
};

struct CalibrationText {
  std::string name;
  std::string sha256;  // of the file, hexadecimal
  int64_t tokens = 0;
  friend bool operator==(const CalibrationText&, const CalibrationText&) = default;
};

// Where the tensors come from.
struct CalibrationRecord {
  std::string command;   // as typed
  std::string numerics;  // Model::numerics_tag() of the run
  uint64_t seed = 0;
  std::vector<CalibrationText> texts;
  friend bool operator==(const CalibrationRecord&, const CalibrationRecord&) = default;
};

// Where the quality numbers come from.
struct EvaluationRecord {
  std::string command;
  std::string numerics;
  uint64_t seed = 0;
  friend bool operator==(const EvaluationRecord&, const EvaluationRecord&) = default;
};

struct ProfileLibrary {
  ModelFacts model;
  std::shared_ptr<const SideInfo> side_info;  // never null
  CalibrationRecord calibration;
  std::optional<EvaluationRecord> evaluation;  // none: quality is not measured yet
  std::vector<Profile> profiles;               // by name

  [[nodiscard]] const Profile* Find(std::string_view name) const;
  [[nodiscard]] const Profile* FindHash(uint64_t hash) const;
};

// The two files. `side_file` in the JSON names the second one, beside the first.
struct ProfileLibraryFiles {
  std::string json;
  std::vector<std::byte> side;
};

// Identity of what can be decoded with a library: 64 hexadecimal digits over the model, the
// pipelines and the calibrated tensors; neither names of profiles nor anything measured counts.
std::string ProfileLibraryHash(const ProfileLibrary& library);

// Fills in every profile's canonical pipeline, hash and fidelity from its pipeline. kInvalidInput,
// kUnsupported: names the profile and what is wrong with its pipeline.
Result<void> CompleteProfiles(ProfileLibrary& library);

// `side_file` is a bare file name. kInvalidInput: ParseProfileLibrary would refuse the result; the
// message says why.
Result<ProfileLibraryFiles> PrintProfileLibrary(const ProfileLibrary& library,
                                                std::string_view side_file);

// The name of the file of tensors that the JSON asks for: a bare name, never a path. kInvalidInput
// as below.
Result<std::string> ProfileLibrarySideFile(std::string_view json);

// kInvalidInput with a clause that wants a subject: not this format, another version, a field that
// is missing, unknown, of the wrong type or out of its range, names that repeat, tensors that
// overlap or reach beyond the file, a pipeline that is not canonical or needs a tensor that is
// not there. kCorrupt: a hash or checksum that does not match. Allocates in proportion to the
// arguments.
Result<ProfileLibrary> ParseProfileLibrary(std::string_view json, std::span<const std::byte> side);

}  // namespace kvik::codec
