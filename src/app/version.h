// SPDX-License-Identifier: Apache-2.0
// app/version.h: which kvik this is.
#pragma once

namespace kvik::app {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace kvik::app
