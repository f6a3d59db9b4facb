// SPDX-License-Identifier: Apache-2.0
#include "app/machine_cost.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/models.h"
#include "app/text_file.h"
#include "app/version.h"
#include "base/fnv.h"
#include "base/json_parse.h"
#include "base/log.h"
#include "base/progress.h"
#include "engine/cost_calibration.h"

namespace kvik::app {
namespace {

using Json = nlohmann::json;
constexpr int kFormat = 1;

constexpr std::pair<const char*, double kv::CostModel::*> kCoefficients[] = {
    {"step_us", &kv::CostModel::step_us},
    {"token_us", &kv::CostModel::token_us},
    {"cached_token_us", &kv::CostModel::cached_token_us},
    {"segment_us", &kv::CostModel::segment_us},
    {"square_us", &kv::CostModel::square_us},
    {"decode_us", &kv::CostModel::decode_us},
    {"decode_kv_token_us", &kv::CostModel::decode_kv_token_us}};

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(line.find(':') + 1);
    }
  }
  return "unknown";
}

// Everything that a measurement depends on, spelled out: part of the file, and its name by hash.
std::string KeyOf(const MachineCostOptions& options) {
  return options.numerics + "; " + CpuName() + "; " + std::to_string(options.threads) +
         " threads; blocks of " + std::to_string(options.block_size_tokens) + "; kvik " + kVersion;
}

std::string PathOf(const MachineCostOptions& options, const std::string& key) {
  char name[32];
  std::snprintf(name, sizeof(name), "%016llx.json", static_cast<unsigned long long>(Fnv1a(key)));
  return options.folder + "/" + name;
}

// What a file says, or what is wrong with it.
Result<KeptCost> Read(const std::string& path) {
  KVIK_ASSIGN(const std::string text, ReadTextFile(path));
  const Result<Json> json = ParseJson<Json>(text, {.max_bytes = size_t{1} << 16, .max_nesting = 4});
  if (!json || !json->is_object() || json->value("format", Json()) != kFormat ||
      !json->contains("key") || !(*json)["key"].is_string() || !json->contains("model") ||
      !(*json)["model"].is_object()) {
    return Err(ErrorCode::kCorrupt, "%s is not a cost model of this version", path.c_str());
  }
  KeptCost kept;
  kept.key = (*json)["key"].get<std::string>();
  for (const auto& [name, member] : kCoefficients) {
    const Json value = (*json)["model"].value(name, Json());
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
      return Err(ErrorCode::kCorrupt, "%s: \"%s\" is not a cost", path.c_str(), name);
    }
    kept.model.*member = value.get<double>();
  }
  if (!(kept.model.a_us() > 0) || !(kept.model.square_us > 0)) {
    return Err(ErrorCode::kCorrupt, "%s: costs of tokens and positions must be above 0",
               path.c_str());
  }
  return kept;
}

std::optional<kv::CostModel> Load(const std::string& path, const std::string& key) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return std::nullopt;
  }
  const Result<KeptCost> kept = Read(path);
  if (!kept) {
    LogWarning("%s: measuring again", kept.error().message.c_str());
    return std::nullopt;
  }
  if (kept->key != key) {
    LogWarning("%s is of another model or machine: measuring again", path.c_str());
    return std::nullopt;
  }
  return kept->model;
}

void Save(const std::string& path, const std::string& key, const kv::CostFit& fit) {
  Json json;
  json["format"] = kFormat;
  json["key"] = key;
  json["r_squared"] = fit.r_squared;
  for (const auto& [name, member] : kCoefficients) {
    json["model"][name] = fit.model.*member;
  }
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (auto saved = ReplaceTextFile(path, json.dump(2) + "\n"); !saved.has_value()) {
    LogWarning("%s: the cost model will be measured again at the next start",
               saved.error().message.c_str());
  }
}

}  // namespace

std::string DefaultCostFolder() { return CacheFolder() + "/costs"; }

Result<KeptCost> NewestKeptCost(const std::string& folder, const std::string& part) {
  std::optional<KeptCost> newest;
  std::filesystem::file_time_type newest_time;
  std::string keys;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::error_code unknown;  // time: gone meanwhile
    const auto time = entry.last_write_time(unknown);
    if (unknown || entry.path().extension() != ".json") {
      continue;
    }
    Result<KeptCost> kept = Read(entry.path().string());
    if (!kept) {
      LogWarning("%s", kept.error().message.c_str());
      continue;
    }
    keys += "\n  " + kept->key;
    if (kept->key.find(part) != std::string::npos && (!newest || time > newest_time)) {
      newest = std::move(*kept);
      newest_time = time;
    }
  }
  if (newest) {
    return *std::move(newest);
  }
  if (!keys.empty()) {
    return Err(ErrorCode::kNotFound, "no cost measured here has \"%s\" in its key; there are:%s",
               part.c_str(), keys.c_str());
  }
  return Err(ErrorCode::kNotFound,
             "no cost was measured on this machine yet (%s is empty): kvik serve --model FILE "
             "measures when it starts",
             folder.c_str());
}

kv::CostModel MachineCostModel(engine::Executor& executor, const Clock& clock,
                               const MachineCostOptions& options) {
  if (options.source == CostSource::kDefault) {
    return kv::CostModel::Default();
  }
  const std::string key = KeyOf(options);
  const std::string path = PathOf(options, key);
  if (options.source == CostSource::kAuto) {
    if (const std::optional<kv::CostModel> kept = Load(path, key)) {
      return *kept;
    }
  }
  std::optional<Progress> progress;
  engine::CalibrationOptions calibration;
  calibration.num_blocks = options.num_blocks;
  calibration.block_size_tokens = options.block_size_tokens;
  uint64_t last_done = 0;
  calibration.progress = [&](uint64_t done, uint64_t total) {
    if (!progress || done < last_done) {
      const char* label = progress ? "measuring again, since the times made no sense together"
                                   : "measuring what tokens cost here";
      progress.reset();
      progress.emplace(clock,
                       Progress::Options{.label = label, .total = total, .mode = options.progress});
    }
    last_done = done;
    progress->Update(done);
  };
  const Result<kv::CostFit> fit = engine::CalibrateCost(executor, clock, calibration);
  progress.reset();
  if (!fit) {
    LogWarning(
        "no cost model of this machine (%s): blocks are weighed with typical costs; "
        "the next start measures again",
        fit.error().message.c_str());
    return kv::CostModel::Default();
  }
  LogInfo("cost model: %.1f us a token, %.4f us a token and position; R^2 %.4f", fit->model.a_us(),
          fit->model.c_us(), fit->r_squared);
  Save(path, key, *fit);
  return fit->model;
}

}  // namespace kvik::app
