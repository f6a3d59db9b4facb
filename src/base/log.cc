// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <string>

#include "base/format.h"

namespace kvik {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

// Never destroyed: a thread may log while statics are torn down.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    auto* created = new spdlog::logger("kvik", std::move(sink));
    created->set_level(spdlog::level::info);
    created->flush_on(spdlog::level::debug);
    return created;
  }();
  return *logger;
}

void AppendEscaped(std::string& line, char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20 && byte != 0x7F) {
    line.push_back(c);
    return;
  }
  char escaped[5];
  std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
  line += escaped;
}

void Write(LogLevel level, const char* format, va_list args) {
  if (!LogEnabled(level)) {
    return;
  }
  const std::string message = FormatV(format, args);
  std::string line;
  line.reserve(message.size());
  for (const char c : message) {
    AppendEscaped(line, c);
  }
  Logger().log(ToSpdlog(level), spdlog::string_view_t(line));
}

}  // namespace

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  if (name == "debug") {
    return LogLevel::kDebug;
  }
  if (name == "info") {
    return LogLevel::kInfo;
  }
  if (name == "warning") {
    return LogLevel::kWarning;
  }
  if (name == "error") {
    return LogLevel::kError;
  }
  if (name == "off") {
    return LogLevel::kOff;
  }
  return std::nullopt;
}

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

bool LogEnabled(LogLevel level) {
  return level != LogLevel::kOff && Logger().should_log(ToSpdlog(level));
}

void LogDebug(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Write(LogLevel::kDebug, format, args);
  va_end(args);
}

void LogInfo(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Write(LogLevel::kInfo, format, args);
  va_end(args);
}

void LogWarning(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Write(LogLevel::kWarning, format, args);
  va_end(args);
}

void LogError(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Write(LogLevel::kError, format, args);
  va_end(args);
}

}  // namespace kvik
