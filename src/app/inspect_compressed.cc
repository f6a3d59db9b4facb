// SPDX-License-Identifier: Apache-2.0
#include "app/inspect_compressed.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "app/profile_folder.h"
#include "app/text_file.h"
#include "base/byte_size.h"
#include "base/format.h"
#include "base/mapped_file.h"
#include "codec/frame.h"
#include "codec/frame_stream.h"
#include "codec/profile_library.h"

namespace kvik::app {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string Hex(uint64_t v) { return Format("%016" PRIx64, v); }

const char* FidelityName(codec::Fidelity fidelity) {
  switch (fidelity) {
    case codec::Fidelity::kExact:
      return "exact";
    case codec::Fidelity::kLossy:
      return "lossy";
    case codec::Fidelity::kMasked:
      return "masked";
  }
  return "?";
}

const char* PartsName(codec::FrameParts parts) {
  return parts == codec::FrameParts::kBoth  ? "keys and values"
         : parts == codec::FrameParts::kKey ? "keys"
                                            : "values";
}

// Bytes from outside that are printed: what a terminal could take for a command is not.
std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c == 0x7F; }, '?');
  return text;
}

void PrintJson(const Json& json) {
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

// ---- libraries

size_t SideBytes(const codec::ProfileLibrary& library) {
  size_t halves = 0;
  for (const auto& [name, tensor] : library.side_info->tensors()) {
    halves += tensor.values.size();
  }
  return halves * 2;
}

double RatioAt(const codec::Profile& profile, int32_t tokens) {
  for (const codec::LengthRatio& ratio : profile.ratios) {
    if (ratio.prompt_tokens == tokens) {
      return ratio.cr;
    }
  }
  return 0;
}

std::string Cell(const char* format, double value, bool known) {
  return known ? Format(format, value) : "-";
}

void PrintLibrary(const codec::ProfileLibrary& library) {
  const codec::ModelFacts& model = library.model;
  std::printf("Profile library %s\n", codec::ProfileLibraryHash(library).c_str());
  std::printf("  %-22s %s, fingerprint %s\n", "model", Printable(model.name).c_str(),
              Hex(model.fingerprint).c_str());
  std::printf("  %-22s %d layers, %d kv heads of %d channels\n", "KV", model.num_layers,
              model.num_kv_heads, model.head_dim);
  std::printf("  %-22s %zu, %s\n", "calibrated tensors", library.side_info->tensors().size(),
              FormatByteSize(SideBytes(library)).c_str());
  int64_t tokens = 0;
  for (const codec::CalibrationText& text : library.calibration.texts) {
    tokens += text.tokens;
  }
  std::printf("  %-22s %zu texts, %" PRId64 " tokens\n", "calibrated on",
              library.calibration.texts.size(), tokens);
  std::printf("  %-22s %s\n", "made by", Printable(library.calibration.command).c_str());
  if (library.evaluation) {
    std::printf("  %-22s %s\n", "measured by", Printable(library.evaluation->command).c_str());
  }
  std::printf(
      "Profiles (cr at 128 and 1,024 tokens; quality over all workloads, and of the worst)\n");
  std::printf("  %-16s %-8s %7s %7s  %-22s %-22s %8s  %s\n", "name", "fidelity", "cr 128", "cr 1K",
              "q [95 %]", "worst workload", "kl", "pipeline");
  for (const codec::Profile& profile : library.profiles) {
    const codec::QualityRecord* unified = profile.QualityFor(codec::kUnifiedWorkload);
    const codec::QualityRecord* worst = nullptr;
    for (const codec::QualityRecord& record : profile.quality) {
      if (record.prompt_tokens == 0 && record.workload != codec::kUnifiedWorkload &&
          (worst == nullptr || record.q.value < worst->q.value)) {
        worst = &record;
      }
    }
    const double short_ratio = RatioAt(profile, 128);
    const double long_ratio = RatioAt(profile, 1024);
    std::printf(
        "  %-16s %-8s %7s %7s  %-22s %-22s %8s  %s\n", profile.name.c_str(),
        FidelityName(profile.fidelity), Cell("%.2f", short_ratio, short_ratio > 0).c_str(),
        Cell("%.2f", long_ratio, long_ratio > 0).c_str(),
        unified != nullptr
            ? Format("%.4f [%.4f, %.4f]", unified->q.value, unified->q.low, unified->q.high).c_str()
            : "-",
        worst != nullptr ? Format("%.4f %s", worst->q.value, worst->workload.c_str()).c_str() : "-",
        unified != nullptr ? Format("%.4f", unified->kl.value).c_str() : "-",
        profile.pipeline.c_str());
  }
}

Result<int> InspectLibrary(const std::string& path, bool json) {
  KVIK_ASSIGN(const codec::ProfileLibrary library, LoadProfileLibrary(path));
  if (!json) {
    PrintLibrary(library);
    return 0;
  }
  // The document is what a machine wants; it was checked.
  std::error_code error;
  const fs::path file =
      fs::is_directory(path, error) ? fs::path(path) / kProfileLibraryName : fs::path(path);
  KVIK_ASSIGN(const std::string text, ReadTextFile(file.string()));
  std::fputs(text.c_str(), stdout);
  return 0;
}

// ---- frames

// What a file of frames comes to.
struct FrameTally {
  std::vector<codec::FrameHeader> headers;
  std::optional<codec::StreamHeader> stream;
  bool complete = true;
  std::optional<Error> damage;  // where reading ended early
  size_t read_bytes = 0;        // of whole frames

  [[nodiscard]] uint64_t values() const {
    uint64_t total = 0;
    for (const codec::FrameHeader& header : headers) {
      const uint64_t parts = header.parts == codec::FrameParts::kBoth ? 2 : 1;
      total += parts * static_cast<uint64_t>(header.num_tokens) *
               static_cast<uint64_t>(header.num_heads) * static_cast<uint64_t>(header.head_dim);
    }
    return total;
  }
};

void Add(std::span<const std::byte> frame, FrameTally& tally) {
  Result<codec::FrameHeader> header = codec::ReadFrameHeader(frame);
  if (!header) {
    tally.damage = header.error();
    return;
  }
  tally.headers.push_back(*header);
  tally.read_bytes += header->frame_bytes();
}

FrameTally ReadFrames(std::span<const std::byte> bytes) {
  FrameTally tally;
  while (!tally.damage && tally.read_bytes < bytes.size()) {
    Add(bytes.subspan(tally.read_bytes), tally);
  }
  return tally;
}

FrameTally ReadStream(std::span<const std::byte> bytes) {
  FrameTally tally;
  codec::StreamReader reader;
  reader.Feed(bytes);
  while (!tally.damage) {
    auto next = reader.Next();
    if (!next) {
      tally.damage = next.error();
    } else if (!*next) {
      break;
    } else {
      Add(**next, tally);
    }
  }
  tally.stream = reader.header();
  tally.complete = reader.complete();
  return tally;
}

Json HeaderJson(const codec::FrameHeader& header) {
  return {{"layer", header.layer},
          {"parts", PartsName(header.parts)},
          {"first_token", header.first_token},
          {"tokens", header.num_tokens},
          {"prompt_tokens", header.prompt_tokens},
          {"first_head", header.first_head},
          {"heads", header.num_heads},
          {"head_dim", header.head_dim},
          {"fidelity", FidelityName(header.fidelity)},
          {"model_fingerprint", Hex(header.model_fingerprint)},
          {"profile_hash", Hex(header.profile_hash)},
          {"pipeline_id", Format("%08" PRIx32, header.pipeline_id)},
          {"bytes", header.frame_bytes()}};
}

void PrintFrames(const FrameTally& tally) {
  if (tally.stream) {
    std::printf("Stream of frames, %s\n", tally.complete ? "complete" : "without its end");
    std::printf("  %-22s %s\n", "pipeline", Printable(tally.stream->pipeline).c_str());
    std::printf("  %-22s model %s, profile %s\n", "written with",
                Hex(tally.stream->model_fingerprint).c_str(),
                Hex(tally.stream->profile_hash).c_str());
  } else {
    std::printf("Frames\n");
  }
  const uint64_t values = tally.values();
  std::printf("  %-22s %zu, %s\n", "frames", tally.headers.size(),
              FormatByteSize(tally.read_bytes).c_str());
  if (values > 0 && tally.read_bytes > 0) {
    std::printf("  %-22s %.3f, %.2fx smaller than bf16\n", "bits a value",
                8 * static_cast<double>(tally.read_bytes) / static_cast<double>(values),
                2 * static_cast<double>(values) / static_cast<double>(tally.read_bytes));
  }
  if (tally.headers.empty()) {
    return;
  }
  std::printf("  %5s  %-15s %-17s %-9s %-8s %10s  %s\n", "layer", "parts", "tokens", "heads",
              "fidelity", "bytes", "profile");
  constexpr size_t kShown = 64;
  for (size_t i = 0; i < std::min(kShown, tally.headers.size()); ++i) {
    const codec::FrameHeader& header = tally.headers[i];
    std::printf(
        "  %5d  %-15s %-17s %-9s %-8s %10zu  %s\n", header.layer, PartsName(header.parts),
        Format("[%d, %d)", header.first_token, header.first_token + header.num_tokens).c_str(),
        Format("[%d, %d)", header.first_head, header.first_head + header.num_heads).c_str(),
        FidelityName(header.fidelity), header.frame_bytes(), Hex(header.profile_hash).c_str());
  }
  if (tally.headers.size() > kShown) {
    std::printf("  ... and %zu more\n", tally.headers.size() - kShown);
  }
}

Result<int> InspectFrames(const std::string& path, CompressedKind kind, bool json) {
  KVIK_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const FrameTally tally =
      kind == CompressedKind::kStream ? ReadStream(file.bytes()) : ReadFrames(file.bytes());
  if (json) {
    Json document;
    if (tally.stream) {
      document["stream"] = {{"complete", tally.complete},
                            {"pipeline", tally.stream->pipeline},
                            {"model_fingerprint", Hex(tally.stream->model_fingerprint)},
                            {"profile_hash", Hex(tally.stream->profile_hash)}};
    }
    document["bytes"] = tally.read_bytes;
    document["values"] = tally.values();
    document["damage"] = tally.damage ? Json(tally.damage->message) : Json();
    document["frames"] = Json::array();
    for (const codec::FrameHeader& header : tally.headers) {
      document["frames"].push_back(HeaderJson(header));
    }
    PrintJson(document);
  } else {
    PrintFrames(tally);
    if (tally.damage) {
      std::printf("  %-22s after byte %zu: %s\n", "damaged", tally.read_bytes,
                  tally.damage->message.c_str());
    }
  }
  return tally.damage || !tally.complete ? 1 : 0;
}

}  // namespace

std::optional<CompressedKind> RecogniseCompressed(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return fs::exists(fs::path(path) / kProfileLibraryName, error)
               ? std::optional(CompressedKind::kLibrary)
               : std::nullopt;
  }
  if (fs::path(path).filename() == kProfileLibraryName) {
    return CompressedKind::kLibrary;
  }
  std::ifstream file(path, std::ios::binary);
  std::array<char, 3> start{};
  if (!file.read(start.data(), start.size())) {
    return std::nullopt;
  }
  const std::string_view magic(start.data(), start.size());
  return magic == "KvF"   ? std::optional(CompressedKind::kFrames)
         : magic == "KvS" ? std::optional(CompressedKind::kStream)
                          : std::nullopt;
}

Result<int> InspectCompressed(const std::string& path, CompressedKind kind, bool json) {
  return kind == CompressedKind::kLibrary ? InspectLibrary(path, json)
                                          : InspectFrames(path, kind, json);
}

}  // namespace kvik::app
