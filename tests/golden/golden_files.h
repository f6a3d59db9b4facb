// SPDX-License-Identifier: Apache-2.0
// tests/golden/golden_files.h: reading the reference files.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvik::golden {

// Insertion order matters: a template that walks a dict sees it.
using Json = nlohmann::ordered_json;

bool FileExists(const std::string& path);
// The whole file as JSON, or as one JSON value per line. Exits with a message when the file is
// there but is not JSON: the reference itself is damaged.
Json ReadJson(const std::string& path);
std::vector<Json> ReadJsonLines(const std::string& path);

// The models the references were made with.
struct GoldenModel {
  const char* key;   // in the names of golden files: "smollm2"
  const char* file;  // in the models folder
};
constexpr GoldenModel kGoldenModels[] = {
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
    {"qwen2", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"},
};

}  // namespace kvik::golden
