// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "base/json_parse.h"
#include "base/sha256.h"
#include "codec/pipeline.h"
#include "codec/profile_library.h"

namespace kvik::codec {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFormat = "kvik.profile-library";
constexpr JsonLimits kLimits{
    .max_bytes = size_t{64} << 20, .max_nesting = 8, .max_members = size_t{1} << 16};
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxTextBytes = 4096;
constexpr size_t kMaxPipelineBytes = 1024;
constexpr size_t kMaxDimensions = 8;
constexpr int32_t kMaxExtent = 1 << 24;
constexpr double kMaxMeasured = 1e6;

// One value of the document and where it stands, for messages.
class Node {
 public:
  Node(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] Error Bad(const std::string& what) const {
    return Err(ErrorCode::kInvalidInput, "does not follow the schema: %s %s",
               path_.empty() ? "the document" : path_.c_str(), what.c_str());
  }

  // An object that has all of `required`, and of others none but `optional`.
  [[nodiscard]] Result<void> Members(std::initializer_list<const char*> required,
                                     std::initializer_list<const char*> optional = {}) const {
    if (!json_->is_object()) {
      return Bad(std::string("must be an object, it is ") + json_->type_name());
    }
    for (const char* name : required) {
      if (!json_->contains(name)) {
        return Bad(std::string("lacks \"") + name + "\"");
      }
    }
    for (const auto& [name, value] : json_->items()) {
      const auto is = [&name = name](const char* known) { return name == known; };
      if (std::none_of(required.begin(), required.end(), is) &&
          std::none_of(optional.begin(), optional.end(), is)) {
        return Bad("has a member that this version does not know: \"" + JsonExceptionText(name) +
                   "\"");
      }
    }
    return {};
  }

  [[nodiscard]] bool Has(const char* name) const { return json_->contains(name); }
  // REQUIRES: Members found it.
  [[nodiscard]] Node At(const char* name) const {
    return {(*json_)[name], path_.empty() ? name : path_ + "." + name};
  }
  [[nodiscard]] Node Item(size_t i) const {
    return {(*json_)[i], path_ + "[" + std::to_string(i) + "]"};
  }

  [[nodiscard]] Result<size_t> Size() const {
    if (!json_->is_array()) {
      return Bad(std::string("must be an array, it is ") + json_->type_name());
    }
    return json_->size();
  }
  [[nodiscard]] Result<std::string> String(size_t max_bytes) const {
    if (!json_->is_string()) {
      return Bad(std::string("must be a string, it is ") + json_->type_name());
    }
    std::string text = json_->get<std::string>();
    if (text.size() > max_bytes) {
      return Bad("must have at most " + std::to_string(max_bytes) + " bytes, it has " +
                 std::to_string(text.size()));
    }
    return text;
  }
  [[nodiscard]] Result<int64_t> Integer(int64_t min, int64_t max) const {
    const bool fits = json_->is_number_unsigned()
                          ? json_->get<uint64_t>() <= static_cast<uint64_t>(max)
                          : json_->is_number_integer() && json_->get<int64_t>() <= max;
    if (!fits || json_->get<int64_t>() < min) {
      return Bad("must be an integer in [" + std::to_string(min) + ", " + std::to_string(max) +
                 "], it is " + Shown());
    }
    return json_->get<int64_t>();
  }
  [[nodiscard]] Result<double> Real(double min, double max) const {
    if (!json_->is_number() || !(json_->get<double>() >= min && json_->get<double>() <= max)) {
      char text[96];
      std::snprintf(text, sizeof text, "must be a number in [%g, %g], it is ", min, max);
      return Bad(text + Shown());
    }
    return json_->get<double>();
  }
  // A 64-bit number as 16 hexadecimal digits.
  [[nodiscard]] Result<uint64_t> Hex64() const {
    KVIK_ASSIGN(const std::string text, Digits(16));
    return std::strtoull(text.c_str(), nullptr, 16);
  }
  [[nodiscard]] Result<std::string> Digits(size_t n) const {
    KVIK_ASSIGN(std::string text, String(kMaxTextBytes));
    if (text.size() != n || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
      return Bad("must be " + std::to_string(n) + " lower-case hexadecimal digits");
    }
    return text;
  }
  // What profiles and workloads may be called.
  [[nodiscard]] Result<std::string> Name() const {
    KVIK_ASSIGN(std::string text, String(kMaxNameBytes));
    if (text.empty() ||
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._+-") != std::string::npos) {
      return Bad("must be of a-z, 0-9 and ._+- alone, and not empty");
    }
    return text;
  }

