// SPDX-License-Identifier: Apache-2.0
#include "base/memory_info.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace kvik {
namespace {

std::optional<size_t> SystemAvailable() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    size_t kilobytes = 0;
    if (key == "MemAvailable:" && file >> kilobytes) {
      return kilobytes * 1024;
    }
    file.ignore(256, '\n');
  }
  return std::nullopt;
}

// A number alone in a file; "max" and everything else is none.
std::optional<size_t> ReadNumber(const char* path) {
  std::ifstream file(path);
  size_t value = 0;
  if (file >> value) {
    return value;
  }
  return std::nullopt;
}

// Version 2 of control groups, as a container sees its own. File pages count as used but can be
// dropped; ignoring them here would refuse too much, so a group's limit counts as a whole.
std::optional<size_t> GroupLimit() { return ReadNumber("/sys/fs/cgroup/memory.max"); }

}  // namespace

std::optional<size_t> AvailableMemoryBytes() {
  const std::optional<size_t> system = SystemAvailable();
  const std::optional<size_t> group = GroupLimit();
  if (system && group) {
    return std::min(*system, *group);
  }
  return system ? system : group;
}

}  // namespace kvik
