// SPDX-License-Identifier: Apache-2.0
#include "app/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace kvik::app {
namespace {

std::optional<uint64_t> ReadNumber(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) {
    return value;
  }
  return std::nullopt;  // "max" is no number either
}

std::optional<uint64_t> KernelAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") {
      return kib * 1024;
    }
  }
  return std::nullopt;
}

// Version 2, then version 1 of control groups, as a container sees its own.
std::optional<uint64_t> GroupAvailable() {
  const struct {
    const char* limit;
    const char* used;
  } files[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
       "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
  };
  for (const auto& [limit_path, used_path] : files) {
    const std::optional<uint64_t> limit = ReadNumber(limit_path);
    const std::optional<uint64_t> used = ReadNumber(used_path);
    if (limit && used) {
      return *limit > *used ? *limit - *used : 0;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> AvailableMemoryBytes() {
  const std::optional<uint64_t> kernel = KernelAvailable();
  const std::optional<uint64_t> group = GroupAvailable();
  if (kernel && group) {
    return std::min(*kernel, *group);
  }
  return kernel ? kernel : group;
}

}  // namespace kvik::app