 private:
  [[nodiscard]] std::string Shown() const {
    return json_->is_structured() || json_->is_string()
               ? json_->type_name()
               : json_->dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  const Json* json_;
  std::string path_;
};

bool IsBareName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::string Hex(uint64_t v) { return Format("%016" PRIx64, v); }

const char* FidelityName(Fidelity fidelity) {
  switch (fidelity) {
    case Fidelity::kExact:
      return "exact";
    case Fidelity::kLossy:
      return "lossy";
    case Fidelity::kMasked:
      return "masked";
  }
  return "?";
}

// ---- printing

// All on one line.
void PrintInline(const OrderedJson& json, std::string& out) {
  if (!json.is_structured()) {
    out += json.dump();
    return;
  }
  out += json.is_object() ? '{' : '[';
  const char* separator = "";
  for (const auto& [name, value] : json.items()) {
    out += separator;
    separator = ", ";
    if (json.is_object()) {
      out += OrderedJson(name).dump() + ": ";
    }
    PrintInline(value, out);
  }
  out += json.is_object() ? '}' : ']';
}

// What is short stands on one line.
void PrettyPrint(const OrderedJson& json, size_t indent, std::string& out) {
  constexpr size_t kLineBytes = 300;
  std::string line;
  PrintInline(json, line);
  if (!json.is_structured() || line.size() <= kLineBytes) {
    out += line;
    return;
  }
  out += json.is_object() ? '{' : '[';
  const char* separator = "\n";
  for (const auto& [name, value] : json.items()) {
    out += separator;
    separator = ",\n";
    out.append(indent + 1, ' ');
    if (json.is_object()) {
      out += OrderedJson(name).dump() + ": ";
    }
    PrettyPrint(value, indent + 1, out);
  }
  out += '\n';
  out.append(indent, ' ');
  out += json.is_object() ? '}' : ']';
}

OrderedJson ModelJson(const ModelFacts& model) {
  return {{"name", model.name},
          {"fingerprint", Hex(model.fingerprint)},
          {"layers", model.num_layers},
          {"kv_heads", model.num_kv_heads},
          {"head_dim", model.head_dim},
          {"rope_frequencies", model.rope_frequencies},
          {"rope_scale", model.rope_scale}};
}

OrderedJson CalibrationJson(const CalibrationRecord& calibration) {
  OrderedJson texts = OrderedJson::array();
  for (const CalibrationText& text : calibration.texts) {
    texts.push_back({{"name", text.name}, {"sha256", text.sha256}, {"tokens", text.tokens}});
  }
  return {{"command", calibration.command},
          {"numerics", calibration.numerics},
          {"seed", Hex(calibration.seed)},
          {"texts", std::move(texts)}};
}

OrderedJson MeasuredJson(const Measured& measured) {
  return OrderedJson::array({measured.value, measured.low, measured.high});
}

OrderedJson ProfileJson(const Profile& profile) {
  OrderedJson ratios = OrderedJson::array();
  for (const LengthRatio& ratio : profile.ratios) {
    ratios.push_back({{"prompt_tokens", ratio.prompt_tokens}, {"cr", ratio.cr}});
  }
  OrderedJson quality = OrderedJson::array();
  for (const QualityRecord& record : profile.quality) {
    quality.push_back({{"workload", record.workload},
                       {"prompt_tokens", record.prompt_tokens},
                       {"prompts", record.prompts},
                       {"positions", record.positions},
                       {"q", MeasuredJson(record.q)},
                       {"kl", MeasuredJson(record.kl)},
                       {"top1", MeasuredJson(record.top1)},
                       {"ppl_ratio", MeasuredJson(record.ppl_ratio)}});
  }
  return {{"name", profile.name},        {"pipeline", profile.pipeline},
          {"hash", Hex(profile.hash)},   {"fidelity", FidelityName(profile.fidelity)},
          {"ratios", std::move(ratios)}, {"quality", std::move(quality)}};
}

// ---- parsing

Result<ModelFacts> ParseModel(const Node& node) {
  KVIK_TRY(node.Members(
      {"name", "fingerprint", "layers", "kv_heads", "head_dim", "rope_frequencies", "rope_scale"}));
  ModelFacts model;
  KVIK_ASSIGN(model.name, node.At("name").String(kMaxTextBytes));
  KVIK_ASSIGN(model.fingerprint, node.At("fingerprint").Hex64());
  KVIK_ASSIGN(const int64_t layers, node.At("layers").Integer(1, 4096));
  KVIK_ASSIGN(const int64_t heads, node.At("kv_heads").Integer(1, 4096));
  KVIK_ASSIGN(const int64_t head_dim, node.At("head_dim").Integer(1, 1024));
  model.num_layers = static_cast<int32_t>(layers);
  model.num_kv_heads = static_cast<int32_t>(heads);
  model.head_dim = static_cast<int32_t>(head_dim);
  const Node frequencies = node.At("rope_frequencies");
  KVIK_ASSIGN(const size_t count, frequencies.Size());
  if (count != 0 && count * 2 != static_cast<size_t>(head_dim)) {
    return frequencies.Bad("must have head_dim / 2 numbers, or none");
  }
  for (size_t i = 0; i < count; ++i) {
    KVIK_ASSIGN(const double frequency, frequencies.Item(i).Real(0, 1e9));
    model.rope_frequencies.push_back(frequency);
  }
  KVIK_ASSIGN(model.rope_scale, node.At("rope_scale").Real(1e-6, 1e6));
  return model;
}

Result<CalibrationRecord> ParseCalibration(const Node& node) {
  KVIK_TRY(node.Members({"command", "numerics", "seed", "texts"}));
  CalibrationRecord calibration;
  KVIK_ASSIGN(calibration.command, node.At("command").String(kMaxTextBytes));
  KVIK_ASSIGN(calibration.numerics, node.At("numerics").String(kMaxTextBytes));
  KVIK_ASSIGN(calibration.seed, node.At("seed").Hex64());
  const Node texts = node.At("texts");
  KVIK_ASSIGN(const size_t count, texts.Size());
  for (size_t i = 0; i < count; ++i) {
    const Node item = texts.Item(i);
    KVIK_TRY(item.Members({"name", "sha256", "tokens"}));
    CalibrationText text;
    KVIK_ASSIGN(text.name, item.At("name").String(kMaxTextBytes));
    KVIK_ASSIGN(text.sha256, item.At("sha256").Digits(64));
    KVIK_ASSIGN(text.tokens, item.At("tokens").Integer(0, int64_t{1} << 53));
    calibration.texts.push_back(std::move(text));
  }
  return calibration;
}

Result<EvaluationRecord> ParseEvaluation(const Node& node) {
  KVIK_TRY(node.Members({"command", "numerics", "seed"}));
  EvaluationRecord evaluation;
  KVIK_ASSIGN(evaluation.command, node.At("command").String(kMaxTextBytes));
  KVIK_ASSIGN(evaluation.numerics, node.At("numerics").String(kMaxTextBytes));
  KVIK_ASSIGN(evaluation.seed, node.At("seed").Hex64());
  return evaluation;
}

struct TensorPlace {
  std::string name;
  std::vector<int32_t> shape;
  size_t offset = 0;  // in halves
  size_t count = 0;
};

Result<TensorPlace> ParseTensor(const Node& node, size_t side_halves) {
  KVIK_TRY(node.Members({"name", "shape", "offset"}));
  TensorPlace place;
  KVIK_ASSIGN(place.name, node.At("name").String(kMaxPipelineBytes));
  if (place.name.empty()) {
    return node.At("name").Bad("must not be empty");
  }
  const Node shape = node.At("shape");
  KVIK_ASSIGN(const size_t rank, shape.Size());
  if (rank == 0 || rank > kMaxDimensions) {
    return shape.Bad("must have 1 to " + std::to_string(kMaxDimensions) + " extents");
  }
  place.count = 1;
  for (size_t i = 0; i < rank; ++i) {
    KVIK_ASSIGN(const int64_t extent, shape.Item(i).Integer(1, kMaxExtent));
    place.shape.push_back(static_cast<int32_t>(extent));
    if (place.count > side_halves / static_cast<size_t>(extent)) {
      return node.Bad("(" + JsonExceptionText(place.name) +
                      ") is larger than the whole file of tensors, which has " +
                      std::to_string(side_halves) + " halves");
    }
    place.count *= static_cast<size_t>(extent);
  }
  KVIK_ASSIGN(const int64_t offset, node.At("offset").Integer(0, int64_t{1} << 53));
  place.offset = static_cast<size_t>(offset);
  if (place.offset > side_halves || place.count > side_halves - place.offset) {
    return node.Bad("(" + JsonExceptionText(place.name) + ") ends at half " +
                    std::to_string(place.offset + place.count) +
                    ", beyond the file of tensors, which has " + std::to_string(side_halves));
  }
  return place;
}

// The directory covers the file: every half belongs to exactly one tensor.
Result<void> CheckCover(const Node& node, std::vector<TensorPlace>& places, size_t side_halves) {
  std::sort(places.begin(), places.end(),
            [](const TensorPlace& a, const TensorPlace& b) { return a.offset < b.offset; });
  size_t end = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const TensorPlace& place = places[i];
    if (place.offset < end) {
      return node.Bad("overlap: " + JsonExceptionText(place.name) + " begins at half " +
                      std::to_string(place.offset) + ", within " +
                      JsonExceptionText(places[i - 1].name));
    }
    if (place.offset > end) {
      break;
    }
    end += place.count;
  }
  if (end != side_halves) {
    return node.Bad("leave halves of the file unnamed, from " + std::to_string(end) + " on");
  }
  return {};
}

Result<std::shared_ptr<const SideInfo>> ParseTensors(const Node& node,
                                                     std::span<const std::byte> side) {
  KVIK_ASSIGN(const size_t count, node.Size());
  const size_t side_halves = side.size() / 2;
  std::vector<TensorPlace> places;
  std::set<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    KVIK_ASSIGN(TensorPlace place, ParseTensor(node.Item(i), side_halves));
    if (!names.insert(place.name).second) {
      return node.Item(i).Bad("has a name that another tensor has: " +
                              JsonExceptionText(place.name));
    }
    places.push_back(std::move(place));
  }
  KVIK_TRY(CheckCover(node, places, side_halves));
  auto info = std::make_shared<SideInfo>();
  std::vector<float> values;
  for (TensorPlace& place : places) {
    values.resize(place.count);
    for (size_t i = 0; i < place.count; ++i) {
      F16 half;
      std::memcpy(&half.bits, side.data() + (place.offset + i) * 2, 2);
      values[i] = ToFloat(half);
      if (!std::isfinite(values[i])) {
        return node.Bad("(" + JsonExceptionText(place.name) + ") hold a value that is not finite");
      }
    }
    KVIK_TRY(info->Add(std::move(place.name), std::move(place.shape), values));
  }
  return std::shared_ptr<const SideInfo>(std::move(info));
}

