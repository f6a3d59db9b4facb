// SPDX-License-Identifier: Apache-2.0
#include "eval/dataset.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "base/json_parse.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace kvik::eval {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLineLimits{
    .max_bytes = size_t{16} << 20, .max_nesting = 8, .max_members = 64};
constexpr size_t kMaxItems = 1'000'000;

Error AtLine(const std::string& name, size_t line, const std::string& what) {
  return Err(ErrorCode::kInvalidInput, "%s:%zu: %s", name.c_str(), line, what.c_str());
}

// The string `key`, empty when there is none. An error is a clause.
Result<std::string> Text(const Json& object, const char* key, bool required) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) {
    if (required) {
      return Err(ErrorCode::kInvalidInput, "has no \"%s\"", key);
    }
    return std::string();
  }
  if (!at->is_string() || (required && at->get_ref<const std::string&>().empty())) {
    return Err(ErrorCode::kInvalidInput, "\"%s\" is no text", key);
  }
  return at->get<std::string>();
}

Result<EvalItem> ParseItem(std::string_view line) {
  KVIK_ASSIGN(const Json object, ParseJson<Json>(line, kLineLimits));
  if (!object.is_object()) {
    return Err(ErrorCode::kInvalidInput, "is no JSON object");
  }
  EvalItem item;
  KVIK_ASSIGN(item.workload, Text(object, "workload", true));
  KVIK_ASSIGN(item.prompt, Text(object, "prompt", true));
  KVIK_ASSIGN(item.context, Text(object, "context", false));
  KVIK_ASSIGN(item.title, Text(object, "title", false));
  KVIK_ASSIGN(item.reference, Text(object, "reference", false));
  const auto answers = object.find("answers");
  if (answers != object.end() && !answers->is_null()) {
    if (!answers->is_array()) {
      return Err(ErrorCode::kInvalidInput, "\"answers\" is no list");
    }
    for (const Json& answer : *answers) {
      if (!answer.is_string()) {
        return Err(ErrorCode::kInvalidInput, "\"answers\" holds what is no text");
      }
      item.answers.push_back(answer.get<std::string>());
    }
  }
  return item;
}

Result<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return std::vector<std::string>{path};
  }
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".jsonl") {
      files.push_back(it->path().string());
    }
  }
  if (error) {
    return Err(ErrorCode::kUnavailable, "%s: cannot list the folder: %s", path.c_str(),
               error.message().c_str());
  }
  if (files.empty()) {
    return Err(ErrorCode::kNotFound, "%s: the folder holds no .jsonl file", path.c_str());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<std::vector<EvalItem>> ParseEvalItems(std::string_view text, const std::string& name) {
  std::vector<EvalItem> items;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    if (items.size() == kMaxItems) {
      return AtLine(name, line, "more than a million items");
    }
    Result<EvalItem> item = ParseItem(content);
    if (!item) {
      return AtLine(name, line, item.error().message);
    }
    items.push_back(std::move(*item));
  }
  return items;
}

Result<EvalData> LoadEvalData(const std::string& path) {
  KVIK_ASSIGN(const std::vector<std::string> files, FilesOf(path));
  EvalData data;
  Sha256 hash;
  for (const std::string& file : files) {
    KVIK_ASSIGN(const MappedFile mapped, MappedFile::Open(file));
    const std::span<const std::byte> bytes = mapped.bytes();
    hash.Update(bytes);
    KVIK_ASSIGN(std::vector<EvalItem> items,
                ParseEvalItems({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file));
    std::move(items.begin(), items.end(), std::back_inserter(data.items));
  }
  if (data.items.empty()) {
    return Err(ErrorCode::kInvalidInput,
               "%s: no items; expected lines like {\"workload\": \"qa\", \"prompt\": \"...\"}",
               path.c_str());
  }
  data.hash = ToHex(hash.Finish());
  return data;
}

}  // namespace kvik::eval
