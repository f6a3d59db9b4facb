// SPDX-License-Identifier: Apache-2.0
#include "golden/golden_files.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace kvik::golden {
namespace {

Json Parse(const std::string& path, const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    std::fprintf(stderr, "%s: not JSON\n", path.c_str());
    std::exit(1);
  }
  return json;
}

}  // namespace

bool FileExists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Json ReadJson(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Parse(path, std::string(std::istreambuf_iterator<char>(file), {}));
}

std::vector<Json> ReadJsonLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) {
      lines.push_back(Parse(path, line));
    }
  }
  return lines;
}

}  // namespace kvik::golden
