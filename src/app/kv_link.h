// SPDX-License-Identifier: Apache-2.0
// app/kv_link.h: --kv-link: the connections of this process as if they went over another network.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "transfer/endpoint.h"

namespace kvik::app {

// `spec` as transfer::LinkSpec; empty: nothing is changed. What this process sends and what it
// receives both go through the link, so one side of a connection is enough.
Result<void> UseLink(const std::string& spec, const Clock& clock,
                     transfer::EndpointOptions& options);

}  // namespace kvik::app
