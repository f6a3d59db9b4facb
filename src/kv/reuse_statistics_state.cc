// SPDX-License-Identifier: Apache-2.0
// What asym learned, as text:
//
//   {"kvik_reuse_statistics": 1,
//    "classes": [{"lifespan_s": 1578.2, "departed": 120.5, "returned": 80.1, "samples": 40000,
//                 "gaps": [[bin, weight], ...]}, ...]}       the classes in the order of ReuseClass
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_parse.h"
#include "kv/reuse_statistics.h"

namespace kvik::kv {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr JsonLimits kLimits{.max_bytes = 1 << 20, .max_nesting = 6};

bool IsCount(double x) { return std::isfinite(x) && x >= 0; }

// Nothing if a bin is no integer: a conversion of 1e300 would be undefined.
std::optional<GapHistogram::Bins> BinsOf(const Json& saved) {
  GapHistogram::Bins bins;
  for (const Json& entry : saved) {
    if (!entry.at(0).is_number_integer()) {
      return std::nullopt;
    }
    bins.emplace_back(entry.at(0).get<int64_t>(), entry.at(1).get<double>());
  }
  return bins;
}

}  // namespace

std::string ReuseStatistics::SaveState() const {
  Json classes = Json::array();
  for (const Class& c : classes_) {
    classes.push_back({{"lifespan_s", c.lifespan_s},
                       {"departed", c.departed},
                       {"returned", c.returned},
                       {"samples", c.gaps.num_samples()},
                       {"gaps", c.gaps.bins()}});
  }
  return Json{{"kvik_reuse_statistics", kVersion}, {"classes", classes}}.dump();
}

Result<void> ReuseStatistics::RestoreState(std::string_view state) {
  const auto wrong = [](const std::string& what) {
    return Error{ErrorCode::kInvalidInput, "the saved state of reuse statistics " + what};
  };
  Result<Json> parsed = ParseJson<Json>(state, kLimits);
  if (!parsed) {
    return wrong(parsed.error().message);
  }
  try {
    if (parsed->at("kvik_reuse_statistics").get<double>() != kVersion) {
      return wrong("has a version other than " + std::to_string(kVersion));
    }
    const Json& classes = parsed->at("classes");
    if (!classes.is_array() || classes.size() != kReuseClasses) {
      return wrong("does not have " + std::to_string(kReuseClasses) + " classes");
    }
    std::array<Class, kReuseClasses> restored = classes_;
    for (size_t i = 0; i < kReuseClasses; ++i) {
      Class& c = restored[i];
      const Json& saved = classes[i];
      const auto lifespan_s = saved.at("lifespan_s").get<double>();
      c.departed = saved.at("departed").get<double>();
      c.returned = saved.at("returned").get<double>();
      if (!(IsCount(lifespan_s) && lifespan_s > 0 && IsCount(c.departed) && IsCount(c.returned))) {
        return wrong("has a number out of range");
      }
      if (learns_lifespans_) {
        c.lifespan_s = lifespan_s;
      }
      const auto bins = BinsOf(saved.at("gaps"));
      if (!bins || !saved.at("samples").is_number_integer()) {
        return wrong("has a number that is no integer");
      }
      if (auto gaps = c.gaps.Restore(*bins, saved.at("samples").get<int64_t>()); !gaps) {
        return wrong("has " + gaps.error().message);
      }
    }
    classes_ = restored;
  } catch (const Json::exception& e) {
    return wrong("is not as expected: " + JsonExceptionText(e.what()));
  }
  return {};
}

}  // namespace kvik::kv
