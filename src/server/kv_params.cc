// SPDX-License-Identifier: Apache-2.0
#include "server/kv_params.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace kvik::server {
namespace {

ApiError BadHeader(const char* name, const std::string& what) {
  ApiError error;
  error.message = std::string("Invalid header ") + name + ": " + what;
  error.param = name;
  return error;
}

// A number of [low, high].
std::optional<ApiError> ReadNumber(const HttpRequest& request, const char* name, float low,
                                   float high, std::optional<float>& out) {
  const std::string* text = request.Header(name);
  if (text == nullptr) {
    return std::nullopt;
  }
  float number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc() || rest != end || !(number >= low) || !(number <= high)) {
    char range[64];
    std::snprintf(range, sizeof(range), "must be a number of %g to %g", static_cast<double>(low),
                  static_cast<double>(high));
    return BadHeader(name, range);
  }
  out = number;
  return std::nullopt;
}

std::optional<ApiError> ReadMs(const HttpRequest& request, const char* name, int64_t& us) {
  std::optional<float> ms;
  if (std::optional<ApiError> error = ReadNumber(request, name, kMinSloMs, kMaxSloMs, ms)) {
    return error;
  }
  if (ms && us == 0) {
    us = std::llround(static_cast<double>(*ms) * 1000);
  }
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ReadKvHeaders(const HttpRequest& request, KvParams& params) {
  constexpr const char* kWorkload = "X-Kvik-Workload";
  if (const std::string* workload = request.Header(kWorkload)) {
    if (workload->empty() || workload->size() > kMaxWorkloadBytes) {
      return BadHeader(kWorkload, "must have 1 to " + std::to_string(kMaxWorkloadBytes) + " bytes");
    }
    if (params.workload.empty()) {
      params.workload = *workload;
    }
  }
  if (std::optional<ApiError> error = ReadMs(request, "X-Kvik-Slo-Ttft-Ms", params.slo_ttft_us)) {
    return error;
  }
  if (std::optional<ApiError> error = ReadMs(request, "X-Kvik-Slo-Ms", params.slo_us)) {
    return error;
  }
  std::optional<float> quality;
  if (std::optional<ApiError> error = ReadNumber(request, "X-Kvik-Quality", 0, 1, quality)) {
    return error;
  }
  if (!params.quality) {
    params.quality = quality;
  }
  return std::nullopt;
}

kv::MinQuality ToMinQuality(float quality) {
  kv::MinQuality least;
  least.allow_lossy = quality < 1;
  least.q_min = least.allow_lossy ? quality : 0;
  return least;
}

}  // namespace kvik::server
