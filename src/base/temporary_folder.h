// SPDX-License-Identifier: Apache-2.0
// base/temporary_folder.h: a new, empty folder of one process, removed with all it holds.
#pragma once

#include <string>

#include "base/result.h"

namespace kvik {

// Move-only. Thread-compatible.
class TemporaryFolder {
 public:
  // Makes $TMPDIR/NAME-XXXXXX (default /tmp) with a name nobody else has. kUnavailable when the
  // system refuses.
  static Result<TemporaryFolder> Create(const std::string& name);

  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept;
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  void Remove();
  std::string path_;  // empty = moved from
};

}  // namespace kvik
