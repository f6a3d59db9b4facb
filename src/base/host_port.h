// SPDX-License-Identifier: Apache-2.0
// base/host_port.h: how an address is written.
#pragma once

#include <string>
#include <string_view>

namespace kvik {

// "127.0.0.1:8000", "[::1]:8000": a host with colons stands in brackets, unless it does already.
[[nodiscard]] inline std::string JoinHostPort(std::string_view host, std::string_view port) {
  const bool bare_ipv6 = host.find(':') != std::string_view::npos && host.front() != '[';
  std::string joined;
  joined.append(bare_ipv6 ? "[" : "").append(host).append(bare_ipv6 ? "]:" : ":").append(port);
  return joined;
}

}  // namespace kvik
