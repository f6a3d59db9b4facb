// SPDX-License-Identifier: Apache-2.0
// model/output_file.h: a file written front to back, whose every failure is noticed.
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace kvik::model {

// Move-only. Destroying it without Close() leaves an incomplete file behind.
class OutputFile {
 public:
  // Truncates an existing file. kUnavailable when it cannot be created.
  static Result<OutputFile> Create(const std::string& path);
  // kExhausted when the disk is full, else kUnavailable.
  [[nodiscard]] Result<void> Write(std::span<const std::byte> bytes);
  [[nodiscard]] Result<void> Close();

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  [[nodiscard]] Error Failure(const char* action) const;

  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
};

}  // namespace kvik::model
