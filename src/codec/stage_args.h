// SPDX-License-Identifier: Apache-2.0
// codec/stage_args.h: the arguments of a stage in a pipeline string: `name(key=value,...)`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvik::codec {

// A number, a word, or a word with values: 16, token, mix(0.6,16,5).
struct ArgValue {
  std::string word;            // empty: a number
  double number = 0;           // finite
  std::vector<ArgValue> list;  // of a word
  friend bool operator==(const ArgValue&, const ArgValue&) = default;

  static ArgValue Number(double v) { return {{}, v, {}}; }
  static ArgValue Word(std::string w, std::vector<ArgValue> list = {}) {
    return {std::move(w), 0, std::move(list)};
  }
};

// One parameter a stage takes.
struct ParamSpec {
  enum class Type { kInteger, kReal, kWord };
  std::string name;
  std::string summary;  // one line
  Type type = Type::kInteger;
  double min = 0;  // of numbers, inclusive
  double max = 0;
  std::vector<std::string> words{};  // values of a kWord
  // Forms `word(numbers...)` that a number may be replaced by, e.g. mix, thirds, pyramid: see
  // codec/allocation.h. Every number in them is subject to min and max, unless the form says
  // otherwise.
  bool allocatable = false;
  ArgValue default_value{};
  std::vector<ArgValue> search{};  // values a search tries; empty: only the default
};

// Checked arguments of a stage: every parameter has a value of its type, in its range.
class StageArgs {
 public:
  StageArgs() = default;
  // `given` in any order. kInvalidInput: unknown or repeated name, wrong type, out of range; the
  // message says which and what would do.
  static Result<StageArgs> Check(std::string_view stage, const std::vector<ParamSpec>& params,
                                 const std::vector<std::pair<std::string, ArgValue>>& given);

  // REQUIRES: the stage has such a parameter of that type.
  [[nodiscard]] int64_t Integer(std::string_view name) const;
  [[nodiscard]] double Real(std::string_view name) const;
  [[nodiscard]] const std::string& Word(std::string_view name) const;
  [[nodiscard]] const ArgValue& Value(std::string_view name) const;

  // In the order of the parameters; what equals its default is left out.
  [[nodiscard]] std::vector<std::pair<std::string, ArgValue>> Canonical() const;
  friend bool operator==(const StageArgs&, const StageArgs&) = default;

 private:
  struct Entry {
    std::string name;
    ArgValue value;
    bool is_default = true;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> entries_;
};

}  // namespace kvik::codec
