// SPDX-License-Identifier: Apache-2.0
// JSON text to JinjaValue, by nlohmann's event parser: it keeps the members' order and needs no
// recursion; this handler bounds the nesting.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace kvik::text {
namespace {

class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(JinjaValue()); }
  bool boolean(bool value) override { return Add(JinjaValue::Bool(value)); }
  bool number_integer(int64_t value) override { return Add(JinjaValue::Int(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return Fail("an integer is outside 64 bits");
    return Add(JinjaValue::Int(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) {
      return Fail("an integer is outside 64 bits");
    }
    return Add(JinjaValue::Float(value));
  }
  bool string(std::string& value) override { return Add(JinjaValue::String(std::move(value))); }
  bool binary(binary_t& /*value*/) override { return Fail("binary data"); }
  bool start_object(std::size_t /*size*/) override { return Open(true); }
  bool key(std::string& value) override {
    open_.back().key = std::move(value);
    return true;
  }
  bool end_object() override {
    JinjaValue dict = JinjaValue::Dict(std::move(open_.back().members));
    open_.pop_back();
    return Add(std::move(dict));
  }
  bool start_array(std::size_t /*size*/) override { return Open(false); }
  bool end_array() override {
    JinjaValue list = JinjaValue::List(std::move(open_.back().items));
    open_.pop_back();
    return Add(std::move(list));
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return Fail("not JSON at byte " + std::to_string(position));
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }
  JinjaValue TakeResult() { return std::move(result_); }

 private:
  struct Container {
    bool is_object = false;
    JinjaDict members;
    std::vector<JinjaValue> items;
    std::string key;
  };

  bool Open(bool is_object) {
    if (open_.size() >= static_cast<size_t>(JinjaValue::kMaxNesting)) {
      return Fail("nested deeper than " + std::to_string(JinjaValue::kMaxNesting) + " levels");
    }
    open_.emplace_back();
    open_.back().is_object = is_object;
    return true;
  }

  bool Add(JinjaValue value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().members.Set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  bool Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  std::vector<Container> open_;
  JinjaValue result_;
  std::string problem_;
};

}  // namespace

Result<JinjaValue> JinjaValue::FromJson(std::string_view json) {
  ValueBuilder builder;
  bool ok = false;
  try {
    ok = nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
  } catch (const nlohmann::json::exception& e) {
    return Err(ErrorCode::kInvalidInput, "JSON: %s", e.what());
  }
  if (!ok) return Err(ErrorCode::kInvalidInput, "JSON: %s", builder.problem().c_str());
  return builder.TakeResult();
}

}  // namespace kvik::text
