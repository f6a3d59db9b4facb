// SPDX-License-Identifier: Apache-2.0
// The state as text:
//
//   {"kvik_durations": 1, "kinds": [{"kind": 17, "samples": 40, "gaps": [[bin, weight], ...]},
//   ...]}
//
// "kind" is missing for all kinds together.
#include "kv/duration_history.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json_parse.h"

namespace kvik::kv {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr JsonLimits kLimits{.max_bytes = 1 << 22, .max_nesting = 6};

Json ToJson(const GapHistogram& gaps) {
  return {{"samples", gaps.num_samples()}, {"gaps", gaps.bins()}};
}

Result<GapHistogram> FromJson(const Json& json) {
  GapHistogram::Bins bins;
  for (const Json& entry : json.at("gaps")) {
    if (!entry.at(0).is_number_integer()) {
      return Err(ErrorCode::kInvalidInput, "a bin that is no integer");
    }
    bins.emplace_back(entry.at(0).get<int64_t>(), entry.at(1).get<double>());
  }
  if (!json.at("samples").is_number_integer()) {
    return Err(ErrorCode::kInvalidInput, "a number of samples that is no integer");
  }
  GapHistogram gaps;
  KVIK_TRY(gaps.Restore(bins, json.at("samples").get<int64_t>()));
  return gaps;
}

}  // namespace

void DurationHistory::Kind::Add(int64_t duration_us) {
  gaps.Add(duration_us, 1);
  if (--until_decay == 0) {
    gaps.Decay(0.5);
    until_decay = kForgetAfterSamples;
  }
}

void DurationHistory::Add(uint64_t kind, int64_t duration_us) {
  duration_us = std::max<int64_t>(duration_us, 0);
  all_.Add(duration_us);
  const auto known = kinds_.find(kind);
  if (known != kinds_.end()) {
    known->second.Add(duration_us);
  } else if (kinds_.size() < kMaxKinds) {
    kinds_[kind].Add(duration_us);
  }
}

int64_t DurationHistory::ExpectedUs(uint64_t kind) const {
  const auto known = kinds_.find(kind);
  const GapHistogram* gaps = known == kinds_.end() ? &all_.gaps : &known->second.gaps;
  if (gaps->num_samples() < kMinSamples) {
    gaps = &all_.gaps;
  }
  const double seconds =
      gaps->num_samples() < kMinSamples ? kFirstGuessS : gaps->QuantileSeconds(kQuantile);
  return std::llround(std::min(seconds, kMaxS) * 1e6);
}

std::string DurationHistory::SaveState() const {
  Json kinds = Json::array({ToJson(all_.gaps)});
  for (const auto& [name, kind] : kinds_) {
    kinds.push_back(ToJson(kind.gaps));
    kinds.back()["kind"] = name;
  }
  return Json{{"kvik_durations", kVersion}, {"kinds", kinds}}.dump();
}

Result<void> DurationHistory::RestoreState(std::string_view state) {
  const auto wrong = [](const std::string& what) {
    return Error{ErrorCode::kInvalidInput, "the saved durations: " + what};
  };
  Result<Json> parsed = ParseJson<Json>(state, kLimits);
  if (!parsed) {
    return wrong(parsed.error().message);
  }
  try {
    if (parsed->at("kvik_durations").get<double>() != kVersion) {
      return wrong("a version other than " + std::to_string(kVersion));
    }
    DurationHistory restored;
    for (const Json& saved : parsed->at("kinds")) {
      Result<GapHistogram> gaps = FromJson(saved);
      if (!gaps) {
        return wrong(gaps.error().message);
      }
      if (!saved.contains("kind")) {
        restored.all_.gaps = *gaps;
      } else if (!saved.at("kind").is_number_unsigned() || restored.kinds_.size() == kMaxKinds) {
        return wrong("a kind that is no number, or too many");
      } else {
        restored.kinds_[saved.at("kind").get<uint64_t>()].gaps = *gaps;
      }
    }
    *this = std::move(restored);
  } catch (const Json::exception& e) {
    return wrong("not as expected: " + JsonExceptionText(e.what()));
  }
  return {};
}

}  // namespace kvik::kv