Result<Measured> ParseMeasured(const Node& node, double max) {
  KVIK_ASSIGN(const size_t count, node.Size());
  if (count != 3) {
    return node.Bad("must be [value, low, high]");
  }
  Measured measured;
  KVIK_ASSIGN(measured.value, node.Item(0).Real(0, max));
  KVIK_ASSIGN(measured.low, node.Item(1).Real(0, max));
  KVIK_ASSIGN(measured.high, node.Item(2).Real(0, max));
  if (measured.low > measured.value || measured.value > measured.high) {
    return node.Bad("must be [value, low, high] with low <= value <= high");
  }
  return measured;
}

Result<QualityRecord> ParseQuality(const Node& node) {
  KVIK_TRY(node.Members(
      {"workload", "prompt_tokens", "prompts", "positions", "q", "kl", "top1", "ppl_ratio"}));
  QualityRecord record;
  KVIK_ASSIGN(record.workload, node.At("workload").Name());
  KVIK_ASSIGN(const int64_t tokens, node.At("prompt_tokens").Integer(0, 1 << 30));
  record.prompt_tokens = static_cast<int32_t>(tokens);
  KVIK_ASSIGN(const int64_t prompts, node.At("prompts").Integer(1, 1 << 30));
  record.prompts = static_cast<int32_t>(prompts);
  KVIK_ASSIGN(record.positions, node.At("positions").Integer(1, int64_t{1} << 53));
  KVIK_ASSIGN(record.q, ParseMeasured(node.At("q"), 1));
  KVIK_ASSIGN(record.kl, ParseMeasured(node.At("kl"), kMaxMeasured));
  KVIK_ASSIGN(record.top1, ParseMeasured(node.At("top1"), 1));
  KVIK_ASSIGN(record.ppl_ratio, ParseMeasured(node.At("ppl_ratio"), kMaxMeasured));
  return record;
}

