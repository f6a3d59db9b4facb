// SPDX-License-Identifier: Apache-2.0
#include "model/json_file.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "base/json_parse.h"
#include "base/mapped_file.h"

namespace kvik::model {
namespace {

constexpr int kMaxNesting = 64;

std::string Brief(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

}  // namespace

JsonFields::JsonFields(std::string path, std::string prefix, nlohmann::json json)
    : path_(std::move(path)), prefix_(std::move(prefix)), json_(std::move(json)) {}

Result<JsonFields> JsonFields::Load(const std::string& path, size_t max_bytes) {
  KVIK_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  Result<nlohmann::json> json =
      ParseJson<nlohmann::json>(text, {.max_bytes = max_bytes, .max_nesting = kMaxNesting});
  if (!json) {
    return Err(ErrorCode::kCorrupt, "%s %s; fetch the file again", path.c_str(),
               json.error().message.c_str());
  }
  if (!json->is_object()) {
    return Err(ErrorCode::kCorrupt, "%s: its top level is not a JSON object", path.c_str());
  }
  return JsonFields(path, "", *std::move(json));
}

Error JsonFields::Complain(ErrorCode code, const char* key, const std::string& what) const {
  return Error{code, path_ + ": field '" + prefix_ + key + "': " + what};
}

bool JsonFields::Has(const char* key) const {
  const auto it = json_.find(key);
  return it != json_.end() && !it->is_null();
}

Result<std::optional<int64_t>> JsonFields::Int(const char* key, int64_t min, int64_t max) const {
  if (!Has(key)) {
    return std::optional<int64_t>();
  }
  const nlohmann::json& value = json_[key];
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    return Complain(ErrorCode::kCorrupt, key,
                    Brief(value) + " is not an integer in [" + std::to_string(min) + ", " +
                        std::to_string(max) + "]");
  }
  return std::optional<int64_t>(value.get<int64_t>());
}

Result<int64_t> JsonFields::RequiredInt(const char* key, int64_t min, int64_t max) const {
  KVIK_ASSIGN(const std::optional<int64_t> value, Int(key, min, max));
  if (!value) {
    return Complain(ErrorCode::kCorrupt, key, "is missing; the folder is not a complete model");
  }
  return *value;
}

Result<std::optional<double>> JsonFields::Float(const char* key) const {
  if (!Has(key)) {
    return std::optional<double>();
  }
  const nlohmann::json& value = json_[key];
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    return Complain(ErrorCode::kCorrupt, key, Brief(value) + " is not a finite number");
  }
  return std::optional<double>(value.get<double>());
}

Result<std::optional<bool>> JsonFields::Bool(const char* key) const {
  if (!Has(key)) {
    return std::optional<bool>();
  }
  const nlohmann::json& value = json_[key];
  if (!value.is_boolean()) {
    return Complain(ErrorCode::kCorrupt, key, Brief(value) + " is not true or false");
  }
  return std::optional<bool>(value.get<bool>());
}

Result<std::optional<std::string>> JsonFields::String(const char* key) const {
  if (!Has(key)) {
    return std::optional<std::string>();
  }
  const nlohmann::json& value = json_[key];
  if (!value.is_string()) {
    return Complain(ErrorCode::kCorrupt, key, Brief(value) + " is not a string");
  }
  return std::optional<std::string>(value.get<std::string>());
}

Result<std::optional<JsonFields>> JsonFields::Object(const char* key) const {
  if (!Has(key)) {
    return std::optional<JsonFields>();
  }
  const nlohmann::json& value = json_[key];
  if (!value.is_object()) {
    return Complain(ErrorCode::kCorrupt, key, Brief(value) + " is not an object");
  }
  return std::optional<JsonFields>(JsonFields(path_, prefix_ + key + ".", value));
}

Result<std::vector<int64_t>> JsonFields::IntOrInts(const char* key, int64_t min,
                                                   int64_t max) const {
  std::vector<int64_t> out;
  if (!Has(key)) {
    return out;
  }
  const nlohmann::json& value = json_[key];
  if (!value.is_array()) {
    KVIK_ASSIGN(const std::optional<int64_t> one, Int(key, min, max));
    out.push_back(*one);
    return out;
  }
  for (const nlohmann::json& entry : value) {
    if (!entry.is_number_integer() || entry.get<int64_t>() < min || entry.get<int64_t>() > max) {
      return Complain(ErrorCode::kCorrupt, key,
                      Brief(entry) + " is not an integer in [" + std::to_string(min) + ", " +
                          std::to_string(max) + "]");
    }
    out.push_back(entry.get<int64_t>());
  }
  return out;
}

}  // namespace kvik::model
