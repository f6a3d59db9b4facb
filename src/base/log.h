// SPDX-License-Identifier: Apache-2.0
// base/log.h: one line per event on standard error: time, level, message. Results of commands go
// to standard output and never through here.
#pragma once

#include <optional>
#include <string_view>

namespace kvik {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off".
std::optional<LogLevel> ParseLogLevel(std::string_view name);

// Messages below `level` are dropped; kInfo at the start. Thread-safe, as everything here.
void SetLogLevel(LogLevel level);
[[nodiscard]] bool LogEnabled(LogLevel level);

// The formats are printf's. User text goes in as an argument, never as the format; control
// characters are written as \xNN, so that one event stays one line.
void LogDebug(const char* format, ...) __attribute__((format(printf, 1, 2)));
void LogInfo(const char* format, ...) __attribute__((format(printf, 1, 2)));
void LogWarning(const char* format, ...) __attribute__((format(printf, 1, 2)));
void LogError(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace kvik