bool QualityBefore(const QualityRecord& a, const QualityRecord& b) {
  return std::tie(a.workload, a.prompt_tokens) < std::tie(b.workload, b.prompt_tokens);
}

Result<Profile> ParseProfile(const Node& node) {
  KVIK_TRY(node.Members({"name", "pipeline", "hash", "fidelity", "ratios", "quality"}));
  Profile profile;
  KVIK_ASSIGN(profile.name, node.At("name").Name());
  KVIK_ASSIGN(profile.pipeline, node.At("pipeline").String(kMaxPipelineBytes));
  KVIK_ASSIGN(profile.hash, node.At("hash").Hex64());
  KVIK_ASSIGN(const std::string fidelity, node.At("fidelity").String(kMaxNameBytes));
  for (const Fidelity known : {Fidelity::kExact, Fidelity::kLossy, Fidelity::kMasked}) {
    if (fidelity == FidelityName(known)) {
      profile.fidelity = known;
    }
  }
  if (fidelity != FidelityName(profile.fidelity)) {
    return node.At("fidelity").Bad("must be \"exact\", \"lossy\" or \"masked\"");
  }
  const Node ratios = node.At("ratios");
  KVIK_ASSIGN(const size_t num_ratios, ratios.Size());
  for (size_t i = 0; i < num_ratios; ++i) {
    const Node item = ratios.Item(i);
    KVIK_TRY(item.Members({"prompt_tokens", "cr"}));
    LengthRatio ratio;
    KVIK_ASSIGN(const int64_t tokens, item.At("prompt_tokens").Integer(1, 1 << 30));
    ratio.prompt_tokens = static_cast<int32_t>(tokens);
    KVIK_ASSIGN(ratio.cr, item.At("cr").Real(1e-3, kMaxMeasured));
    if (!profile.ratios.empty() && profile.ratios.back().prompt_tokens >= ratio.prompt_tokens) {
      return item.Bad("must have more prompt_tokens than the one before it");
    }
    profile.ratios.push_back(ratio);
  }
  const Node quality = node.At("quality");
  KVIK_ASSIGN(const size_t num_quality, quality.Size());
  for (size_t i = 0; i < num_quality; ++i) {
    KVIK_ASSIGN(QualityRecord record, ParseQuality(quality.Item(i)));
    if (!profile.quality.empty() && !QualityBefore(profile.quality.back(), record)) {
      return quality.Item(i).Bad(
          "must come after the one before it by (workload, prompt_tokens), and differ from it");
    }
    profile.quality.push_back(std::move(record));
  }
  return profile;
}

