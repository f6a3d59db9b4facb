// SPDX-License-Identifier: Apache-2.0
#include "workload/trace_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/json_parse.h"
#include "base/rng.h"

namespace kvik::workload {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokens = int64_t{1} << 26;
constexpr int64_t kMaxMillis = int64_t{1} << 42;  // 139 years
constexpr int64_t kMaxBlockSize = 65536;
constexpr int32_t kTextBlockTokens = 16;
constexpr size_t kTextBytesPerToken = 4;

// One line's fields, with errors that name them.
class Line {
 public:
  explicit Line(const Json& json) : json_(json) {}

  [[nodiscard]] bool Has(const char* field) const { return json_.contains(field); }

  [[nodiscard]] Result<int64_t> Integer(const char* field, int64_t least, int64_t most) const {
    const auto it = json_.find(field);
    if (it == json_.end()) {
      return Err(ErrorCode::kInvalidInput, "field \"%s\" is missing: give a whole number", field);
    }
    // Floating point timestamps of whole value are common in converted traces.
    const double value = it->is_number() ? it->get<double>() : -1;
    if (!it->is_number() || value < static_cast<double>(least) ||
        value > static_cast<double>(most)) {
      return Err(ErrorCode::kInvalidInput,
                 "field \"%s\" is %s: give a whole number from %lld to %lld", field,
                 Shown(*it).c_str(), static_cast<long long>(least), static_cast<long long>(most));
    }
    return it->is_number_integer() ? it->get<int64_t>() : static_cast<int64_t>(value);
  }

  [[nodiscard]] Result<std::string_view> Text(const char* field) const {
    const auto it = json_.find(field);
    if (it == json_.end() || !it->is_string()) {
      return Err(ErrorCode::kInvalidInput, "field \"%s\" is missing or not a string: give text",
                 field);
    }
    return std::string_view(it->get_ref<const std::string&>());
  }

  // The ids of `full_blocks` blocks; one more may be there.
  [[nodiscard]] Result<std::vector<uint64_t>> Ids(size_t full_blocks, int32_t block_size) const {
    const auto it = json_.find("hash_ids");
    if (it == json_.end() || !it->is_array()) {
      return Err(ErrorCode::kInvalidInput,
                 "field \"hash_ids\" is missing or not an array: give one id per block of %d "
                 "tokens",
                 block_size);
    }
    if (it->size() < full_blocks || it->size() > full_blocks + 1) {
      return Err(ErrorCode::kInvalidInput,
                 "field \"hash_ids\" has %zu ids, but \"input_length\" has %zu full blocks of %d "
                 "tokens: give one id per block (the last may be partial)",
                 it->size(), full_blocks, block_size);
    }
    std::vector<uint64_t> ids;
    ids.reserve(full_blocks);
    for (size_t i = 0; i < full_blocks; ++i) {
      const Json& id = (*it)[i];
      if (!id.is_number_integer() || (!id.is_number_unsigned() && id.get<int64_t>() < 0)) {
        return Err(ErrorCode::kInvalidInput,
                   "field \"hash_ids\" holds %s at place %zu: give whole numbers >= 0",
                   Shown(id).c_str(), i);
      }
      ids.push_back(id.get<uint64_t>());
    }
    return ids;
  }

 private:
  static std::string Shown(const Json& json) {
    const std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= 40 ? text : text.substr(0, 37) + "...";
  }

  const Json& json_;
};

class Reader {
 public:
  Result<void> Add(std::string_view text) {
    KVIK_ASSIGN(const Json json,
                ParseJson<Json>(text, {.max_bytes = size_t{1} << 26, .max_nesting = 8}));
    if (!json.is_object()) {
      return Err(ErrorCode::kInvalidInput,
                 "is not a JSON object: give one request a line, as {\"timestamp\": ...}");
    }
    const Line line(json);
    return line.Has("input") ? AddText(line) : AddBlocks(line);
  }

