// SPDX-License-Identifier: Apache-2.0
#include "eval/starter_profiles.h"

#include <algorithm>

#include "base/format.h"

namespace kvik::eval {
namespace {

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

const std::vector<NamedPipeline>& StarterProfiles() {
  static const std::vector<NamedPipeline> kProfiles = [] {
    std::vector<NamedPipeline> profiles = {
        {"lossless", "none -> none -> rans"},
        // Packed: the fastest ones.
        {"packed-16", "k:center+hadamard|v:hadamard -> uniform(levels=16,per=token) -> pack"},
        {"packed-8", "k:center+hadamard|v:hadamard -> uniform(levels=8,per=token) -> pack"},
    };
    // Rotated: nearly as fast to code as packed ones.
    for (const char* d : {"0.7", "1", "1.4"}) {
      profiles.push_back(
          {std::string("rotated-") + d,
           Format("k:prerope+center+hadamard|v:center+hadamard -> ecsq(d=%s) -> rans", d)});
    }
    // All heads of a layer together: the smallest ones at any quality.
    for (const char* d : {"0.35", "0.5", "0.7", "1", "1.2", "1.4", "1.7", "2"}) {
      profiles.push_back({std::string("joint-") + d,
                          Format("k:prerope+center+jklt|v:center+jklt -> ecsq(d=%s) -> rans", d)});
    }
    return profiles;
  }();
  return kProfiles;
}

Result<std::vector<NamedPipeline>> ParseProfileList(std::string_view text) {
  std::vector<NamedPipeline> profiles;
  int line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t newline = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, newline - at);
    at = newline + 1;
    ++line_number;
    line = Trimmed(line.substr(0, line.find('#')));
    if (line.empty()) {
      continue;
    }
    const size_t equals = line.find('=');
    const std::string_view name = Trimmed(line.substr(0, equals));
    if (equals == std::string_view::npos || name.empty() ||
        name.find_first_of("(:>| ") != std::string_view::npos) {
      return Err(ErrorCode::kInvalidInput, "line %d is not of the form `name = pipeline`",
                 line_number);
    }
    profiles.push_back({std::string(name), std::string(Trimmed(line.substr(equals + 1)))});
  }
  return profiles;
}

}  // namespace kvik::eval