// What the document says of a pipeline against what the pipeline is.
Result<void> CheckProfiles(const Node& node, ProfileLibrary& library) {
  const std::vector<Profile> stated = library.profiles;
  KVIK_TRY(CompleteProfiles(library));
  for (size_t i = 0; i < stated.size(); ++i) {
    const Profile& profile = library.profiles[i];
    const Node item = node.Item(i);
    if (stated[i].pipeline != profile.pipeline) {
      return item.At("pipeline")
          .Bad("is not in its canonical form, which is \"" + profile.pipeline + "\"");
    }
    if (stated[i].fidelity != profile.fidelity) {
      return item.At("fidelity")
          .Bad(std::string("must be ") + FidelityName(profile.fidelity) + " for this pipeline");
    }
    if (stated[i].hash != profile.hash) {
      return Err(ErrorCode::kCorrupt,
                 "states hash %s for profile %s, whose pipeline and tensors have %s: the library "
                 "was edited, or made by another version; calibrate anew",
                 Hex(stated[i].hash).c_str(), profile.name.c_str(), Hex(profile.hash).c_str());
    }
  }
  return {};
}

// Parsed as far as it says what it is.
Result<Json> ParseDocument(std::string_view text) {
  KVIK_ASSIGN(Json json, ParseJson<Json>(text, kLimits));
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat) {
    return Err(ErrorCode::kInvalidInput, "is no profile library: \"format\" is not \"%s\"",
               kFormat);
  }
  if (!json.contains("version") || json["version"] != kProfileLibraryVersion) {
    const Json version = json.value("version", Json());
    return Err(ErrorCode::kInvalidInput,
               "has version %s, this program reads version %d: calibrate anew, or use a program "
               "that knows it",
               version.is_number() ? version.dump().c_str() : "?", kProfileLibraryVersion);
  }
  return json;
}

