// SPDX-License-Identifier: Apache-2.0
#include "app/kv_link.h"

#include <memory>

#include "base/log.h"
#include "transfer/emulated_link.h"
#include "transfer/link_spec.h"

namespace kvik::app {

Result<void> UseLink(const std::string& spec, const Clock& clock,
                     transfer::EndpointOptions& options) {
  if (spec.empty()) {
    return {};
  }
  const Result<transfer::LinkSpec> parsed = transfer::LinkSpec::Parse(spec);
  if (!parsed) {
    return parsed.error().Wrap("--kv-link");
  }
  options.link = std::make_shared<transfer::EmulatedLink>(*parsed, clock);
  options.link_direction = transfer::EmulatedLink::Direction::kBoth;
  LogInfo("KV goes over an emulated link: %s", parsed->ToString().c_str());
  return {};
}

}  // namespace kvik::app
