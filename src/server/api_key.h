// SPDX-License-Identifier: Apache-2.0
// server/api_key.h: whether a request brings the server's key.
#pragma once

#include <optional>
#include <string>

#include "server/api_error.h"
#include "server/http.h"

namespace kvik::server {

// Nothing if `api_key` is empty or the request has it as its bearer token; else a 401. Takes as
// long wherever the two differ.
[[nodiscard]] std::optional<ApiError> CheckApiKey(const HttpRequest& request,
                                                  const std::string& api_key);

}  // namespace kvik::server
