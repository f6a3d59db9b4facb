// SPDX-License-Identifier: Apache-2.0
#include "eval/results_log.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "base/json_parse.h"
#include "base/mapped_file.h"

namespace kvik::eval {
namespace {

using Json = nlohmann::ordered_json;

constexpr JsonLimits kLineLimits{.max_bytes = 4096, .max_nesting = 2, .max_members = 64};

struct CountField {
  const char* name;
  int64_t PromptQuality::*value;
};
constexpr std::array<CountField, 9> kCounts = {{
    {"positions", &PromptQuality::positions},
    {"agreeing", &PromptQuality::agreeing},
    {"sure_positions", &PromptQuality::sure_positions},
    {"sure_agreeing", &PromptQuality::sure_agreeing},
    {"text_positions", &PromptQuality::text_positions},
    {"values", &PromptQuality::values},
    {"bytes", &PromptQuality::bytes},
    {"prompt_values", &PromptQuality::prompt_values},
    {"scored", &PromptQuality::scored},
}};

struct NumberField {
  const char* name;
  double PromptQuality::*value;
};
constexpr std::array<NumberField, 7> kNumbers = {{
    {"kl_nats", &PromptQuality::kl_nats},
    {"text_nll", &PromptQuality::text_nll},
    {"text_nll_raw", &PromptQuality::text_nll_raw},
    {"key_error", &PromptQuality::key_error},
    {"value_error", &PromptQuality::value_error},
    {"score", &PromptQuality::score},
    {"score_raw", &PromptQuality::score_raw},
}};

struct AttentionField {
  const char* name;
  double AttentionError::*value;
};
constexpr std::array<AttentionField, 4> kAttention = {{
    {"score_difference", &AttentionError::score_difference},
    {"score_variance", &AttentionError::score_variance},
    {"output_difference", &AttentionError::output_difference},
    {"output_norm", &AttentionError::output_norm},
}};

std::string Hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

std::string Checksum(const std::string& text) { return Hex(XXH3_64bits(text.data(), text.size())); }

Json Body(uint64_t key, const PromptQuality& quality) {
  Json json;
  json["key"] = Hex(key);
  for (const CountField& field : kCounts) {
    json[field.name] = quality.*field.value;
  }
  for (const NumberField& field : kNumbers) {
    json[field.name] = quality.*field.value;
  }
  for (const AttentionField& field : kAttention) {
    json[field.name] = quality.attention.*field.value;
  }
  return json;
}

// Finite and not negative, as all of them are.
bool ReadNumber(const Json& json, const char* name, double& out) {
  const auto at = json.find(name);
  if (at == json.end() || !at->is_number()) {
    return false;
  }
  out = at->get<double>();
  return std::isfinite(out) && out >= 0;
}

bool ReadCount(const Json& json, const char* name, int64_t& out) {
  const auto at = json.find(name);
  if (at == json.end() || !at->is_number_unsigned()) {
    return false;
  }
  const auto value = at->get<uint64_t>();
  out = static_cast<int64_t>(value);
  return value < uint64_t{1} << 62;
}

}  // namespace

uint64_t ResultKey(std::string_view description) {
  return XXH3_64bits(description.data(), description.size());
}

std::string PrintResult(uint64_t key, const PromptQuality& quality) {
  Json json = Body(key, quality);
  json["check"] = Checksum(json.dump());
  return json.dump();
}

std::optional<std::pair<uint64_t, PromptQuality>> ParseResult(std::string_view line) {
  const Result<Json> parsed = ParseJson<Json>(line, kLineLimits);
  if (!parsed || !parsed->is_object()) {
    return std::nullopt;
  }
  const auto key_text = parsed->find("key");
  const auto check = parsed->find("check");
  if (key_text == parsed->end() || !key_text->is_string() || check == parsed->end() ||
      !check->is_string()) {
    return std::nullopt;
  }
  const std::string& digits = key_text->get_ref<const std::string&>();
  if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  const uint64_t key = std::strtoull(digits.c_str(), nullptr, 16);
  PromptQuality quality;
  bool good = true;
  for (const CountField& field : kCounts) {
    good = good && ReadCount(*parsed, field.name, quality.*field.value);
  }
  for (const NumberField& field : kNumbers) {
    good = good && ReadNumber(*parsed, field.name, quality.*field.value);
  }
  for (const AttentionField& field : kAttention) {
    good = good && ReadNumber(*parsed, field.name, quality.attention.*field.value);
  }
  // Numbers are printed so that they come back as they were.
  if (!good || check->get_ref<const std::string&>() != Checksum(Body(key, quality).dump())) {
    return std::nullopt;
  }
  return std::make_pair(key, quality);
}

Result<std::unique_ptr<ResultsLog>> ResultsLog::Open(const std::string& path) {
  auto log = std::unique_ptr<ResultsLog>(new ResultsLog());
  log->path_ = path;
  if (path.empty()) {
    return log;
  }
  bool ends_in_line = true;
  const Result<MappedFile> old = MappedFile::Open(path);
  if (old) {
    const std::span<const std::byte> bytes = old->bytes();
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    ends_in_line = text.empty() || text.back() == '\n';
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      if (const auto result = ParseResult(text.substr(0, end))) {
        log->known_[result->first] = result->second;
      } else {
        ++log->damaged_lines_;
      }
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  } else if (old.error().code != ErrorCode::kNotFound) {
    return old.error();
  }
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) {
    std::filesystem::create_directories(parent, error);
  }
  log->file_ = std::fopen(path.c_str(), "ae");
  // What was cut off must not swallow the next line.
  if (log->file_ == nullptr || (!ends_in_line && std::fputc('\n', log->file_) == EOF)) {
    return Err(ErrorCode::kUnavailable, "%s: cannot write: %s", path.c_str(), std::strerror(errno));
  }
  return log;
}

ResultsLog::~ResultsLog() {
  if (file_ != nullptr) {
    std::fclose(file_);
  }
}

const PromptQuality* ResultsLog::Find(uint64_t key) const {
  const auto at = known_.find(key);
  return at == known_.end() ? nullptr : &at->second;
}

Result<void> ResultsLog::Add(uint64_t key, const PromptQuality& quality) {
  known_[key] = quality;
  if (file_ == nullptr) {
    return {};
  }
  const std::string line = PrintResult(key, quality) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    return Err(errno == ENOSPC ? ErrorCode::kExhausted : ErrorCode::kUnavailable,
               "%s: cannot write: %s", path_.c_str(), std::strerror(errno));
  }
  return {};
}

}  // namespace kvik::eval
