// SPDX-License-Identifier: Apache-2.0
// base/mapped_file.h: a whole file as read-only memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace kvik {

// Move-only. The bytes stay where they are when the object moves. If another process truncates
// the file while it is mapped, reading beyond its new end is fatal (SIGBUS), as with any mmap.
class MappedFile {
 public:
  // Maps `path`, which must be a regular file. kNotFound when it does not exist, kInvalidInput
  // when it is not a regular file, kUnavailable when it cannot be read; messages name the path.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }

 private:
  MappedFile() = default;

  std::string path_;
  const std::byte* data_ = nullptr;  // null when the file is empty
  size_t size_bytes_ = 0;
};

}  // namespace kvik
