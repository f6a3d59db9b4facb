// SPDX-License-Identifier: Apache-2.0
#include "codec/stage_args.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/format.h"
#include "codec/arg_text.h"

namespace kvik::codec {
namespace {

// What a number may be replaced by, see codec/allocation.h.
struct Form {
  std::string_view word;
  size_t numbers;
  bool first_is_share;  // the first number is a share in [0, 1], not a value of the parameter
};
constexpr std::array<Form, 3> kForms = {Form{"thirds", 3, false}, Form{"pyramid", 2, false},
                                        Form{"mix", 3, true}};

std::string Alternatives(const ParamSpec& param) {
  std::string text;
  if (param.type == ParamSpec::Type::kWord) {
    for (const std::string& word : param.words) {
      text += (text.empty() ? "" : ", ") + word;
    }
    return text;
  }
  text = std::string(param.type == ParamSpec::Type::kInteger ? "an integer" : "a number") +
         " in [" + ToText(ArgValue::Number(param.min)) + ", " +
         ToText(ArgValue::Number(param.max)) + "]";
  if (param.allocatable) {
    text += ", thirds(a,b,c), pyramid(first,last) or mix(share,high,low)";
  }
  return text;
}

bool NumberFits(const ParamSpec& param, const ArgValue& value) {
  return value.word.empty() && value.number >= param.min && value.number <= param.max &&
         (param.type != ParamSpec::Type::kInteger || value.number == std::floor(value.number));
}

bool FormFits(const ParamSpec& param, const ArgValue& value) {
  const auto* const form = std::find_if(kForms.begin(), kForms.end(),
                                        [&](const Form& f) { return f.word == value.word; });
  if (form == kForms.end() || value.list.size() != form->numbers) {
    return false;
  }
  for (size_t i = 0; i < value.list.size(); ++i) {
    const ArgValue& number = value.list[i];
    const bool is_share = form->first_is_share && i == 0;
    if (is_share ? !(number.word.empty() && number.number >= 0 && number.number <= 1)
                 : !NumberFits(param, number)) {
      return false;
    }
  }
  return true;
}

bool Fits(const ParamSpec& param, const ArgValue& value) {
  if (param.type == ParamSpec::Type::kWord) {
    return value.list.empty() &&
           std::find(param.words.begin(), param.words.end(), value.word) != param.words.end();
  }
  return NumberFits(param, value) || (param.allocatable && FormFits(param, value));
}

}  // namespace

Result<StageArgs> StageArgs::Check(std::string_view stage, const std::vector<ParamSpec>& params,
                                   const std::vector<std::pair<std::string, ArgValue>>& given) {
  StageArgs args;
  for (const ParamSpec& param : params) {
    args.entries_.push_back({param.name, param.default_value, true});
  }
  std::vector<bool> set(params.size(), false);
  for (const auto& [name, value] : given) {
    size_t at = 0;
    if (name.empty()) {  // the next one in order
      while (at < params.size() && set[at]) {
        ++at;
      }
      if (at == params.size()) {
        return Error{ErrorCode::kInvalidInput, std::string(stage) + " takes " +
                                                   std::to_string(params.size()) + " arguments, " +
                                                   std::to_string(given.size()) + " are given"};
      }
    } else {
      while (at < params.size() && params[at].name != name) {
        ++at;
      }
      if (at == params.size()) {
        std::string known;
        for (const ParamSpec& param : params) {
          known += (known.empty() ? "" : ", ") + param.name;
        }
        return Error{ErrorCode::kInvalidInput, std::string(stage) + " has no argument \"" + name +
                                                   "\"; it has " +
                                                   (known.empty() ? "none" : known)};
      }
    }
    if (set[at]) {
      return Error{ErrorCode::kInvalidInput,
                   std::string(stage) + ": argument \"" + params[at].name + "\" is given twice"};
    }
    if (!Fits(params[at], value)) {
      return Error{ErrorCode::kInvalidInput, std::string(stage) + ": " + params[at].name + "=" +
                                                 ToText(value) + " must be " +
                                                 Alternatives(params[at])};
    }
    set[at] = true;
    args.entries_[at].value = value;
    args.entries_[at].is_default = value == params[at].default_value;
  }
  return args;
}

const ArgValue& StageArgs::Value(std::string_view name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) {
      return entry.value;
    }
  }
  KVIK_CHECK(false, "a stage asks for an argument \"%.*s\" that it does not declare",
             static_cast<int>(name.size()), name.data());
  __builtin_unreachable();
}

int64_t StageArgs::Integer(std::string_view name) const {
  const ArgValue& value = Value(name);
  KVIK_CHECK(value.word.empty());
  return static_cast<int64_t>(value.number);
}

double StageArgs::Real(std::string_view name) const {
  const ArgValue& value = Value(name);
  KVIK_CHECK(value.word.empty());
  return value.number;
}

const std::string& StageArgs::Word(std::string_view name) const { return Value(name).word; }

std::vector<std::pair<std::string, ArgValue>> StageArgs::Canonical() const {
  std::vector<std::pair<std::string, ArgValue>> given;
  for (const Entry& entry : entries_) {
    if (!entry.is_default) {
      given.emplace_back(entry.name, entry.value);
    }
  }
  return given;
}

}  // namespace kvik::codec