Result<std::string> ParseSideFile(const Node& node) {
  KVIK_ASSIGN(std::string name, node.String(kMaxTextBytes));
  if (!IsBareName(name)) {
    return node.Bad("must be the name of a file in the same folder, not a path");
  }
  return name;
}

}  // namespace

Result<std::string> ProfileLibrarySideFile(std::string_view json) {
  KVIK_ASSIGN(const Json document, ParseDocument(json));
  const Node root(document, "");
  if (!root.Has("side")) {
    return root.Bad("lacks \"side\"");
  }
  const Node side = root.At("side");
  KVIK_TRY(side.Members({"file", "halves", "sha256"}));
  return ParseSideFile(side.At("file"));
}

Result<ProfileLibrary> ParseProfileLibrary(std::string_view json, std::span<const std::byte> side) {
  KVIK_ASSIGN(const Json document, ParseDocument(json));
  const Node root(document, "");
  KVIK_TRY(root.Members(
      {"format", "version", "hash", "model", "side", "tensors", "calibration", "profiles"},
      {"evaluation"}));
  ProfileLibrary library;
  KVIK_ASSIGN(const std::string hash, root.At("hash").Digits(64));
  KVIK_ASSIGN(library.model, ParseModel(root.At("model")));

  const Node side_node = root.At("side");
  KVIK_TRY(side_node.Members({"file", "halves", "sha256"}));
  KVIK_ASSIGN(const std::string side_file, ParseSideFile(side_node.At("file")));
  KVIK_ASSIGN(const int64_t halves, side_node.At("halves").Integer(0, int64_t{1} << 53));
  KVIK_ASSIGN(const std::string sha, side_node.At("sha256").Digits(64));
  if (side.size() != static_cast<size_t>(halves) * 2) {
    return Err(ErrorCode::kCorrupt,
               "says that %s has %" PRId64 " bytes, it has %zu: copy both files of a library",
               side_file.c_str(), halves * 2, side.size());
  }
  if (const std::string actual = ToHex(Sha256Of(side)); actual != sha) {
    return Err(ErrorCode::kCorrupt,
               "says that SHA-256 of %s is %s, it is %s: copy both files of a library",
               side_file.c_str(), sha.c_str(), actual.c_str());
  }
  KVIK_ASSIGN(library.side_info, ParseTensors(root.At("tensors"), side));
  KVIK_ASSIGN(library.calibration, ParseCalibration(root.At("calibration")));
  if (root.Has("evaluation")) {
    KVIK_ASSIGN(library.evaluation, ParseEvaluation(root.At("evaluation")));
  }

  const Node profiles = root.At("profiles");
  KVIK_ASSIGN(const size_t count, profiles.Size());
  for (size_t i = 0; i < count; ++i) {
    KVIK_ASSIGN(Profile profile, ParseProfile(profiles.Item(i)));
    if (!library.profiles.empty() && library.profiles.back().name >= profile.name) {
      return profiles.Item(i).Bad("must come after the one before it by name, and differ from it");
    }
    library.profiles.push_back(std::move(profile));
  }
  KVIK_TRY(CheckProfiles(profiles, library));
  if (const std::string actual = ProfileLibraryHash(library); actual != hash) {
    return Err(ErrorCode::kCorrupt,
               "states hash %s, what it holds has %s: the library was edited; calibrate anew",
               hash.c_str(), actual.c_str());
  }
  return library;
}

