// SPDX-License-Identifier: Apache-2.0
#include "server/api_key.h"

#include <string_view>

namespace kvik::server {
namespace {

bool SameSecret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? '\1' : b[i % b.size()]));
  }
  return difference == 0;
}

}  // namespace

std::optional<ApiError> CheckApiKey(const HttpRequest& request, const std::string& api_key) {
  const std::string* header = request.Header("Authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (api_key.empty() || (header != nullptr && header->compare(0, kScheme.size(), kScheme) == 0 &&
                          SameSecret(std::string_view(*header).substr(kScheme.size()), api_key))) {
    return std::nullopt;
  }
  ApiError error;
  error.status = 401;
  error.message = "Give the server's API key as 'Authorization: Bearer KEY'.";
  error.type = "authentication_error";
  error.code = "invalid_api_key";
  return error;
}

}  // namespace kvik::server
