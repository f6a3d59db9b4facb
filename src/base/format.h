// SPDX-License-Identifier: Apache-2.0
// base/format.h: printf into a string of whatever length it takes.
#pragma once

#include <cstdarg>
#include <string>

namespace kvik {

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string FormatV(const char* format, va_list args) __attribute__((format(printf, 1, 0)));

}  // namespace kvik