Result<ProfileLibraryFiles> PrintProfileLibrary(const ProfileLibrary& library,
                                                std::string_view side_file) {
  ProfileLibraryFiles files;
  OrderedJson tensors = OrderedJson::array();
  for (const auto& [name, tensor] : library.side_info->tensors()) {
    tensors.push_back({{"name", name}, {"shape", tensor.shape}, {"offset", files.side.size() / 2}});
    const size_t at = files.side.size();
    files.side.resize(at + tensor.values.size() * 2);
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const F16 half = ToF16(tensor.values[i]);
      std::memcpy(files.side.data() + at + i * 2, &half.bits, 2);
    }
  }
  OrderedJson profiles = OrderedJson::array();
  for (const Profile& profile : library.profiles) {
    profiles.push_back(ProfileJson(profile));
  }
  OrderedJson json;
  json["format"] = kFormat;
  json["version"] = kProfileLibraryVersion;
  json["hash"] = ProfileLibraryHash(library);
  json["model"] = ModelJson(library.model);
  json["side"] = {{"file", std::string(side_file)},
                  {"halves", files.side.size() / 2},
                  {"sha256", ToHex(Sha256Of(files.side))}};
  json["tensors"] = std::move(tensors);
  json["calibration"] = CalibrationJson(library.calibration);
  if (library.evaluation) {
    json["evaluation"] = {{"command", library.evaluation->command},
                          {"numerics", library.evaluation->numerics},
                          {"seed", Hex(library.evaluation->seed)}};
  }
  json["profiles"] = std::move(profiles);
  try {
    PrettyPrint(json, 0, files.json);
    files.json += "\n";
  } catch (const OrderedJson::exception& e) {
    return Err(ErrorCode::kInvalidInput, "cannot be written as JSON: %s",
               JsonExceptionText(e.what()).c_str());
  }
  // What is written can be read: not a number becomes null, which the reader refuses.
  KVIK_ASSIGN(const ProfileLibrary read, ParseProfileLibrary(files.json, files.side));
  return files;
}

}  // namespace kvik::codec
