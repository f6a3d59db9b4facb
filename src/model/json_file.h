// SPDX-License-Identifier: Apache-2.0
// model/json_file.h: small JSON configuration files, read with limits and typed accessors.
// Private to the module: included by .cc files only (it pulls in the JSON library).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvik::model {

// A JSON object with a name for messages ("<path>: config field 'rope_scaling.factor': ...").
// The accessors return nullopt when the field is absent or null and kCorrupt when it has another
// type or is out of range.
class JsonFields {
 public:
  // Reads a file of at most `max_bytes` whose top level is an object, nested at most 64 deep.
  // kNotFound, kCorrupt.
  static Result<JsonFields> Load(const std::string& path, size_t max_bytes);

  [[nodiscard]] const nlohmann::json& json() const { return json_; }
  [[nodiscard]] bool Has(const char* key) const;  // present and not null

  [[nodiscard]] Result<std::optional<int64_t>> Int(const char* key, int64_t min, int64_t max) const;
  [[nodiscard]] Result<std::optional<double>> Float(const char* key) const;  // finite
  [[nodiscard]] Result<std::optional<bool>> Bool(const char* key) const;
  [[nodiscard]] Result<std::optional<std::string>> String(const char* key) const;
  [[nodiscard]] Result<std::optional<JsonFields>> Object(const char* key) const;
  // One integer or a list of them; empty when absent.
  [[nodiscard]] Result<std::vector<int64_t>> IntOrInts(const char* key, int64_t min,
                                                       int64_t max) const;
  // As Int, but absence is an error too.
  [[nodiscard]] Result<int64_t> RequiredInt(const char* key, int64_t min, int64_t max) const;

  // "<path>: field '<key>': <what>".
  [[nodiscard]] Error Complain(ErrorCode code, const char* key, const std::string& what) const;

 private:
  JsonFields(std::string path, std::string prefix, nlohmann::json json);

  std::string path_;
  std::string prefix_;  // of nested objects: "rope_scaling."
  nlohmann::json json_;
};

}  // namespace kvik::model
