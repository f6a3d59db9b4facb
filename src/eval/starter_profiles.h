// SPDX-License-Identifier: Apache-2.0
// eval/starter_profiles.h: the profiles that a library begins with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvik::eval {

struct NamedPipeline {
  std::string name;      // as codec::Profile::name
  std::string pipeline;  // need not be canonical
};

// From exact to small, for slow links and for fast ones: see docs/profile-library.md.
const std::vector<NamedPipeline>& StarterProfiles();

// One a line, `name = pipeline`; empty lines and what follows # are ignored. kInvalidInput names
// the line.
Result<std::vector<NamedPipeline>> ParseProfileList(std::string_view text);

}  // namespace kvik::eval