  Trace Take() {
    std::stable_sort(
        trace_.requests.begin(), trace_.requests.end(),
        [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_us < b.arrival_us; });
    return std::move(trace_);
  }

 private:
  Result<void> AddBlocks(const Line& line) {
    int64_t size = 512;
    if (line.Has("block_size")) {
      KVIK_ASSIGN(size, line.Integer("block_size", 1, kMaxBlockSize));
    }
    KVIK_TRY(SetBlockSize(static_cast<int32_t>(size)));
    TraceRequest request;
    KVIK_ASSIGN(const int64_t millis, line.Integer("timestamp", 0, kMaxMillis));
    KVIK_ASSIGN(const int64_t input, line.Integer("input_length", 0, kMaxTokens));
    KVIK_ASSIGN(const int64_t output, line.Integer("output_length", 0, kMaxTokens));
    request.arrival_us = millis * 1000;
    request.input_tokens = static_cast<int32_t>(input);
    request.output_tokens = static_cast<int32_t>(output);
    if (line.Has("session")) {
      KVIK_ASSIGN(request.session, line.Integer("session", 0, int64_t{1} << 52));
    }
    if (line.Has("turn")) {
      KVIK_ASSIGN(const int64_t turn, line.Integer("turn", 1, int64_t{1} << 30));
      request.turn = static_cast<int32_t>(turn);
    }
    KVIK_ASSIGN(request.blocks,
                line.Ids(static_cast<size_t>(input / size), static_cast<int32_t>(size)));
    trace_.requests.push_back(std::move(request));
    return {};
  }

  Result<void> AddText(const Line& line) {
    KVIK_TRY(SetBlockSize(kTextBlockTokens));
    TraceRequest request;
    KVIK_ASSIGN(request.arrival_us, line.Integer("timestamp", 0, kMaxMillis * 1000));
    KVIK_ASSIGN(const std::string_view input, line.Text("input"));
    KVIK_ASSIGN(const std::string_view output, line.Text("output"));
    KVIK_ASSIGN(const std::string_view session, line.Text("session_id"));
    const auto tokens = [](std::string_view text) {
      return static_cast<int32_t>((text.size() + kTextBytesPerToken - 1) / kTextBytesPerToken);
    };
    request.input_tokens = tokens(input);
    request.output_tokens = tokens(output);
    request.session = static_cast<int64_t>(
        sessions_.emplace(std::string(session), sessions_.size()).first->second);
    // A chain: the id of a block covers everything before it.
    uint64_t chain = 0;
    constexpr size_t kBytes = kTextBlockTokens * kTextBytesPerToken;
    const size_t full = static_cast<size_t>(request.input_tokens / kTextBlockTokens);
    for (size_t block = 0; block < full; ++block) {
      for (const char c : input.substr(block * kBytes, kBytes)) {
        chain = (chain ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
      }
      chain = Rng(chain).Next();
      request.blocks.push_back(chain);
    }
    trace_.requests.push_back(std::move(request));
    return {};
  }

  Result<void> SetBlockSize(int32_t size) {
    if (!trace_.requests.empty() && size != trace_.block_size_tokens) {
      return Err(ErrorCode::kInvalidInput,
                 "field \"block_size\" is %d, but %d on the lines before: split the file", size,
                 trace_.block_size_tokens);
    }
    trace_.block_size_tokens = size;
    return {};
  }

  Trace trace_;
  std::unordered_map<std::string, size_t> sessions_;
};

}  // namespace

Result<Trace> ParseTrace(std::string_view text, const std::string& name) {
  Reader reader;
  size_t number = 0;
  size_t lines = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    ++lines;
    if (const Result<void> added = reader.Add(line); !added) {
      return added.error().Wrap(name + ":" + std::to_string(number));
    }
  }
  if (lines == 0) {
    return Err(ErrorCode::kInvalidInput, "%s: no requests: give one JSON object a line",
               name.c_str());
  }
  Trace trace = reader.Take();
  trace.name = name;
  return trace;
}

}  // namespace kvik::workload
